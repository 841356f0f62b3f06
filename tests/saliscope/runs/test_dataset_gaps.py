"""Edge cases of runs: names, labels, damaged files, other folders, and non-finite values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from benchmarks.data_sets import decode
from saliscope.errors import Refused
from saliscope.runs import report, run
from saliscope.runs.finished_run import FinishedRun, evaluate
from saliscope.runs.items import read
from saliscope.runs.report.images import Links
from saliscope.runs.rows import RunData
from saliscope.runs.settings import Classes, Settings
from saliscope.runs.shards import open_run
from saliscope.runs.sources import list_items
from saliscope.zoo import load_model
from saliscope.zoo.model import Model, Preparation
from tests.saliscope.runs.test_dataset_report import data_of, page_text

NAMES = ["crane", "crane", "c", "d"]


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


def image(path: Path, seed: int, white: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = torch.randint(0, 200, (24, 24, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    Image.fromarray((noise * 0 + 255 if white else noise).numpy()).save(path)


# Labels


def test_labels_match_classes_by_name() -> None:
    """ImageNet has Cardigan, a dog, and cardigan, a garment."""
    imagenet = load_model("efficientnet_lite0").labels
    for names, expected in (
        (imagenet, {"Cardigan": 264, "cardigan": 474, "CARDIGAN": None}),
        (imagenet, {"n01440764": 0, "n02106662": 235, "n15075141": 999, "n00000000": None}),
        (imagenet, {name: index for index, name in enumerate(imagenet)}),
        (["A", "a", "b"], {"A": 0, "n01440764": None}),
        (["1.0", "2.0", "1.5", "x"], {"1.0": 0, "2.0": 1, "1.5": 2, "3": 3, "3.0": 3, "9" * 5000: None}),
        (["boot, black", "boot, brown"], {"boot": None, "boot, red": None, "black": 0, "boot, brown": 1}),
        (["crane", "tabby, tabby cat", "crane"], {"crane": None, "Tabby_Cat": 1, "2": 2, "2.5": None, "3": None}),
        (["tench", "x"], {"tench, Tinca tinca": 0}),
    ):
        known = Classes(names)
        assert {label: known.find(label) for label in expected} == expected


def test_odd_names_of_files_and_labels(tmp_path: Path) -> None:
    """A path may look like a URL, and a label may be invalid Unicode."""
    for name in ("a::b.jpg", "dd::ee/c.jpg"):
        image(tmp_path / name, 0)
        (item,) = list_items((tmp_path / name).parent).items[:1]
        assert decode(read(item)).size == (24, 24)
    (tmp_path / "list.jsonl").write_text('{"path": "a::b.jpg", "label": "\\ud800x"}\n', encoding="utf-8")
    assert list_items(tmp_path / "list.jsonl").items[0].label == "\\ud800x"


# Runs


def images(tmp_path: Path, count: int = 6, white: bool = False) -> Path:
    for k in range(count):
        image(tmp_path / "pictures" / str(k % 2) / f"{k}.png", k, white and k == 0)
    return tmp_path


def prepare(folder: Path, model: Model, out: str = "run", **settings: Any) -> run.Job:
    combined = Settings(**{"batch_size": 2, "shard": 4, "layer": "conv", **settings})
    return run.prepare(combined, str(folder / "pictures"), folder / out, model=model)


def explain(*where: Any, **settings: Any) -> RunData:
    job = prepare(*where, **settings)
    run.run(job, decode=decode, workers=0)
    return open_run(job.shards.folder)


def test_rows_of_long_methods_do_not_depend_on_the_speed(tmp_path: Path, monkeypatch: Any) -> None:
    """The rows per pass do not depend on its duration, because another number would change the last bits."""
    images(tmp_path, 2)
    found = []
    for slow in (1.0, 1000.0):
        monkeypatch.setattr("explainers.call.batch_size.SECONDS", 0.5 / slow)
        own = {"method": "smooth_grad", "options": {"samples": 40}, "layer": None}
        found.append(explain(tmp_path, small(), f"{slow}", **own).table.drop_columns("seconds"))
    assert found[0].equals(found[1])


def test_folders_that_a_run_cannot_use_are_refused(tmp_path: Path) -> None:
    """Those of other images, classes or files; the folder of a run killed before its settings can be used."""
    folder = images(tmp_path)
    work = folder / "run" / "work"
    work.mkdir(parents=True)
    (work / "lock").touch()
    (work.parent / ".DS_Store").touch()
    assert prepare(folder, small()).count() == 2
    for foreign in ("notes.txt", "work/notes.txt"):
        other = folder / foreign.replace("/", "-")
        (other / foreign).parent.mkdir(parents=True)
        (other / foreign).write_text("mine")
        with pytest.raises(Refused, match="contains other files"):
            prepare(folder, small(), other.name)
        assert (other / foreign).read_text() == "mine"
    with pytest.raises(Refused, match="labels_and_preprocessing"):
        prepare(folder, small(["b", "a", "c", "d"]))
    image(folder / "pictures" / "0" / "new.png", 9)
    with pytest.raises(Refused, match=r"images: '6 images \(\w+\)' in the folder, '7 images \(\w+\)' now"):
        prepare(folder, small())


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
    folder, own, seen = images(tmp_path, white=True), {"layer": "inner.conv", "where": where}, []
    job = prepare(folder, small(network=Poisoned()), batch_size=4, **own)
    counts = run.run(job, decode=decode, workers=0, detail=lambda errors, *_: seen.append(errors)).counts
    rows = open_run(folder / "run").table.to_pylist()
    (failed,) = [row for row in rows if row["error"]]
    assert failed["path"] == "0/0.png" and failed["sha256"] and failed["map"] is None
    assert failed["error"] == "Cannot explain the image: white images are not supported."
    assert counts["unreadable"] == 1 and counts["looked_at"] == 6 and seen == [1, 0]
    (folder / "pictures" / "0" / "0.png").unlink()
    expected = explain(folder, small(network=Poisoned()), "one", batch_size=1, **own).table["prediction"].to_pylist()
    assert [row["prediction"] for row in rows if not row["error"]] == expected


def test_network_that_fails_for_every_image_ends_the_run(tmp_path: Path) -> None:
    """As a device that does not respond anymore. No row has an error, and the run continues later."""
    job = prepare(images(tmp_path), small(network=Poisoned()), layer="inner.conv")
    job.model.network.left = 3
    with pytest.raises(RuntimeError, match="white images"):
        run.run(job, decode=decode, workers=0)
    again = explain(tmp_path, small(network=Poisoned()), layer="inner.conv")
    assert again.table["error"].to_pylist() == [None] * 6


def test_finished_run_is_found_from_another_folder(tmp_path: Path, monkeypatch: Any) -> None:
    images(tmp_path)
    monkeypatch.chdir(tmp_path)
    explain(Path(), small())
    monkeypatch.chdir("/")
    assert FinishedRun(open_run(tmp_path / "run"), decode).image("0/0.png") is not None


def test_report_of_non_finite_values_and_of_classes_with_the_same_name(tmp_path: Path) -> None:
    """Images with non-finite values are not evaluated."""
    model = small()
    finished = explain(images(tmp_path, white=True), model)
    assert np.isnan(finished.table["probability"].to_pylist()[0])
    run_ = FinishedRun(finished, decode)
    run_.__dict__["model"] = model
    assert evaluate(run_, images=9, steps=2).images == 5

    out = report.write(finished, tmp_path / "report.html", report.Report(read=lambda path: None, link="http://x"))

    text, shown = page_text(out), data_of(out)["images"]
    assert shown[0]["probability"] is None
    assert "crane (0)" in text and "crane (1)" in text and "crane predicted as" not in text.replace("crane (", "")
    assert all(each["target"] not in NAMES[:2] or "class=crane" not in each["link"] for each in shown)
    settings = {"method": "smooth_grad", "seed": 7, "options": {"samples": 9}, "model": "auto"}
    link, _ = Links("http://x", settings).of({"target": "dog", "target_index": 3})
    assert "%22seed%22%3A+7" in link and "%22samples%22%3A+9" in link
