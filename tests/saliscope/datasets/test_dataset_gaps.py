"""Edge cases of runs: names, labels, damaged files, other folders, and non-finite values."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from saliscope.datasets import report, run
from saliscope.datasets.finished.evaluation import evaluate
from saliscope.datasets.finished.finished_run import FinishedRun
from saliscope.datasets.items import read
from saliscope.datasets.report.links import Links
from saliscope.datasets.settings import Classes, Settings
from saliscope.datasets.shards import open_run
from saliscope.datasets.sources import list_items
from saliscope.errors import Refused
from saliscope.zoo import load_model
from saliscope.zoo.model import Model, Preparation
from tests.saliscope.datasets.test_dataset_cli import command
from tests.saliscope.datasets.test_dataset_report import data_of, page_text
from tests.saliscope.datasets.test_dataset_sources import tar

__all__ = ["command"]  # a fixture

NAMES = ["crane", "crane", "c", "d"]


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


class Small(nn.Module):
    """Returns NaN for a white image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.conv(x).relu().mean((2, 3)))
        white = x.amin((1, 2, 3)) > 0.99
        return scores * torch.where(white, torch.nan, 1.0)[:, None]


def small(labels: list[str] = NAMES, network: nn.Module | None = None) -> Model:
    preparation = Preparation(24, 24, mean=(0.0,) * 3, std=(1.0,) * 3)
    return Model("small", (network or Small()).eval(), labels, preparation)


@pytest.fixture
def model() -> Model:
    return small()


def image(path: Path, seed: int, white: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = torch.randint(0, 200, (24, 24, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    Image.fromarray((noise * 0 + 255 if white else noise).numpy()).save(path)


# Labels


def test_labels_match_classes_by_name() -> None:
    """ImageNet has Cardigan, a dog, and cardigan, a garment."""
    imagenet, grades = load_model("efficientnet_lite0").labels, ["1.0", "2.0", "1.5", "x"]
    for names, expected in (
        (imagenet, {"Cardigan": 264, "cardigan": 474, "CARDIGAN": None}),
        (["A", "a", "b"], {"A": 0}),
        (grades, {"1.0": 0, "2.0": 1, "1.5": 2, "3": 3, "3.0": 3, "9" * 5000: None}),
        (["boot, black", "boot, brown"], {"boot": None, "boot, red": None, "black": 0, "boot, brown": 1}),
        (["crane", "tabby, tabby cat", "crane"], {"crane": None, "Tabby_Cat": 1, "2": 2, "2.5": None, "3": None}),
        (imagenet, {"n01440764": 0, "n02106662": 235, "n15075141": 999, "n00000000": None}),
        (["a", "b"], {"n01440764": None}),
        (["tench", "x"], {"tench, Tinca tinca": 0}),
    ):
        known = Classes(names)
        assert {label: known.find(label) for label in expected} == expected
    assert all(Classes(imagenet).find(name) == index for index, name in enumerate(imagenet))


def test_odd_names_of_files_and_labels(tmp_path: Path) -> None:
    """A path may look like a URL, a label may be invalid Unicode, and folders in tars are labels."""
    for name in ("a::b.jpg", "dd::ee/c.jpg"):
        image(tmp_path / name, 0)
        (item,) = list_items((tmp_path / name).parent).items[:1]
        assert decode(read(item)).size == (24, 24)
    (tmp_path / "list.jsonl").write_text('{"path": "a::b.jpg", "label": "\\ud800x"}\n', encoding="utf-8")
    assert list_items(tmp_path / "list.jsonl").items[0].label == "\\ud800x"
    for folder in ("tars/x", "tars/y"):
        (tmp_path / folder).mkdir(parents=True)
    tar(tmp_path / "tars/x/s-0.tar", dict.fromkeys(("a/1.jpg", "b/2.jpg", "__MACOSX/d/k.jpg"), b"abc"))
    tar(tmp_path / "tars/y/s-1.tar", {"b/1.jpg": b"abc"})
    found = {item.path: item.label for item in list_items(tmp_path / "tars").items}
    assert found == {"x/s-0.tar/a/1.jpg": "a", "x/s-0.tar/b/2.jpg": "b", "y/s-1.tar/b/1.jpg": "b"}


# Resumed runs


def prepare_run(tmp_path: Path, model: Model, **settings: Any) -> run.Job:
    combined = Settings(**{"batch_size": 2, "shard": 4, "layer": "conv", **settings})
    return run.prepare(combined, str(tmp_path / "pictures"), tmp_path / "run", model=model)


def images(tmp_path: Path, count: int = 6, white: bool = False) -> None:
    for k in range(count):
        image(tmp_path / "pictures" / str(k % 2) / f"{k}.png", k, white and k == 0)


def test_rows_of_long_methods_do_not_depend_on_the_speed(tmp_path: Path, model: Model, monkeypatch: Any) -> None:
    """The rows per pass do not depend on its duration, because another number would change the last bits."""
    images(tmp_path, 2)
    found = []
    for out, slow in (("quick", 1.0), ("slow", 1000.0)):
        monkeypatch.setattr("explainers.passes.batches.batch_size.SECONDS", 0.5 / slow)
        settings_ = Settings(method="smooth_grad", options={"samples": 40}, batch_size=2)
        job = run.prepare(settings_, str(tmp_path / "pictures"), tmp_path / out, model=model)
        run.run(job, decode=decode, workers=0)
        found.append([{**row, "seconds": None} for row in open_run(tmp_path / out).table.to_pylist()])
    assert found[0] == found[1]


def test_other_class_names_and_images_are_detected(tmp_path: Path, model: Model) -> None:
    images(tmp_path)
    prepare_run(tmp_path, model)
    with pytest.raises(Refused, match="labels_and_preprocessing"):
        prepare_run(tmp_path, small(["b", "a", "c", "d"]))
    image(tmp_path / "pictures" / "0" / "new.png", 9)
    with pytest.raises(Refused, match=r"images: '6 images \(\w+\)' in the folder, '7 images \(\w+\)' now"):
        prepare_run(tmp_path, model)


def test_folder_of_a_run_killed_before_its_settings_can_be_used(tmp_path: Path, model: Model) -> None:
    images(tmp_path)
    work = tmp_path / "run" / "work"
    work.mkdir(parents=True)
    (work / "lock").touch()
    (work.parent / ".DS_Store").touch()
    assert prepare_run(tmp_path, model).count() == 2

    for foreign in ("notes.txt", "work/notes.txt"):
        other = tmp_path / "other"
        (other / foreign).parent.mkdir(parents=True, exist_ok=True)
        (other / foreign).write_text("mine")
        with pytest.raises(Refused, match="contains other files"):
            run.prepare(Settings(layer="conv"), str(tmp_path / "pictures"), other, model=model)
        assert (other / foreign).read_text() == "mine"
        (other / foreign).unlink()


# Images that fail


class Poisoned(nn.Module):
    """Raises an error for a batch with a white image, or for every batch after some calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.left = Small(), 10**9

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left < 0 or (x.amin((1, 2, 3)) > 0.99).any():
            raise RuntimeError("white images are not supported.\nmore")
        return self.inner(x)


@pytest.mark.parametrize("where", ["", "wrong"])
def test_image_that_fails_is_one_row_with_an_error(tmp_path: Path, where: str) -> None:
    """Oracle: the predictions of a run with batches of one image, without the image that fails."""
    images(tmp_path, white=True)
    own, seen = {"layer": "inner.conv", "where": where}, []
    job = prepare_run(tmp_path, small(network=Poisoned()), batch_size=4, **own)
    counts = run.run(job, decode=decode, workers=0, detail=lambda errors, *_: seen.append(errors)).counts
    rows = open_run(tmp_path / "run").table.to_pylist()
    (failed,) = [row for row in rows if row["error"]]
    assert failed["path"] == "0/0.png" and failed["sha256"] and failed["map"] is None
    assert failed["error"] == "Cannot explain the image: white images are not supported."
    assert counts["unreadable"] == 1 and counts["looked_at"] == 6 and seen == [1, 0]
    (tmp_path / "pictures" / "0" / "0.png").unlink()
    one = Settings(batch_size=1, shard=4, **own)
    run.run(
        run.prepare(one, str(tmp_path / "pictures"), tmp_path / "one", model=small(network=Poisoned())),
        decode=decode,
        workers=0,
    )
    expected = open_run(tmp_path / "one").table.to_pylist()
    assert [row["prediction"] for row in rows if not row["error"]] == [row["prediction"] for row in expected]


def test_network_that_fails_for_every_image_ends_the_run(tmp_path: Path) -> None:
    """As a device that does not respond anymore. No row has an error, and the run continues later."""
    images(tmp_path)
    job = prepare_run(tmp_path, small(network=Poisoned()), layer="inner.conv")
    job.model.network.left = 3
    with pytest.raises(RuntimeError, match="white images"):
        run.run(job, decode=decode, workers=0)
    run.run(prepare_run(tmp_path, small(network=Poisoned()), layer="inner.conv"), decode=decode, workers=0)
    assert open_run(tmp_path / "run").table["error"].to_pylist() == [None] * 6


# Finished runs


def test_finished_run_is_found_from_another_folder(tmp_path: Path, model: Model, monkeypatch: Any) -> None:
    images(tmp_path)
    monkeypatch.chdir(tmp_path)
    job = run.prepare(Settings(layer="conv"), "pictures", "run", model=model)
    run.run(job, decode=decode, workers=0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    finished_run = FinishedRun(open_run(tmp_path / "run"), decode)

    assert finished_run.image("0/0.png") is not None


def test_non_finite_values_are_reported_and_not_evaluated(tmp_path: Path, model: Model) -> None:
    images(tmp_path, white=True)
    run.run(prepare_run(tmp_path, model), decode=decode, workers=0)
    finished = open_run(tmp_path / "run")
    assert finished.table["probability"].to_pylist()[0] != finished.table["probability"].to_pylist()[0]

    out = report.write(finished, tmp_path / "report.html", read=lambda path: None)

    assert data_of(out)["images"][0]["probability"] is None
    finished_run = FinishedRun(finished, decode)
    finished_run.__dict__["model"] = model
    assert evaluate(finished_run, images=9, steps=2)["images"] == 5


def test_classes_with_the_same_name_are_distinguished(tmp_path: Path, model: Model) -> None:
    images(tmp_path)
    run.run(prepare_run(tmp_path, model), decode=decode, workers=0)
    out = report.write(open_run(tmp_path / "run"), tmp_path / "report.html", read=lambda path: None, link="http://x")
    text = page_text(out)
    assert "crane (0)" in text and "crane (1)" in text and "crane predicted as" not in text.replace("crane (", "")
    entry = data_of(out)["images"][0]
    assert entry["target"] not in NAMES[:2] or "class=crane" not in entry["link"]
    settings = {"method": "smooth_grad", "seed": 7, "options": {"samples": 9}, "model": "auto"}
    link, _ = Links("http://x", settings).of({"target": "dog", "target_index": 3})
    assert "%22seed%22%3A+7" in link and "%22samples%22%3A+9" in link


# The command line


def test_commands_report_invalid_arguments_and_missing_images(command: Any, tmp_path: Path) -> None:
    images(tmp_path, 2)
    out, page, masks = tmp_path / "run", tmp_path / "report.html", tmp_path / "masks"
    explain = ("explain", tmp_path / "pictures", "--out", out)
    ray = (*explain, "--engine", "ray")
    masks.mkdir()

    def refused(message: str, *arguments: object) -> None:
        code, output = command(*arguments)
        assert code in (1, 2) and message in " ".join(output.replace("│", " ").split()), output

    refused("Ray assigns the devices", *ray, "--device", "cuda:1")
    refused("it needs --engine ray", *explain, "--gpus", 1)
    refused("it needs --engine ray", *explain, "--min-workers", 1)
    refused("it is more than the maximum, --workers 2", *ray, "--min-workers", 3, "--workers", 2)
    refused("is for object detectors", *explain, "--method", "d_rise")
    refused("conflict", *explain, "--method", "smooth_grad", "--seed", 5, "--option", "seed=3")
    assert not out.exists()

    command(*explain, "--workers", 0)
    report = ("report", out, "--out")
    refused("is a folder", *report, masks)
    refused("is not a URL", *report, page, "--link", "foo")
    refused("nowhere.png'. Pass a mask, or a folder of masks", *report, page, "--mask", tmp_path / "nowhere.png")
    refused("None of the images of the run has a mask", *report, page, "--mask", masks)
    assert not page.exists()
    for file in (tmp_path / "pictures").rglob("*.png"):
        file.write_bytes(b"no image") if file.name == "0.png" else file.unlink()
    code, output = command("report", out, "--out", page)
    assert code == 0 and "2 images of the run are not available anymore" in output
    refused("needs the sum that the method guarantees", "evaluate", out, "--metrics", "completeness_gap")
    unreadable = tmp_path / "unreadable"
    assert command("explain", tmp_path / "pictures", "--out", unreadable, "--workers", 0)[0] == 3
    refused("could be read, so there is nothing to evaluate", "evaluate", unreadable)
