"""Results of metrics, experiments and training in notebooks: their numbers are in the HTML, which is safe."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from explainers import (
    compare_models,
    describe,
    evaluate,
    grad_cam,
    intervene,
    randomization_test,
    recommend,
    record_gradients,
)
from explainers.display.charts import line_chart
from explainers.display.tables import table_html
from explainers.training.log import GradientLog


def network() -> nn.Sequential:
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3)).eval()


IMAGES = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))


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
    assert html.count("<path") == 2 + len(found.control_curves["deletion"])
    for line in str(found).splitlines():
        assert line in html


def test_a_recommendation_has_its_rows_and_reasons():
    net = network()
    found = replace(recommend(net, IMAGES, target=1, methods=["grad_cam"], layers=["0", "2"]), refused={"rise": "slow"})
    rows = cells(found._repr_html_())
    assert [row[1] for row in rows[1 : len(found) + 1]] == [row.name for row in found.rows]
    assert rows[-1] == ["rise", "slow"]
    assert str(found).startswith("\n".join(found.sentences()))


def test_a_randomization_test_has_its_steps():
    found = randomization_test(network(), IMAGES, "grad_cam", target=1, layer="2")
    rows = cells(found._repr_html_())[1:]
    assert [row[1] for row in rows] == list(found.steps)
    assert rows[0][2] == f"{float(found.correlation.double().nanmean(1)[0]):.4g}"


def test_experiments_have_their_numbers():
    net = network()
    layers = describe(net, IMAGES[:1])
    described = {row[0]: row for row in cells(layers._repr_html_())}
    assert described["0"][2:5] == ["1x4x24x24", "112", f"{4 * 24 * 24 * 27:,}"]
    changed = intervene(net, IMAGES, "2", channels=[0], value=0)
    first = changed.top()[0][0]
    assert cells(changed._repr_html_())[1] == ["0", str(first[0]), *(f"{v:.4g}" for v in (*first[1:], first.change))]
    compared = cells(compare_models(net, network(), IMAGES, method="grad_cam")._repr_html_())
    assert compared[1][0] == "0"
    assert len(compared) > 3


def test_a_log_has_a_chart_for_each_statistic_and_the_loss():
    net = network().train()
    with record_gradients(net) as log:
        for step in range(3):
            loss = net(IMAGES).square().mean()
            loss.backward()
            log.note(step, loss=loss.item())
            log.step()
    html = log._repr_html_()
    assert html.count("<svg") == len(log.statistics) + 1
    assert all(f"<title>{name}</title>" in html for name in log.names)
    assert "18 gradients of 6 tensors." in html
    assert "0 gradients of 0 tensors." in GradientLog()._repr_html_()


def test_points_of_a_chart_are_at_their_positions():
    chart = line_chart("a<b", {"x&y": [(0, 1), (1, math.nan), (2, 3), (3, 2)]}, x="step", y="loss")
    assert "a&lt;b" in chart
    assert "x&amp;y" in chart
    (path,) = re.findall(r'<path d="(M[^"]*)" fill="none" stroke="#', chart)
    assert path == "M48.0 156.0 M234.7 24.0 L328.0 90.0"
    powers = line_chart("", {"norm": [(0, 100), (1, 0), (2, 1e-2)]}, x="", y="", logarithmic=True)
    assert ">1e+02<" in powers
    assert ">0.01<" in powers
    assert "M48.0 24.0 M328.0 156.0" in powers
    assert line_chart("", {"none": [(0, math.nan)]}, x="", y="") == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "True"),
        (12345, "12,345"),
        (0.123456, "0.1235"),
        (math.nan, "not measured"),
        ("<i>", "&lt;i&gt;"),
    ],
)
def test_cells_of_tables(value, text):
    assert cells(table_html(["a"], [[value]]))[1] == [text]
