"""The answers of a report: each planted fault is named, and nothing else. No sentence claims what was not tested."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from saliscope.errors import Refused
from saliscope.runs.compare import compare as write
from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.label_errors import estimate_random, find_label_errors
from saliscope.runs.report.answers import Answer, Answers
from saliscope.runs.report.context import Page, Report
from saliscope.runs.rows import SCHEMA, RunData
from saliscope.zoo.model import Model, Preparation
from tests.saliscope.runs.test_compare import finished
from tests.saliscope.runs.test_dataset_report import TOY, page_of, page_text, row
from tests.support.stored_runs import store_rows

NAMES = ["cat", "dog", "owl", "fox"]


def made_run(
    folder: Path,
    labels: Sequence[int | None],
    predictions: Sequence[int],
    *,
    path: Callable[[int], str] = "{:04d}.jpg".format,
    unsure: float | np.ndarray = 0.03,
    errors: Sequence[int] = (),
    error: Callable[[int], str] = "The file is cut off.".format,
    names: Sequence[str] = NAMES,
) -> RunData:
    """Return a run in which the predicted class has the probability 1 - `unsure`, and the others have the rest."""
    rows = []
    for k, (label, prediction) in enumerate(zip(labels, predictions, strict=True)):
        name = None if label is None else names[label]
        if k in errors:
            rows.append({"path": path(k), "label": name, "label_index": label, "error": error(k)})
            continue
        rest = float(np.broadcast_to(unsure, len(labels))[k])
        p = np.full(len(names), rest / max(1, len(names) - 1))
        p[prediction] = 1 - rest
        rows.append(row(path(k), name, label, prediction, 1 - rest, np.ones((2, 2)), names, p))
    manifest = {"settings": TOY, "source": "here", "classes": list(names)}
    return store_rows(folder, manifest, pa.Table.from_pylist(rows, SCHEMA))


def answers(data: RunData, given: Report | None = None) -> list[Answer]:
    return Answers(Page(data, given or Report(read=lambda path: None))).all


def faults(data: RunData, given: Report | None = None) -> list[Answer]:
    return [each for each in answers(data, given) if each.is_fault]


def natural(labels: np.ndarray, rate: float, seed: int = 0) -> np.ndarray:
    """Return predictions that are wrong at this rate: a cat for a dog, and so on."""
    random = np.random.default_rng(seed)
    return np.where(random.random(len(labels)) < rate, labels ^ 1, labels)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.35])
def test_no_fault_is_claimed_without_one(tmp_path, rate):
    """Frequent confusions of two classes are an observation."""
    labels = np.arange(400) % 4
    data = made_run(tmp_path, labels, natural(labels, rate), unsure=max(rate, 0.01), path="b{0}/{0:04d}.jpg".format)
    assert not faults(data)
    assert [each.kind for each in answers(data)] == ["confusion"] * (rate > 0)
    text = page_text(page_of(data, tmp_path))
    assert "No fault was found in 400 images" in text and "Wrong labels: at most" in text


def test_exchanged_names_are_found(tmp_path):
    """All names but one in another order are one fault, and two exchanged names another."""
    labels = np.arange(120) % 4
    swapped = np.array([1, 0, 2, 3])[labels]
    (found,) = faults(made_run(tmp_path, labels, swapped))
    assert found.kind == "names" and "cat and dog are exchanged: 30 of 30 images" in found.problem
    assert found.count == 60 and all(labels[row] < 2 for row in found.rows)
    (found,) = faults(made_run(tmp_path, labels, np.array([1, 2, 0, 3])[labels]))
    assert "3 classes" in found.problem
    few = np.arange(8) % 4
    assert not faults(made_run(tmp_path, few, np.array([1, 0, 2, 3])[few]))  # two images of each class prove nothing


def folder_of(k: int) -> str:
    return f"{NAMES[k % 4]}/batch{k // 4 % 4}/{k:04d}.jpg"


def half_of(k: int) -> str:
    return f"all/{k // 16 % 2}/batch{k // 4 % 4}/{k:04d}.jpg"


def test_a_folder_with_a_low_accuracy_is_found(tmp_path):
    labels = np.arange(320) % 4
    batch = np.arange(320) // 4 % 4
    predictions = np.where((batch == 2) & (np.arange(320) % 3 > 0), (labels + 2) % 4, labels)
    data = made_run(tmp_path, labels, predictions, path=folder_of, unsure=0.3)
    found = faults(data)[0]
    assert found.kind == "slice" and "in folders named batch2 is " in found.problem and "100% of other" in found.problem
    assert all(batch[row] == 2 for row in found.rows)
    # One batch of one folder: neither the folder, of which it is a quarter, nor the batches with its name.
    predictions = np.where((np.arange(320) // 4 % 8 == 6) & (np.arange(320) % 3 > 0), (labels + 2) % 4, labels)
    (found,) = faults(made_run(tmp_path, labels, predictions, path=half_of, unsure=0.3))
    assert "in the folder all/1/batch2 is " in found.problem
    # A class with a low accuracy is not a folder with a fault, although it has a folder of its own.
    predictions = np.where((labels == 2) & (np.arange(320) % 3 > 0), 3, labels)
    assert not faults(made_run(tmp_path, labels, predictions, path=folder_of, unsure=0.3))


def test_blank_images_of_a_folder_are_named(tmp_path):
    labels = np.arange(320) % 4
    predictions = np.where(np.arange(320) // 4 % 4 == 2, 0, labels)
    black = Report(read=lambda path: Image.new("RGB", (8, 8)))
    assert "blank" in faults(made_run(tmp_path, labels, predictions, path=folder_of, unsure=0.3), black)[0].problem


def test_unreadable_images_are_counted_by_folder(tmp_path):
    labels = np.arange(320) % 4
    inside = [k for k in range(320) if k // 4 % 4 == 1]
    (found,) = faults(made_run(tmp_path, labels, labels, path=folder_of, errors=inside))
    assert found.kind == "unreadable" and "80 of 80 images in folders named batch1 cannot be read" in found.problem
    (found,) = answers(made_run(tmp_path, labels, labels, path=folder_of, errors=[5]))
    assert not found.is_fault and "1 of 320 images of the run cannot be read: The file is cut off." in found.problem
    reasons = [*["It is cut off."] * 5, *["It is empty."] * 3, "It is a text.", "It is a video.", "It is a song."]
    (found,) = answers(made_run(tmp_path, labels, labels, errors=range(11), error=reasons.__getitem__))
    assert "read: It is cut off (5); It is empty (3); It is a text (1); other reasons (2)." in found.problem
    with pytest.raises(Refused, match="could be read"):
        answers(made_run(tmp_path, [0, 1], [0, 1], errors=[0, 1]))


def test_wrong_labels_are_found_and_natural_mistakes_are_not(tmp_path):
    """Half of the images are difficult, and the network knows it; 6% of all labels are random in the first run."""
    random = np.random.default_rng(3)
    unsure = np.where(np.arange(800) // 4 % 2, 0.4, 0.001)
    truth = np.arange(800) % 4
    predictions = np.where(random.random(800) < unsure, (truth + random.integers(1, 4, 800)) % 4, truth)
    wrong = random.random(800) < 0.06
    labels = np.where(wrong, (truth + random.integers(1, 4, 800)) % 4, truth)
    (found,) = faults(made_run(tmp_path, labels, predictions, unsure=unsure))
    count = int(re.search(r"About (\d+) labels", found.problem)[1])
    assert found.kind == "labels" and count == pytest.approx(wrong.sum(), abs=15)
    assert all(wrong[row] for row in found.rows) and len(found.rows) == 6
    assert not faults(made_run(tmp_path, truth, predictions, unsure=unsure))
    data = made_run(tmp_path, labels, predictions, unsure=unsure)
    errors = find_label_errors(data, Columns(data))
    for classes, rows in ((4, 100), (3, 800), (4, 99), (2, 800)):
        found = estimate_random(errors, Columns(data), classes, np.arange(800) >= rows)
        assert (found is not None) == (classes > 2 and rows > 99), "fewer classes or rows prove nothing"


class Brightest(nn.Module):
    """Predicts the brightest channel; the channels are expected as BGR if `reverse`."""

    def __init__(self, reverse: bool) -> None:
        super().__init__()
        self.reverse = reverse

    def forward(self, images: Tensor) -> Tensor:
        return (images.flip(1) if self.reverse else images).mean((2, 3))


def test_a_wrong_preprocessing_is_found(tmp_path):
    """The channels are exchanged, so that red is predicted as blue; the names of both are not exchanged."""
    labels = np.arange(150) % 3
    names, colors = ["red", "green", "blue"], np.eye(3) * 200
    images = {f"{k:04d}.jpg": Image.new("RGB", (8, 8), tuple(map(int, colors[labels[k]]))) for k in range(150)}
    given = Preparation(8, 8, mean=(0.5,) * 3, std=(0.5,) * 3)
    for reverse in (True, False):
        model = Model("brightest", Brightest(reverse).eval(), names, given, score="logit")
        with torch.inference_mode():
            scores = torch.cat([model.network(model.prepare(image)) for image in images.values()])
        data = made_run(tmp_path, labels, scores.argmax(1).tolist(), names=names)
        found = faults(data, Report(images.get, model))
        assert [each.kind for each in found] == ["preprocessing"] * reverse
        if reverse:
            assert "BGR" in found[0].problem and "100% of 96 images" in found[0].problem
            assert all(labels[row] != 1 for row in found[0].rows)
            asked: list[bool] = []
            stopped = Report(images.get, model, go_on=lambda asked=asked: bool(asked.append(True)))
            assert "preprocessing" not in {each.kind for each in faults(data, stopped)}
            assert 0 < len(asked) < 20, "other preprocessings are not predicted any more"


def test_names_and_folders_are_escaped_and_images_are_shown(tmp_path):
    labels = np.arange(120) % 4
    names = ["<b>cat</b>", "dog", "owl", "fox"]
    data = made_run(tmp_path, labels, np.array([1, 0, 2, 3])[labels], names=names)
    page = page_of(data, tmp_path, read=lambda path: Image.new("RGB", (16, 16), "green"))
    text = page.read_text("utf-8")
    assert "<b>cat" not in text and "<b>cat</b> and dog are exchanged" in page_text(page)
    first = text[text.index('class="answer"') :]
    assert first[: first.index("</article>")].count("data-open") == 6
    assert 'href="#confusion-' in first and 'id="confusion-1"' in text


# Sentences claim only what was tested

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
    manifest = {"settings": TOY, "source": "here", "classes": ["cat", "dog"]}
    if not probabilities:
        manifest["score"] = "logit"
    return store_rows(folder, manifest, pa.Table.from_pylist(rows, SCHEMA))


@pytest.mark.parametrize("labels", ["known", "other", "none"])
def test_small_reports_claim_nothing(tmp_path, labels):
    for count, probabilities, classes in itertools.product((1, 7), (True, False), (1, 2)):
        values = ZERO if (count == 7) ^ probabilities ^ (classes == 2) else CORNER
        data = run_of(tmp_path, count, labels=labels, probabilities=probabilities, classes=classes, values=values)
        camera = {"camera": pa.array([f"c{k % 2}" for k in range(count)])}
        out = page_of(data, tmp_path, metadata=camera)
        text = page_text(out)
        assert not unfounded(out)
        maps, largest = (0, 0) if values is ZERO else (count, -(-count // classes))
        parts = [
            "Shortcuts were not tested: ", f"the largest class has {largest} of {maps} map",
            f"and no class has more than {largest}.", f"Unreadable 0 of {count} image", f"No findings: {count} map",
        ]  # fmt: skip
        if labels == "known":
            parts += [f"All predictions of {count} image", "Slices were not tested: camera: "]
            parts.append(f"Label errors were not {'tested' if probabilities else 'estimated'}")
            if probabilities:
                assert ("Whether the network is calibrated was not tested" in text) == (count == 1)
        else:
            parts.append(f"not measured: {'no image has a label' if labels == 'none' else 'no label is a class'}")
            parts.append("Accuracy was not tested")
            assert "correct" not in text and ("Without labels" in text) == (labels == "none")
        if values is ZERO:
            parts.append("not measured: no map has any relevance")
            assert "% of the relevance is" not in text
        assert not [part for part in parts if part not in text]


def test_label_errors_need_an_average_of_several_images(tmp_path):
    """One dog among cats: cats cannot be called dogs by the average of a single image, and the dog can be a cat."""
    rows = [row(f"{k}.jpg", "cat", 0, 0, 0.9, CORNER) | {"label_probability": 0.9} for k in range(8)]
    rows[0] = row("0.jpg", "dog", 1, 1, 0.9, CORNER) | {"label_probability": 0.9}
    rows[1] = row("1.jpg", "cat", 0, 1, 0.95, CORNER) | {"label_probability": 0.05}
    data = store_rows(tmp_path, {"settings": {}}, pa.Table.from_pylist(rows, SCHEMA))
    found = find_label_errors(data, Columns(data))
    assert (found.count, found.tested, found.averages, found.sizes) == (8, 1, 1, [7, 1])
    assert 1 not in found.rows.tolist()


@pytest.mark.parametrize("labels", [True, False])
def test_small_comparisons_claim_nothing(tmp_path, labels):
    own, kinds = ("cat", 0) if labels else (None, None), ((CORNER, CORNER, 1), (ZERO, CORNER, 0), (CORNER, EDGE, 0))
    for count, (values, other, predicted) in itertools.product((1, 3, 7), kinds):
        a, b = (
            finished(tmp_path / name, [row(f"{k}.jpg", *own, at, 0.9, each, sha256=str(k)) for k in range(count)])
            for name, at, each in (("a", 0, values), ("b", predicted, other))
        )
        page = write(a, b, tmp_path / "c.html").page
        text = page_text(page)
        assert not unfounded(page) and "not significant" not in text and "95% interval 1.00 to 1.00" not in text
        assert ("significant" in text) == bool(labels and predicted and count == 7)
        assert ("(a map is zero everywhere)" in text) == (values is ZERO)
        assert (f"No prediction changed in {count} image" in text) == (not predicted)
