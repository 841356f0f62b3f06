"""The page, the API, bundles and data sets report the probability that a network means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gradio.data_classes import FileData
from gradio.utils import get_upload_folder
from PIL import Image

import explainers
from saliscope import zoo
from saliscope.cli import commands
from saliscope.compute import engine, messages, model_cache
from saliscope.compute.answers import Answer
from saliscope.compute.bundles import record
from saliscope.compute.bundles import record as captions
from saliscope.compute.jobs import runs
from saliscope.compute.request import Request
from saliscope.compute.trust import messages as trust_messages
from saliscope.images.uploads import open_image
from saliscope.page.components import view
from saliscope.page.methods import guide
from saliscope.page.serving import endpoints
from saliscope.runs import finished_run as evaluation
from saliscope.runs import report, shards
from saliscope.runs import run as runs_of_datasets
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.settings import Settings as RunSettings

FILE = """
from torch import nn
import torch

SCORE = {score}
PREPROCESSING = {{"size": 32, "resize": 32, "mean": (0.5,) * 3, "std": (0.25,) * 3}}

def labels():
    return ["fox", "owl", "elk", "cow"][:{classes}]

def build():
    torch.manual_seed(3)
    head = nn.Linear(8, {classes})
    nn.init.normal_(head.weight, std=4.0)
    body = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*body, head{end})
"""
KINDS = {
    "classes": (None, 4, "", "softmax"),
    "labels": ("sigmoid", 4, "", "sigmoid"),
    "softmax": (None, 4, ", nn.Softmax(1)", "identity"),
    "logsoftmax": (None, 4, ", nn.LogSoftmax(1)", "softmax"),
    "sigmoids": (None, 4, ", nn.Sigmoid()", "identity"),
    "logit": (None, 1, "", "sigmoid"),
    "sigmoid": (None, 1, ", nn.Sigmoid()", "identity"),
    "regression": ("logit", 4, "", "logit"),
}
"""SCORE, the number of classes, the end of the network, and how its scores become probabilities."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, (score, classes, end, _) in KINDS.items():
        text = FILE.format(score=repr(score), classes=classes, end=end)
        (folder / f"ends_in_{name}.py").write_text(text, encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 255, (32, 32, 3), generator=generator, dtype=torch.uint8)
    for count in range(3):
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels.roll(count, 0).numpy()).save(folder / "images" / f"{count}.png")
    return folder


@pytest.fixture(autouse=True)
def offered(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALISCOPE_MODELS_DIR", str(files))
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    monkeypatch.setattr(model_cache, "loaded_models", model_cache.loaded_models.copy())
    monkeypatch.setattr(model_cache, "ready", ready := model_cache.threading.Event())
    ready.set()


def ask(files: Path, name: str, **more: Any) -> Answer:
    with runs.start(None) as run:
        steps = engine.explain(Request(str(files / "images" / "0.png"), model=f"ends_in_{name}", **more), run=run)
        return next(step for step in steps if isinstance(step, Answer))


def meant(files: Path, name: str, path: str = "0.png") -> torch.Tensor:
    """Return the probabilities by hand."""
    model = zoo.load_model(f"ends_in_{name}")
    with torch.no_grad():
        y = model.network(model.prepare(Image.open(files / "images" / path)))[0]
    return {"softmax": y.softmax(0), "sigmoid": y.sigmoid(), "identity": y, "logit": y}[KINDS[name][3]]


@pytest.mark.parametrize("name", KINDS)
def test_the_page_shows_the_probability_that_the_network_means(files: Path, name: str) -> None:
    answer, expected = ask(files, name), meant(files, name)
    loaded = answer.settings.loaded

    assert loaded.score == KINDS[name][3]
    assert [index for index, _ in answer.top] == expected.argsort(descending=True).tolist()
    assert [share for _, share in answer.top] == pytest.approx(expected.sort(descending=True).values.tolist(), rel=1e-5)
    assert answer.target == int(expected.argmax()) == answer.explanation.target[0]
    bars = view.classes(answer, 1)["items"]
    title = "".join(part if isinstance(part, str) else str(part) for part in messages.answer_parts(answer))
    caption = captions.caption(record.record(answer, {"h": 1, "w": 1, "dtype": "float32", "b64": ""}))[0]
    best = float(expected.max())
    if name == "regression":
        assert bars[0]["text"] == f"{best:.3g}" and f"(score {best:.3g})" in title and "%" not in title + caption
        assert all(0 <= each["share"] <= 1 for each in bars)
    else:
        assert [each["share"] for each in bars] == [share for _, share in answer.top] and "text" not in bars[0]
        assert f"{100 * best:.0f}%" in title and f"{100 * best:.0f}%" in caption


def test_the_api_and_curves_have_a_score_where_there_is_no_probability(files: Path) -> None:
    """EigenCAM needs no scores, so the engine computes them itself."""
    path = Path(get_upload_folder()) / "scored.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    copyfile(files / "images" / "0.png", path)
    for name, expected in (("labels", "probability"), ("regression", "output")):
        target = endpoints.explain(FileData(path=str(path)), f"ends_in_{name}")["target"]
        share, settings = pytest.approx(float(meant(files, name).max())), ask(files, name).settings
        known = {"probability": share} if name == "labels" else {"probability": None, "score": share}
        assert target == {**target, **known}
        measured: Any = SimpleNamespace(options={"score": settings.loaded.score})
        assert trust_messages.unit(settings, measured) == expected
    labels, other = ask(files, "labels"), ask(files, "labels", method="eigen_cam")
    assert other.explanation.scores is None and dict(other.top) == pytest.approx(dict(labels.top))


SENTENCES = {
    "softmax": ("logits, the class score before softmax", "the score (logit)", "logits"),
    "sigmoid": ("logits, the class score before the sigmoid", "the score (logit)", "logits"),
    "identity": ("probabilities, the output of the network", "the score (probability)", "probabilities"),
    "log": ("log-probabilities, the output of the network", "the score (log-probability)", "log-probabilities"),
    "logit": ("the unit of the score", "the score", "scores"),
    "detection": ("the detection score times the overlap with its box", "the score", "score"),
    "segmentation": ("logits, averaged over the pixels of the region", "the score (logit)", "logits"),
    "channel": ("the unit of the channel's output", "the mean of the channel", "units of the channel's output"),
}


def test_the_description_of_the_unit_follows_the_kind_of_the_score(files: Path) -> None:
    settings = ask(files, "classes").settings
    loaded = settings.loaded
    for kind, (values, score, plural) in SENTENCES.items():
        if kind in ("detection", "segmentation"):
            each = replace(settings, loaded=replace(loaded, model=replace(loaded.model, task=kind)))
        elif kind == "channel":
            each = replace(settings, unit=("0", 1))
        else:
            each = replace(settings, loaded=replace(loaded, score=kind))
        for method, words in (
            ("grad_cam", f"in {values}."),
            ("var_grad", f"the squared change of {score} per unit of input."),
            ("occlusion", f"in {plural} per pixel: "),
            ("internal_influence", f"the change of {score} per unit of the layer."),
            ("le_grad", f"in {plural} per unit of attention."),
            ("eigen_cam", "in the units of the layer output."),
        ):
            assert words in guide.unit(explainers.METHODS[method], each), (kind, method)


def run_of(files: Path, name: str, folder: Path, images: Path | None = None) -> shards.RunData:
    """Explain a folder of images with a network."""
    settings = RunSettings(model=f"ends_in_{name}", batch_size=2)
    job = runs_of_datasets.prepare(settings, str(images or files / "images"), folder / name)
    runs_of_datasets.run(job, decode=open_image, workers=0)
    return shards.open_run(folder / name)


@pytest.mark.parametrize("name", KINDS)
def test_data_sets_store_the_probability_that_the_network_means(files: Path, name: str, tmp_path: Path) -> None:
    data, is_score = run_of(files, name, tmp_path), name == "regression"
    assert data.manifest["score"] == KINDS[name][3]
    for row in data.table.to_pylist():
        expected = meant(files, name, Path(row["path"]).name)
        probability = None if is_score else pytest.approx(float(expected.max()), rel=1e-4)
        assert [each["index"] for each in row["top5"]] == expected.argsort(descending=True).tolist()
        assert row["probability"] == probability
        assert not is_score or {each["probability"] for each in row["top5"]} == {None}
        statistics = {each["name"]: each["value"] for each in row["statistics"]}
        assert statistics.get("probability") == probability
    found = evaluation.evaluate(FinishedRun(data, open_image), images=2, metrics=["deletion"], steps=2)
    word = {"identity": "output probability", "logit": "score"}.get(KINDS[name][3], f"{KINDS[name][3]} probability")
    assert found.metrics["deletion"]["unit"] == f"mean {word}"


def test_reports_have_the_unit_of_the_scores(files: Path, tmp_path: Path) -> None:
    """In the note about the differences between the maps of two classes; the class of an image is its folder."""
    for name, word in (("labels", "logit"), ("softmax", "probability"), ("regression", "score")):
        best = int(meant(files, name).argmax())
        for k in (1, 2):
            path = tmp_path / f"images of {name}" / ["fox", "owl", "elk", "cow"][(best + k) % 4] / "0.png"
            path.parent.mkdir(parents=True)
            copyfile(files / "images" / "0.png", path)
        data = run_of(files, name, tmp_path, images := tmp_path / f"images of {name}")
        model, out = zoo.load_model(f"ends_in_{name}"), tmp_path / "report.html"
        shown = report.Report(read=lambda path, images=images: open_image(str(images / path)), model=model)
        report.write(data, out, shown)
        text = out.read_text(encoding="utf-8")
        assert f"difference ({word}): red" in text and "nan%" not in text.lower(), name
        assert ("the scores of the network are not probabilities" in text) == (name == "regression"), name


def test_the_user_sets_the_score(files: Path) -> None:
    assert zoo.load_model("ends_in_classes", score="sigmoid").score_kind == "sigmoid"
    assert zoo.load_model("ends_in_labels", score="softmax").score_kind == "softmax"
    own = (files / "ends_in_labels.py").read_text()
    (files / "wrong.py").write_text(own.replace("'sigmoid'", "'sigmoids'"))
    with pytest.raises(zoo.ModelUnavailable, match="SCORE in wrong.py: score='sigmoids' .* Did you mean"):
        zoo.load_model("wrong")
    (files / "wrong.py").write_text((files / "ends_in_logit.py").read_text().replace("PREPROCESSING", "OTHER"))
    with pytest.warns(UserWarning, match="one output, whose sigmoid is reported"):
        zoo.load_model("wrong", size=32)
    (files / "wrong.py").unlink()


def test_the_command_line_sets_the_score(files: Path, tmp_path: Path) -> None:
    arguments = ["explain", str(files / "images"), "--out", str(tmp_path / "run"), "--model", "ends_in_classes"]
    with pytest.raises(SystemExit):
        commands.main([*arguments, "--score", "sigmoid"])
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["score"] == "sigmoid" and manifest["settings"]["own"] == {"score": "sigmoid"}
