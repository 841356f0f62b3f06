"""The answers of a report: each planted fault is named, and nothing else; without a fault, none is claimed."""

from __future__ import annotations

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
from saliscope.runs import report
from saliscope.runs.report.answers import Answer
from saliscope.runs.report.content import analyze
from saliscope.runs.report.context import Report
from saliscope.runs.rows import SCHEMA
from saliscope.runs.run_data import RunData
from saliscope.zoo.model import Model, Preparation
from tests.saliscope.runs.test_dataset_report import page_text
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
    names: Sequence[str] = NAMES,
) -> RunData:
    """Return a run in which the predicted class has the probability 1 - `unsure`, and the others have the rest."""
    rows = []
    for k, (label, prediction) in enumerate(zip(labels, predictions, strict=True)):
        name = None if label is None else names[label]
        if k in errors:
            rows.append({"path": path(k), "label": name, "label_index": label, "error": "The file is cut off."})
            continue
        rest = float(np.broadcast_to(unsure, len(labels))[k])
        p = np.full(len(names), rest / max(1, len(names) - 1))
        p[prediction] = 1 - rest
        top = [{"class": names[c], "index": c, "probability": float(p[c])} for c in np.argsort(-p, kind="stable")[:5]]
        entry = {"path": path(k), "label": name, "label_index": label, "probability": float(p[prediction])}
        entry |= {"label_probability": None if label is None else float(p[label]), "top5": top, "score": 1.0}
        entry |= {"prediction": names[prediction], "prediction_index": prediction, "findings": [], "finding_texts": []}
        entry |= {"target": names[prediction], "target_index": prediction}
        entry |= {"correct": None if label is None else label == prediction}
        entry |= {"map": np.ones((2, 2), "<f2").tobytes(), "map_height": 2, "map_width": 2}
        rows.append(entry)
    settings = {"model": "toy", "method": "grad_cam", "layer": None, "target": "predicted", "options": {}}
    manifest = {"settings": settings, "source": "here", "classes": list(names)}
    return store_rows(folder, manifest, pa.Table.from_pylist(rows, SCHEMA))


def answers(data: RunData, given: Report | None = None) -> list[Answer]:
    return analyze(data, given or Report(read=lambda path: None)).answers.all


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
    text = page_text(report.write(data, tmp_path / "r.html", report.Report(read=lambda path: None)))
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


def test_a_folder_with_a_low_accuracy_is_found(tmp_path):
    labels = np.arange(320) % 4
    batch = np.arange(320) // 4 % 4
    predictions = np.where((batch == 2) & (np.arange(320) % 3 > 0), (labels + 2) % 4, labels)
    data = made_run(tmp_path, labels, predictions, path=folder_of, unsure=0.3)
    found = faults(data)[0]
    assert found.kind == "slice" and "in folders named batch2 is " in found.problem and "100% of other" in found.problem
    assert all(batch[row] == 2 for row in found.rows)
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


@pytest.mark.parametrize("labels", [[None] * 40, [0] * 40, [0]])
def test_little_is_said_without_labels_and_with_one_class(tmp_path, labels):
    data = made_run(tmp_path, labels, [0] * len(labels))
    assert not answers(data)
    text = page_text(report.write(data, tmp_path / "r.html", report.Report(read=lambda path: None)))
    assert f"No fault was found in {len(labels)} image" in text
    assert ("Accuracy was not tested" in text) == (labels[0] is None)


def test_names_and_folders_are_escaped_and_images_are_shown(tmp_path):
    labels = np.arange(120) % 4
    names = ["<b>cat</b>", "dog", "owl", "fox"]
    data = made_run(tmp_path, labels, np.array([1, 0, 2, 3])[labels], names=names)
    page = report.write(data, tmp_path / "r.html", report.Report(read=lambda path: Image.new("RGB", (16, 16), "green")))
    text = page.read_text("utf-8")
    assert "<b>cat" not in text and "<b>cat</b> and dog are exchanged" in page_text(page)
    first = text[text.index('class="answer"') :]
    assert first[: first.index("</article>")].count("data-open") == 6
    assert 'href="#confusion-' in first and 'id="confusion-1"' in text
