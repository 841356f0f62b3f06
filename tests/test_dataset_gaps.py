"""Runs where something is odd: names, labels, damage, other folders, and values that are not finite."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from test_dataset_cli import hooklens
from test_dataset_report import data_of, page_words, reported
from torch import nn

from dataset import report, run
from dataset.errors import Refused
from dataset.items import read
from dataset.past.again import Past
from dataset.past.evaluation import evaluate
from dataset.report.links import Links
from dataset.settings import Classes, Settings
from dataset.shards import open_run
from dataset.sources import list_items
from hooklens import cli
from models import load_model
from models.model import Model, Preparation

NAMES = ["crane", "crane", "c", "d"]


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


class Small(nn.Module):
    """NaN for a white picture."""

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


def picture(path: Path, seed: int, white: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = torch.randint(0, 200, (24, 24, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    Image.fromarray((noise * 0 + 255 if white else noise).numpy()).save(path)


# Labels


def test_a_label_is_the_class_that_is_written_so() -> None:
    """ImageNet has Cardigan, a dog, and cardigan, a garment."""
    known = Classes(load_model("efficientnet_lite0").labels)
    assert (known.find("Cardigan"), known.find("cardigan"), known.find("CARDIGAN")) == (264, 474, None)
    assert Classes(["A", "a", "b"]).find("A") == 0
    assert all(known.find(name) == index for index, name in enumerate(known.names))


def test_a_class_that_is_called_by_a_number() -> None:
    grades = Classes(["1.0", "2.0", "1.5", "x"])
    assert [grades.find(name) for name in ("1.0", "2.0", "1.5", "3", "3.0", "9" * 5000)] == [0, 1, 2, 3, 3, None]


def test_a_name_of_several_classes_stands_for_none() -> None:
    boots = Classes(["boot, black", "boot, brown"])
    assert [boots.find(name) for name in ("boot", "boot, red", "black", "boot, brown")] == [None, None, 0, 1]
    assert Classes(["crane", "crane"]).find("crane") is None
    assert Classes(["tench", "x"]).find("tench, Tinca tinca") == 0


def test_a_label_that_is_no_text_is_written_out(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg", 0)
    (tmp_path / "list.jsonl").write_text('{"path": "a.jpg", "label": "\\ud800x"}\n', encoding="utf-8")
    assert list_items(tmp_path / "list.jsonl").items[0].label == "\\ud800x"


def test_tars_in_folders_have_the_labels_of_their_own_folders(tmp_path: Path) -> None:
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
def test_a_name_here_may_look_like_an_address(tmp_path: Path, name: str) -> None:
    picture(tmp_path / name, 0)
    (item,) = list_items(tmp_path / Path(name).parent).items
    assert decode(read(item)).size == (24, 24)


def test_a_damaged_table_beside_pictures_refuses_none(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg", 0)
    (tmp_path / "features.parquet").write_bytes(b"PAR1 no table")
    assert [item.path for item in list_items(tmp_path).items] == ["a.jpg"]


def test_a_line_of_a_text_file_is_a_path_whatever_it_holds(tmp_path: Path) -> None:
    names = ["a.jpg", "with, comma.jpg"]
    for name in names:
        picture(tmp_path / name, 0)
    (tmp_path / "list.txt").write_text("\n".join(names))
    assert [item.path for item in list_items(tmp_path / "list.txt").items] == names


# A run that goes on


def begun(tmp_path: Path, model: Model, **settings: Any) -> run.Job:
    asked = Settings(**{"batch_size": 2, "shard": 4, "layer": "conv", **settings})
    return run.prepare(asked, str(tmp_path / "pictures"), tmp_path / "run", model=model)


def pictures(tmp_path: Path, count: int = 6, white: bool = False) -> None:
    for k in range(count):
        picture(tmp_path / "pictures" / str(k % 2) / f"{k}.png", k, white and k == 0)


def test_rows_of_many_passes_do_not_follow_the_clock(tmp_path: Path, model: Model, monkeypatch: Any) -> None:
    """Whatever a pass takes, it has as many rows: another number changes last bits."""
    pictures(tmp_path, 2)
    found = []
    for out, slow in (("quick", 1.0), ("slow", 1000.0)):
        monkeypatch.setattr("explainers.passes.loop.SECONDS", 0.5 / slow)
        asked = Settings(method="smooth_grad", options={"samples": 40}, batch_size=2)
        job = run.prepare(asked, str(tmp_path / "pictures"), tmp_path / out, model=model)
        run.run(job, decode=decode, workers=0)
        found.append([{**row, "seconds": None} for row in open_run(tmp_path / out).table.to_pylist()])
    assert found[0] == found[1]


def test_other_class_names_are_other_settings(tmp_path: Path, model: Model) -> None:
    pictures(tmp_path)
    begun(tmp_path, model)
    with pytest.raises(Refused, match="labels_and_preprocessing"):
        begun(tmp_path, small(["b", "a", "c", "d"]))


def test_other_pictures_are_counted(tmp_path: Path, model: Model) -> None:
    pictures(tmp_path)
    begun(tmp_path, model)
    picture(tmp_path / "pictures" / "0" / "new.png", 9)
    with pytest.raises(Refused, match=r"pictures: '6 pictures \(\w+\)' there, '7 pictures \(\w+\)' now"):
        begun(tmp_path, model)


def test_what_a_loss_of_power_has_cut_is_done_again(tmp_path: Path, model: Model) -> None:
    pictures(tmp_path, 8)

    def stop(done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(begun(tmp_path, model), decode=decode, workers=0, report=stop)
    (batch,) = (tmp_path / "run" / "work").glob("*.arrow")
    batch.write_bytes(b"")
    part = tmp_path / "run" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:100])

    done = run.run(begun(tmp_path, model), decode=decode, workers=0)

    assert done.new == 8 and len(open_run(tmp_path / "run").table) == 8


def test_a_kill_before_the_settings_were_written_locks_no_folder(tmp_path: Path, model: Model) -> None:
    pictures(tmp_path)
    work = tmp_path / "run" / "work"
    work.mkdir(parents=True)
    (work / "lock").touch()
    (work.parent / ".DS_Store").touch()
    assert begun(tmp_path, model).count() == 2

    for foreign in ("notes.txt", "work/notes.txt"):
        other = tmp_path / "other"
        (other / foreign).parent.mkdir(parents=True, exist_ok=True)
        (other / foreign).write_text("mine")
        with pytest.raises(Refused, match="holds other files"):
            run.prepare(Settings(layer="conv"), str(tmp_path / "pictures"), other, model=model)
        (other / foreign).unlink()


@pytest.mark.parametrize("content", ["[]", "null", '{"parts": 3}', '{"parts": []}', "{}"])
def test_a_damaged_manifest_is_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(Refused, match="is damaged: manifest.json has no"):
        open_run(tmp_path)


# Afterwards


def test_a_finished_run_is_found_from_another_folder(tmp_path: Path, model: Model, monkeypatch: Any) -> None:
    pictures(tmp_path)
    monkeypatch.chdir(tmp_path)
    job = run.prepare(Settings(layer="conv"), "pictures", "run", model=model)
    run.run(job, decode=decode, workers=0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    past = Past(open_run(tmp_path / "run"), decode)

    assert past.photograph("0/0.png") is not None


def test_values_that_are_not_finite_are_shown_and_not_measured(tmp_path: Path, model: Model) -> None:
    pictures(tmp_path, white=True)
    run.run(begun(tmp_path, model), decode=decode, workers=0)
    finished = open_run(tmp_path / "run")
    assert finished.table["probability"].to_pylist()[0] != finished.table["probability"].to_pylist()[0]

    out = report.write(finished, tmp_path / "report.html", read=lambda path: None)

    assert data_of(out)["pictures"][0]["probability"] is None
    past = Past(finished, decode)
    past.__dict__["network"] = model
    assert evaluate(past, pictures=9, steps=2)["pictures"] == 5


def test_classes_of_one_name_are_told_apart(tmp_path: Path, model: Model) -> None:
    pictures(tmp_path)
    run.run(begun(tmp_path, model), decode=decode, workers=0)
    out = report.write(open_run(tmp_path / "run"), tmp_path / "report.html", read=lambda path: None, link="http://x")
    said = page_words(out)
    assert "crane (0)" in said and "crane (1)" in said and "crane taken for" not in said.replace("crane (", "")
    entry = data_of(out)["pictures"][0]
    assert entry["target"] not in NAMES[:2] or "class=crane" not in entry["link"]


def test_a_shortcut_cannot_be_looked_for_without_photographs(tmp_path: Path) -> None:
    _, _, finished = reported(tmp_path, 0.6)
    out = report.write(finished, tmp_path / "gone.html", read=lambda path: None)
    assert "Shortcuts were not looked for" in page_words(out) and "has the marks of" not in page_words(out)


def test_links_hold_the_seed_and_the_precision(tmp_path: Path) -> None:
    settings = {"method": "smooth_grad", "seed": 7, "options": {"samples": 9}, "model": "auto"}
    link, _ = Links("http://x", settings).of({"target": "dog", "target_index": 3})
    assert "%22seed%22%3A+7" in link and "%22samples%22%3A+9" in link
    assert "options" not in Links("http://x", {"method": "grad_cam"}).of({"target": "dog"})[0]


# The command line


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(cli, "_keep_freed_memory", lambda: None)
    return lambda *arguments: hooklens(monkeypatch, capsys, *arguments)


def test_wrong_uses_leave_nothing_behind(ask: Any, tmp_path: Path) -> None:
    pictures(tmp_path, 2)
    source, out = tmp_path / "pictures", tmp_path / "run"
    for arguments, words in (
        (("--engine", "spark"), "'spark' is no engine"),
        (("--engine", "ray", "--device", "cuda"), "give --gpus 1"),
        (("--gpus", 1), "it is for --engine ray"),
        (("--method", "d_rise"), "is for object detectors"),
        (("--method", "smooth_grad", "--seed", 5, "--option", "seed=3"), "contradict each other"),
    ):
        code, said = ask("explain", source, "--out", out, *arguments)
        assert code in (1, 2) and words in " ".join(said.replace("│", " ").split())
        assert not out.exists()


def test_a_report_says_what_it_cannot_have(ask: Any, tmp_path: Path) -> None:
    pictures(tmp_path, 2)
    ask("explain", tmp_path / "pictures", "--out", tmp_path / "run", "--workers", 0)
    (tmp_path / "masks").mkdir()
    page = tmp_path / "report.html"
    for arguments, words in (
        (("--out", tmp_path / "masks"), "is a folder"),
        (("--out", page, "--link", "foo"), "is no address"),
        (("--out", page, "--mask", tmp_path / "masks"), "No picture of the run has a mask"),
    ):
        code, said = ask("report", tmp_path / "run", *arguments)
        assert code in (1, 2) and words in " ".join(said.replace("│", " ").split())
    assert not page.exists()

    for file in (tmp_path / "pictures").rglob("*.png"):
        file.unlink()
    code, said = ask("report", tmp_path / "run", "--out", page)
    assert code == 0 and "2 pictures of the run are not there any more" in said
    code, said = ask("evaluate", tmp_path / "run", "--metrics", "completeness_gap")
    assert code == 1 and "needs the sum that the method promised" in said


def test_nothing_readable_is_nothing_to_measure(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"no picture")
    ask("explain", tmp_path / "pictures", "--out", tmp_path / "run", "--workers", 0)
    code, said = ask("evaluate", tmp_path / "run")
    assert code == 1 and "could be read, so there is nothing to measure" in said
