"""Results of metrics, experiments and training in notebooks: their numbers are in the HTML, which is safe."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import explainers
from explainers import BadOption, evaluate, grad_cam, show
from explainers.display.charts import line_chart
from explainers.display.display import table_html
from explainers.training.log import GradientLog


def network() -> nn.Sequential:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3)).eval()


IMAGES = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))

LABELS = ["cat", "dog", "fish"]


def cells(html: str) -> list[list[str]]:
    """Return the rows of all tables as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


def test_an_evaluation_has_its_values_verdicts_and_curves():
    net = network()
    found = evaluate(net, IMAGES, grad_cam(net, IMAGES, 1, layer="2"), target=1, metrics=["deletion", "sparseness"])
    html = found._repr_html_()
    rows = {row[0]: row for row in cells(html)}
    assert rows["deletion"][1] == f"{float(found.values['deletion'].mean()):.4g}"
    assert rows["deletion"][3] == found.compare("deletion", "random").verdict
    assert html.count("<svg") == 1  # only deletion has a curve
    assert html.count("<title>") == 1 + len(found.control_curves["deletion"])
    assert "dog (class 1)" in show(found, labels=LABELS).html
    for line in str(found).splitlines():
        assert line in html


def test_a_recommendation_has_its_rows_and_reasons():
    net = network()
    found = replace(
        explainers.recommend(net, IMAGES, target=1, methods=["grad_cam"], layers=["0", "2"]), refused={"rise": "slow"}
    )
    rows = cells(found._repr_html_())
    assert [row[1] for row in rows[1 : len(found) + 1]] == [row.name for row in found.rows]
    assert rows[-1] == ["rise", "slow"]
    assert str(found).startswith("\n".join(found.sentences()))


def test_a_randomization_test_has_its_steps():
    found = explainers.randomization_test(network(), IMAGES, "grad_cam", target=1, layer="2")
    rows = cells(found._repr_html_())[1:]
    assert [row[1] for row in rows] == list(found.steps)
    assert rows[0][2] == f"{float(found.correlation.double().nanmean(1)[0]):.4g}"


def test_experiments_have_their_numbers():
    net = network()
    layers = explainers.describe(net, IMAGES[:1])
    described = {row[0]: row for row in cells(layers._repr_html_())}
    assert described["0"][2:5] == ["1x4x24x24", "112", f"{4 * 24 * 24 * 27:,}"]
    changed = explainers.intervene(net, IMAGES, "2", channels=[0], value=0)
    first = changed.top()[0][0]
    numbers = [f"{v:.4g}" for v in (*first[1:], first.change)]
    assert cells(changed._repr_html_())[1] == ["0", f"class {first[0]}", *numbers]
    name = f"{LABELS[first[0]]} (class {first[0]})"
    assert cells(show(changed, labels=LABELS).html)[1] == ["0", name, *numbers]
    comparison = explainers.compare_models(net, network(), IMAGES, method="grad_cam")
    compared = cells(show(comparison, labels=LABELS).html)
    assert compared[1][:3] == ["0", *(f"{LABELS[each[0]]} (class {each[0]})" for each in comparison.predictions)]
    assert len(compared) > 3
    with pytest.raises(BadOption, match="takes only labels; colors would have no effect"):
        show(changed, labels=LABELS, colors="magma")
    with pytest.raises(TypeError, match="show takes explanations"):
        show([changed])


def test_results_with_charts_have_images_for_hosts_without_html(monkeypatch):
    net = network()
    found = evaluate(net, IMAGES, grad_cam(net, IMAGES, 1, layer="2"), target=1, metrics=["deletion"])
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == repr(found)
    assert bundle["text/html"] == found._repr_html_()
    drawn = np.asarray(Image.open(io.BytesIO(bundle["image/png"])).convert("RGB"))
    lines = re.findall(r'd="M([\d. L]+)"[^>]*stroke="#2f6fed"', bundle["text/html"])  # of the map, and its legend
    points = np.array([each.split() for line in lines for each in line.split(" L")], float)
    blue = np.argwhere((drawn == (47, 111, 237)).all(-1))[:, ::-1] / 2  # an image has two pixels per unit
    off = np.abs([blue.min(0) - points.min(0), blue.max(0) - points.max(0)])
    assert len(points) > 4 and off.max() < 12, "another line may cover an end"
    monkeypatch.setattr("explainers.display.charts.has_pillow", lambda: False)
    assert "image/png" not in found._repr_mimebundle_()


def test_a_log_has_a_chart_for_each_statistic_and_the_loss():
    net = network().train()
    with explainers.record_gradients(net) as log:
        for step in range(3):
            loss = net(IMAGES).square().mean()
            loss.backward()
            log.note(step, loss=loss.item())
            log.step()
    html = log._repr_html_()
    assert html.count("<svg") == len(log.statistics) + 1
    assert html.count(">log scale<") == 3
    assert repr(log).startswith("GradientLog(18 gradients of 6 tensors, steps 0 to 2, loss ") and len(repr(log)) < 120
    assert all(f"<title>{name}</title>" in html for name in log.names) and "18 gradients of 6 tensors." in html
    assert "0 gradients of 0 tensors." in GradientLog()._repr_html_()


def drawn(lines, **options):
    """Return the labels of the vertical axis from top to bottom, other texts, and the points of the lines."""
    (chart,) = line_chart("title", lines, **{"x": "step", "y": "", **options})
    html = chart.svg()
    texts = re.findall(r'<text x="([\d.-]+)" y="([\d.-]+)"(?: text-anchor="(\w+)")?[^>]*>(.*?)</text>', html)
    labels = [(float(y), float(x), text) for x, y, anchor, text in texts if anchor == "end" and float(x) < 200]
    labels = [(y, x, text) for y, x, text in labels if y < 170]
    assert all(x >= 7 * len(text) for _, x, text in labels), "no label starts left of the chart"
    paths = re.findall(r'<path d="M([^"]*)" fill="none" stroke="#[^>]*stroke-width="1.8"', html)
    points = [[tuple(map(float, point.split())) for point in path.split(" L")] for path in paths]
    chart.image()
    ends = [point for mark in chart.marks for point in getattr(mark, "points", ())]
    assert all(0 <= x <= 336 and 0 <= y <= chart.height for x, y in ends)
    return [text for *_, text in sorted(labels)], [text for *_, text in texts], points


def test_points_of_a_chart_are_at_their_positions():
    labels, texts, points = drawn({"x&y": [(0, 1), (1, math.nan), (2, 3), (3, 2)]}, y="loss")
    assert labels == ["3", "2.5", "2", "1.5", "1"]
    assert {"title", "loss", "step", "x&amp;y", "0", "3"} <= set(texts)
    single, line = sorted(points)
    assert [y for _, y in single] == [156, 156]
    assert [y for _, y in line] == [24, 90]
    assert line[-1][0] == 328
    assert line[0][0] - sum(x for x, _ in single) / 2 == pytest.approx(2 * (line[1][0] - line[0][0]), abs=0.2)
    assert line_chart("", {"none": [(0, math.nan)]}, x="", y="") == []
    assert "<b" not in line_chart("a<b", {"<b>": [(0, 1)]}, x="<b>", y="<b>")[0].svg()


def test_a_logarithmic_axis_says_so_and_what_it_leaves_out():
    """An axis without positive values is linear."""
    for values, note, labels in (
        ([100, 1e-2], None, ["100", "10", "1", "0.1", "0.01"]),
        ([1e-12, 1e3], None, ["1000", "1", "0.0001", "1e-08", "1e-12"]),
        ([0.5, 0.7], None, ["0.7", "0.5"]),
        ([1, 0, 1e-2], "Values of 0 are left out.", ["1", "0.1", "0.01"]),
        ([1, -1, 1e-2], "Values of 0 and below are left out.", ["1", "0.1", "0.01"]),
        ([0, 0], None, ["0"]),
        ([-1, 0], None, ["0", "-0.5", "-1"]),
    ):
        found, texts, points = drawn({"norm": list(enumerate(values))}, logarithmic=True)
        assert found == labels
        assert ("log scale" in texts) == (max(values) > 0)
        assert [text for text in texts if "left out" in text] == ([note] if note else [])
        assert len(points) == (2 if note else 1)  # the line is interrupted


def test_cells_of_tables():
    texts = {None: "", True: "True", 12345: "12,345", 0.123456: "0.1235", math.nan: "not measured", "<i>": "&lt;i&gt;"}
    assert cells(table_html(["a"], [[value] for value in texts]))[1:] == [[text] for text in texts.values()]
