"""Edge cases of runs: names, labels, damaged files, other folders, and non-finite values."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from saliscope.cli import commands
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
from tests.saliscope.datasets.test_dataset_cli import saliscope
from tests.saliscope.datasets.test_dataset_report import data_of, page_text

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


@pytest.fixture
def model() -> Model:
    return small(NAMES)


def small(labels: list[str]) -> Model:
    return Model("small", Small().eval(), labels, Preparation(24, 24, mean=(0.0,) * 3, std=(1.0,) * 3))


def image(path: Path, seed: int, white: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = torch.randint(0, 200, (24, 24, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    Image.fromarray((noise * 0 + 255 if white else noise).numpy()).save(path)


# Labels


def test_exact_label_takes_precedence() -> None:
    """ImageNet has Cardigan, a dog, and cardigan, a garment."""
    known = Classes(load_model("efficientnet_lite0").labels)
    assert (known.find("Cardigan"), known.find("cardigan"), known.find("CARDIGAN")) == (264, 474, None)
    assert Classes(["A", "a", "b"]).find("A") == 0
    assert all(known.find(name) == index for index, name in enumerate(known.names))


def test_class_names_that_are_numbers() -> None:
    grades = Classes(["1.0", "2.0", "1.5", "x"])
    assert [grades.find(name) for name in ("1.0", "2.0", "1.5", "3", "3.0", "9" * 5000)] == [0, 1, 2, 3, 3, None]


def test_ambiguous_names_match_no_class() -> None:
    boots = Classes(["boot, black", "boot, brown"])
    assert [boots.find(name) for name in ("boot", "boot, red", "black", "boot, brown")] == [None, None, 0, 1]
    assert Classes(["crane", "crane"]).find("crane") is None
    assert Classes(["tench", "x"]).find("tench, Tinca tinca") == 0


def test_invalid_unicode_in_a_label_is_escaped(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg", 0)
    (tmp_path / "list.jsonl").write_text('{"path": "a.jpg", "label": "\\ud800x"}\n', encoding="utf-8")
    assert list_items(tmp_path / "list.jsonl").items[0].label == "\\ud800x"


def test_labels_of_tars_are_their_inner_folders(tmp_path: Path) -> None:
    for tar, members in {"x/s-0.tar": ("a/1.jpg", "b/2.jpg", "__MACOSX/d/k.jpg"), "y/s-1.tar": ("b/1.jpg",)}.items():
        (tmp_path / tar).parent.mkdir()
        with tarfile.open(tmp_path / tar, "w") as file:
            for name in members:
                info = tarfile.TarInfo(name)
                info.size = 3
                file.addfile(info, io.BytesIO(b"abc"))
    found = {item.path: item.label for item in list_items(tmp_path).items}
    assert found == {"x/s-0.tar/a/1.jpg": "a", "x/s-0.tar/b/2.jpg": "b", "y/s-1.tar/b/1.jpg": "b"}


@pytest.mark.parametrize("name", ["a::b.jpg", "dd::ee/c.jpg"])
def test_local_name_may_look_like_a_url(tmp_path: Path, name: str) -> None:
    image(tmp_path / name, 0)
    (item,) = list_items(tmp_path / Path(name).parent).items
    assert decode(read(item)).size == (24, 24)


def test_damaged_table_next_to_images_is_ignored(tmp_path: Path) -> None:
    image(tmp_path / "a.jpg", 0)
    (tmp_path / "features.parquet").write_bytes(b"PAR1 no table")
    assert [item.path for item in list_items(tmp_path).items] == ["a.jpg"]


def test_path_in_a_text_file_may_contain_a_comma(tmp_path: Path) -> None:
    names = ["a.jpg", "with, comma.jpg"]
    for name in names:
        image(tmp_path / name, 0)
    (tmp_path / "list.txt").write_text("\n".join(names))
    assert [item.path for item in list_items(tmp_path / "list.txt").items] == names


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


def test_other_class_names_are_detected(tmp_path: Path, model: Model) -> None:
    images(tmp_path)
    prepare_run(tmp_path, model)
    with pytest.raises(Refused, match="labels_and_preprocessing"):
        prepare_run(tmp_path, small(["b", "a", "c", "d"]))


def test_other_images_are_detected(tmp_path: Path, model: Model) -> None:
    images(tmp_path)
    prepare_run(tmp_path, model)
    image(tmp_path / "pictures" / "0" / "new.png", 9)
    with pytest.raises(Refused, match=r"images: '6 images \(\w+\)' in the folder, '7 images \(\w+\)' now"):
        prepare_run(tmp_path, model)


def test_files_truncated_by_a_power_failure_are_computed_again(tmp_path: Path, model: Model) -> None:
    images(tmp_path, 8)

    def stop(done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(prepare_run(tmp_path, model), decode=decode, workers=0, report=stop)
    (batch,) = (tmp_path / "run" / "work").glob("*.arrow")
    batch.write_bytes(b"")
    part = tmp_path / "run" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:100])

    done = run.run(prepare_run(tmp_path, model), decode=decode, workers=0)

    assert done.new == 8 and len(open_run(tmp_path / "run").table) == 8


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
        (other / foreign).unlink()


@pytest.mark.parametrize("content", ["[]", "null", '{"parts": 3}', '{"parts": []}', "{}"])
def test_damaged_manifest_is_reported(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(Refused, match="is damaged: manifest.json has no"):
        open_run(tmp_path)


# Images that fail


class Poisoned(nn.Module):
    """Raises an error for a batch with a white image, or for every batch after the first `calls`."""

    def __init__(self, calls: int = 10**9) -> None:
        super().__init__()
        self.inner, self.left = Small(), calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left < 0 or (x.amin((1, 2, 3)) > 0.99).any():
            raise RuntimeError("white images are not supported.\nmore")
        return self.inner(x)


def poisoned(calls: int = 10**9) -> Model:
    return Model("small", Poisoned(calls).eval(), NAMES, Preparation(24, 24, mean=(0.0,) * 3, std=(1.0,) * 3))


@pytest.mark.parametrize("where", ["", "wrong"])
def test_image_that_fails_is_one_row_with_an_error(tmp_path: Path, where: str) -> None:
    """Oracle: a run with batches of one image, without the image that fails."""
    images(tmp_path, white=True)
    own = {"layer": "inner.conv", "where": where}
    seen: list[int] = []
    job = prepare_run(tmp_path, poisoned(), batch_size=4, **own)
    counts = run.run(job, decode=decode, workers=0, detail=lambda errors, *_: seen.append(errors)).counts
    rows = open_run(tmp_path / "run").table.to_pylist()
    (failed,) = [row for row in rows if row["error"]]
    assert failed["path"] == "0/0.png" and failed["sha256"] and failed["map"] is None
    assert failed["error"] == "Cannot explain the image: white images are not supported."
    assert counts["unreadable"] == 1 and counts["looked_at"] == 6 and seen == [1, 0]
    (tmp_path / "pictures" / "0" / "0.png").unlink()
    one = run.prepare(Settings(batch_size=1, shard=4, **own), str(tmp_path / "pictures"), tmp_path / "one",
                      model=poisoned())  # fmt: skip
    run.run(one, decode=decode, workers=0)
    expected = open_run(tmp_path / "one").table.to_pylist()
    assert [(row["path"], row["prediction"]) for row in rows if not row["error"]] == [
        (row["path"], row["prediction"]) for row in expected
    ]


def test_network_that_fails_for_every_image_ends_the_run(tmp_path: Path) -> None:
    """As a device that does not respond anymore. No row has an error, and the run continues later."""
    images(tmp_path)
    job = prepare_run(tmp_path, poisoned(), layer="inner.conv")
    job.model.network.left = 3
    with pytest.raises(RuntimeError, match="white images"):
        run.run(job, decode=decode, workers=0)
    run.run(prepare_run(tmp_path, poisoned(), layer="inner.conv"), decode=decode, workers=0)
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


def test_links_contain_seed_and_options(tmp_path: Path) -> None:
    settings = {"method": "smooth_grad", "seed": 7, "options": {"samples": 9}, "model": "auto"}
    link, _ = Links("http://x", settings).of({"target": "dog", "target_index": 3})
    assert "%22seed%22%3A+7" in link and "%22samples%22%3A+9" in link
    assert "options" not in Links("http://x", {"method": "grad_cam"}).of({"target": "dog"})[0]


# The command line


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(commands, "_keep_freed_memory", lambda: None)
    return lambda *arguments: saliscope(monkeypatch, capsys, *arguments)


def test_usage_errors_leave_no_files(command: Any, tmp_path: Path) -> None:
    images(tmp_path, 2)
    source, out = tmp_path / "pictures", tmp_path / "run"
    for arguments, message in (
        (("--engine", "spark"), "Unknown engine 'spark'"),
        (("--engine", "ray", "--device", "cuda:1"), "Ray assigns the devices"),
        (("--gpus", 1), "it needs --engine ray"),
        (("--min-workers", 1), "it needs --engine ray"),
        (("--engine", "ray", "--min-workers", 3, "--workers", 2), "it is more than the maximum, --workers 2"),
        (("--method", "d_rise"), "is for object detectors"),
        (("--method", "smooth_grad", "--seed", 5, "--option", "seed=3"), "conflict"),
    ):
        code, output = command("explain", source, "--out", out, *arguments)
        assert code in (1, 2) and message in " ".join(output.replace("│", " ").split())
        assert not out.exists()


def test_report_reports_invalid_arguments_and_missing_images(command: Any, tmp_path: Path) -> None:
    images(tmp_path, 2)
    command("explain", tmp_path / "pictures", "--out", tmp_path / "run", "--workers", 0)
    (tmp_path / "masks").mkdir()
    page = tmp_path / "report.html"
    for arguments, message in (
        (("--out", tmp_path / "masks"), "is a folder"),
        (("--out", page, "--link", "foo"), "is not a URL"),
        (("--out", page, "--mask", tmp_path / "nowhere.png"), "nowhere.png'. Pass a mask, or a folder of masks"),
        (("--out", page, "--mask", tmp_path / "masks"), "None of the images of the run has a mask"),
    ):
        code, output = command("report", tmp_path / "run", *arguments)
        assert code in (1, 2) and message in " ".join(output.replace("│", " ").split())
    assert not page.exists()

    for file in (tmp_path / "pictures").rglob("*.png"):
        file.unlink()
    code, output = command("report", tmp_path / "run", "--out", page)
    assert code == 0 and "2 images of the run are not available anymore" in output
    code, output = command("evaluate", tmp_path / "run", "--metrics", "completeness_gap")
    assert code == 1 and "needs the sum that the method guarantees" in output


def test_run_without_readable_images_is_rejected(command: Any, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"no image")
    command("explain", tmp_path / "pictures", "--out", tmp_path / "run", "--workers", 0)
    code, output = command("evaluate", tmp_path / "run")
    assert code == 1 and "could be read, so there is nothing to evaluate" in output
