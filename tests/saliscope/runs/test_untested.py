"""No sentence of a report or a comparison claims an absence that was not tested."""

from __future__ import annotations

import html
import itertools
import re
from pathlib import Path

import pyarrow as pa
import pytest

from saliscope.runs import report
from saliscope.runs.compare import write
from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.label_errors import LEAST, find_label_errors
from saliscope.runs.rows import SCHEMA
from saliscope.runs.run_data import RunData
from tests.saliscope.runs.test_compare import finished
from tests.saliscope.runs.test_dataset_report import page_text, row
from tests.support.stored_runs import store_rows

CORNER, EDGE, ZERO = [[4, 1], [0, 0]], [[0, 0], [3, 3]], [[0, 0], [0, 0]]
ABSENT = re.compile(r"\b(no|none|never|nothing|all|0 of|0%|not significant\w*)\b|^0\b", re.I)
"""What claims an absence."""
TESTED = re.compile(
    r"not (tested|measured|estimated|computed|compared|shown)|\bof \d|\(p [=<]|\d (image|map|prediction|class|slice)",
    re.I,
)
"""What says that nothing was tested, or how much was."""
DEFINITION = re.compile(r"means? over all maps|have no meaning|^none: the scores|^Share of all|^All images: ")
"""Sentences about the page, which claim nothing about the images."""


def sentences(path: Path) -> list[str]:
    """Return the sentences of a page, without its data and scripts."""
    text = re.sub(r"<(script|style|select)\b.*?</\1>", " ", path.read_text(encoding="utf-8"), flags=re.S)
    blocks = re.split(r"</?(?:p|li|td|th|dd|dt|h[1-6]|div|figcaption|button|label|span|option)\b[^>]*>", text)
    plain = [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", block)).split()) for block in blocks]
    return [each for block in plain for each in re.split(r"(?<=[.!?]) +(?=[A-Z])", block) if each]


def unfounded(path: Path) -> list[str]:
    """Return the sentences that claim an absence without saying what was tested."""
    found = [each for each in sentences(path) if ABSENT.search(each) and len(re.findall(r"[a-z]+", each, re.I)) > 2]
    return [each for each in found if not TESTED.search(each) and not DEFINITION.search(each)]


def run_of(
    folder: Path, count: int, *, labels: str, probabilities: bool = True, classes: int = 2, values=CORNER
) -> RunData:
    """Images of some classes in turn, all predicted correctly if labeled. `labels`: known, other or none."""
    rows = []
    for k in range(count):
        index = k % classes
        name, own = {"known": (("cat", "dog")[index], index), "other": ("fox", None), "none": (None, None)}[labels]
        entry = row(f"{k:02d}.jpg", name, own, index, 0.6 + 0.01 * k, values if index else values[::-1])
        if probabilities:
            entry["label_probability"] = entry["probability"] if own is not None else None
        else:
            entry |= {"probability": None, "label_probability": None}
            entry["top5"] = [each | {"probability": None} for each in entry["top5"]]
        rows.append(entry)
    settings = {"model": "toy", "method": "grad_cam", "layer": None, "target": "predicted", "options": {}}
    manifest = {"settings": settings, "source": "here", "classes": ["cat", "dog"]}
    if not probabilities:
        manifest["score"] = "logit"
    return store_rows(folder, manifest, pa.Table.from_pylist(rows, SCHEMA))


@pytest.mark.parametrize("labels", ["known", "other", "none"])
def test_small_reports_claim_nothing(tmp_path, labels):
    for count, probabilities, classes, values in itertools.product((1, 7), (True, False), (1, 2), (CORNER, ZERO)):
        data = run_of(tmp_path, count, labels=labels, probabilities=probabilities, classes=classes, values=values)
        camera = {"camera": pa.array([f"c{k % 2}" for k in range(count)])}
        out = report.write(data, tmp_path / "r.html", report.Report(read=lambda path: None, metadata=camera))
        text = page_text(out)
        assert not unfounded(out)
        maps, largest = (0, 0) if values is ZERO else (count, -(-count // classes))
        parts = [
            "Shortcuts were not tested: ", f"the largest class has {largest} of {maps} map",
            f"and no class has more than {largest}.", f"Unreadable 0 of {count} image", f"No findings: {count} map",
        ]  # fmt: skip
        if labels == "known":
            parts += [f"All predictions of {count} image", "Slices were not tested: camera: "]
            if not (probabilities and count >= 2 * LEAST and classes > 1):
                parts.append(f"Label errors were not {'tested' if probabilities else 'estimated'}")
            if probabilities:
                assert ("Whether the network is calibrated was not tested" in text) == (count == 1)
        else:
            parts.append(f"not measured: {'no image has a label' if labels == 'none' else 'no label is a class'}")
            assert "correct" not in text and ("Without labels" in text) == (labels == "none")
        if values is ZERO:
            parts.append("not measured: no map has any relevance")
            assert "% of the relevance is" not in text
        assert not [part for part in parts if part not in text]


def test_enough_images_are_tested_and_counted(tmp_path):
    data = run_of(tmp_path, 24, labels="known")
    out = report.write(data, tmp_path / "r.html", report.Report(read=lambda path: None))
    assert not unfounded(out)
    text = page_text(out)
    assert "that a perfectly calibrated network has" in text
    assert "0 of 24 tested images may have a wrong label, of 24 labeled images" in text
    assert "compared with the 2 of 2 classes with 5 or more labeled images" in text
    one = report.write(
        run_of(tmp_path, 24, labels="known", classes=1), tmp_path / "one.html", report.Report(read=lambda path: None)
    )
    assert "Shortcuts were not tested" in page_text(one) and "Label errors were not tested" in page_text(one)


def test_label_errors_need_an_average_of_several_images(tmp_path):
    """One dog among cats: cats cannot be called dogs by the average of a single image, and the dog can be a cat."""
    rows = [row(f"{k}.jpg", "cat", 0, 0, 0.9, CORNER) | {"label_probability": 0.9} for k in range(8)]
    rows[0] = row("0.jpg", "dog", 1, 1, 0.9, CORNER) | {"label_probability": 0.9}
    rows[1] = row("1.jpg", "cat", 0, 1, 0.95, CORNER) | {"label_probability": 0.05}
    data = store_rows(tmp_path, {"settings": {}}, pa.Table.from_pylist(rows, SCHEMA))
    found = find_label_errors(data, Columns(data))
    assert (found.count, found.tested, found.averages, found.sizes) == (8, 1, 1, [7, 1])
    assert 1 not in found.rows.tolist()


def comparison(tmp_path: Path, count: int, *, labels: bool, values=CORNER, other=CORNER, predicted: int = 0) -> Path:
    own = ("cat", 0) if labels else (None, None)
    a, b = (
        finished(tmp_path / name, [row(f"{k}.jpg", *own, at, 0.9, map, sha256=str(k)) for k in range(count)])
        for name, at, map in (("a", 0, values), ("b", predicted, other))
    )
    return write(a, b, tmp_path / "c.html").page


@pytest.mark.parametrize("labels", [True, False])
def test_small_comparisons_claim_nothing(tmp_path, labels):
    kinds = ({}, {"predicted": 1}, {"values": ZERO}, {"other": EDGE})
    for count, options in itertools.product((1, 3, 7), kinds):
        page = comparison(tmp_path, count, labels=labels, **options)
        assert not unfounded(page)
        text = page_text(page)
        tested = labels and "predicted" in options and count == 7
        assert "not significant" not in text and ("significant" in text) == tested
        if "values" in options:
            assert "(a map is zero everywhere)" in text and "–" in text
        if "predicted" in options:
            assert f"none of {count} image{'s' * (count > 1)} has the same prediction" in text
        else:
            assert f"No prediction changed in {count} image" in text
        assert "95% interval 1.00 to 1.00" not in text
