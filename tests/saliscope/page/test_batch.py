"""The Batch view: checks of archives and uploads, Stop, and the report."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import explainers
from saliscope import limits
from saliscope.compute import model_cache
from saliscope.compute.answers import LoadedModel, Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.images.decoder import pool
from saliscope.page.batch import archive, engine, folders
from saliscope.page.batch.engine import Indexed
from saliscope.runs.sources.location import IMAGE_SUFFIXES, is_image
from tests.saliscope.compute.asking import SMALL

EXAMPLES = Path(__file__).parents[3] / "assets" / "examples"
DOG = EXAMPLES / "dog.jpg"
PAGE = Path(archive.__file__).parents[1]
TOO_LARGE = "larger than 256 MB in total"
pytestmark = pytest.mark.usefixtures("loaded")


def make_zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return str(path)


def unpack(path: str, folder: Path, budget: archive.Budget | None = None) -> list[tuple[str, str]]:
    return list(archive.unpack(path, "a.zip", folder, is_image, budget or archive.Budget()))


def steps(files: list[str], run: Run | None = None, work: Any = engine.explain, **request: Any) -> list[Any]:
    named = [(path, Path(path).name) for path in files]
    return list(work(Request(**request), named, run or Run(60.0)))


# Archives and uploads


def test_the_browser_lists_the_same_images_of_an_archive_as_the_server() -> None:
    script = (PAGE / "batch" / "archive.js").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"const IMAGE = /(.*)/i;", script)
    assert all(re.search(pattern, f"a{suffix}") for suffix in IMAGE_SUFFIXES)
    assert not any(re.search(pattern, name) for name in ("a.txt", "jpg", "a.jpgx", "a.svg"))


def test_unpacking_extracts_only_images_and_only_into_the_folder(tmp_path: Path) -> None:
    names = ["../../escaped.jpg", "/etc/absolute.jpg", "a/dog.jpg", "a/notes.txt", "__MACOSX/dog.jpg", ".hidden/x.jpg"]
    path = make_zip(tmp_path / "a.zip", dict.fromkeys(names, DOG.read_bytes()))
    inside = tmp_path / "inside"
    inside.mkdir()
    found = unpack(path, inside)
    assert [name for name, _ in found] == ["/etc/absolute.jpg", "a/dog.jpg"]
    assert {Path(file).parent for _, file in found} == {inside} and len(list(inside.iterdir())) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zip", "inside"]


def test_bombs_damaged_and_unusual_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES", 1_000_000)
    many = make_zip(tmp_path / "many.zip", {f"{number}.jpg": b"x" for number in range(limits.BATCH + 1)})
    whole = Path(many).read_bytes()
    wrong = {many: "101 images selected, but at most 100"}
    wrong[make_zip(tmp_path / "bomb.zip", {"a.jpg": bytes(30_000_000)})] = TOO_LARGE
    for number, damaged in enumerate((whole[: len(whole) // 2], whole.replace(b"PK\x01\x02", b"PK\x09\x09"))):
        path = tmp_path / f"damaged{number}.zip"
        path.write_bytes(damaged)
        wrong[str(path)] = "not a readable zip archive"
    listing = {f"{number}/" + "n" * 50: b"" for number in range(11_000)}
    wrong[make_zip(tmp_path / "names.zip", listing)] = "too many files"
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        wrong[make_zip(tmp_path / f"{kind}.zip", {"a.jpg": bytes(1000)}, kind)] = "does not use the usual compression"
    inside = tmp_path / "inside"
    inside.mkdir()
    for path, message in wrong.items():
        with pytest.raises(Refused, match=message):
            unpack(path, inside)
    assert sum(path.stat().st_size for path in inside.iterdir()) <= 1_000_000, "extraction stops at the limit"


def test_only_uploads_within_the_limits_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "abc").mkdir()
    path = str(shutil.copy(DOG, tmp_path / "abc"))
    assert engine.parse_uploads([[path, "my dog.jpg"], "x", [path], {"path": path}]) == [(path, "my dog.jpg")]
    indirect = f"{tmp_path}/abc/../abc/dog.jpg"
    assert engine.parse_uploads([[path, "a.jpg"], [path, "b.jpg"], [indirect, "c.jpg"]]) == [(path, "a.jpg")]
    for nothing in (None, {}, "x", 5, [[]]):
        assert engine.parse_uploads(nothing) == []
    for foreign in ("/etc/passwd", str(DOG), str(tmp_path / "gone.jpg"), 5, ["x"]):
        with pytest.raises(Refused):
            engine.parse_uploads([[foreign, "a.jpg"]])
    with pytest.raises(Refused, match="101 images selected"):
        engine.parse_uploads([[path, "a.jpg"]] * 101)
    monkeypatch.setattr(limits, "BATCH_BYTES", 100_000)
    with pytest.raises(Refused, match=TOO_LARGE):
        engine.parse_uploads([[path, "a.jpg"], [str(shutil.copy(path, tmp_path / "other.jpg")), "b.jpg"]])


def test_archives_and_images_share_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two archives of half the size are accepted, and a further image is not."""
    monkeypatch.setattr(limits, "BATCH_BYTES", 1_000_000)
    halves = [make_zip(tmp_path / f"{number}.zip", {f"{number}.jpg": bytes(500_000)}) for number in range(2)]
    budget = archive.Budget()
    for half in halves:
        unpack(half, tmp_path, budget)
    with pytest.raises(Refused, match=TOO_LARGE):
        steps([*halves, str(DOG)])
    sixty = [make_zip(tmp_path / f"{name}.zip", {f"{k}.jpg": b"x" for k in range(60)}) for name in "ab"]
    with pytest.raises(Refused, match="120 images selected, but at most 100"):
        steps(sixty)


def test_unpacking_can_be_stopped_and_ends_in_time(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "a.zip", {f"{number}.jpg": bytes(3_000_000) for number in range(9)})
    answers = iter([True] * 4 + [False])
    with pytest.raises(Refused, match="Stopped"):
        unpack(path, tmp_path, archive.Budget(lambda: next(answers)))
    assert sum(file.stat().st_size for file in tmp_path.glob("0*")) < 5_000_000
    with pytest.raises(Refused, match="Stopped"):
        steps([path], Run(-1.0))


def test_an_archive_is_not_unpacked_before_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = make_zip(tmp_path / "a.zip", {"a.jpg": b"x"}), []
    monkeypatch.setattr(archive, "unpack", lambda *_: pytest.fail("unpacked before its turn"))
    with engine.turns.enqueue(Run(60.0), long=True) as turn:
        list(engine.turns.wait(turn))
        for step in engine.explain(Request(), [(path, "a.zip")], Run(60.0)):
            found.append(step)
            if len(found) > 1:
                break
    assert all(isinstance(step, Waiting) for step in found)


# The report


def test_images_become_a_report(tmp_path: Path) -> None:
    """Folders of a zip archive are the labels, and unreadable files are counted."""
    members = {"German shepherd/dog.jpg": DOG.read_bytes(), "tabby/broken.jpg": b"\xff\xd8\xff"}
    members["tabby/cat.jpg"] = (EXAMPLES / "cat.jpg").read_bytes()
    report = steps([make_zip(tmp_path / "a.zip", members)], method="hires_cam")[-1]
    assert report.message == "2 of 3 images explained with HiResCAM for EfficientNet-Lite0; 1 could not be read."
    assert "German shepherd" in report.html and "50" in report.html and "<script" in report.html


def test_a_message_does_not_show_a_path_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(shutil.copy(EXAMPLES / f"{name}.jpg", tmp_path)) for name in ("dog", "cat", "coffee")]
    decode = pool.open_image

    def lose(path: Any) -> Any:
        (tmp_path / "dog.jpg").unlink(missing_ok=True)
        return decode(path)

    monkeypatch.setattr(pool, "open_image", lose)
    report = steps(files, model=SMALL)[-1]
    assert "File not found: dog.jpg." in report.html and str(tmp_path) not in report.html
    assert "saliscope-report" not in report.html and "/tmp" not in report.html


# The index


def test_images_become_an_index_of_the_layer_and_the_stages(tmp_path: Path) -> None:
    """Oracle: `index_units` of the same images. Unreadable files are counted."""
    names = ("dog", "cat", "coffee")
    files = [str(EXAMPLES / f"{name}.jpg") for name in names]
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    broken = str(tmp_path / "broken.jpg")
    *before, found = steps([*files, broken], work=engine.index, model=SMALL, layer="stages.6")
    assert any(isinstance(step, Waiting) for step in before) and isinstance(found, Indexed)
    assert found.message.startswith("3 of 4 images indexed for EfficientNet-Lite0 (size 64) at stages.6, ")
    assert "1 could not be read" in found.message
    layers = set(found.index.units["layer"].to_pylist())
    assert {"stages.6", "head", "stages.2"} <= layers and "stages.5" not in layers
    model = found.settings.loaded.model
    images = torch.cat([model.prepare(Image.open(file).convert("RGB")) for file in files])
    expected = explainers.index_units(model.network, images, "stages.6", top=1, effects="predicted").layers["stages.6"]
    for by, top in (("activation", expected.top), ("effect", expected.effects)):
        first = {"layer": "stages.6", "by": by, "rank": 0}
        rows = [row["value"] for row in found.index.top.to_pylist() if first.items() <= row.items()]
        assert rows == pytest.approx(top.values[:, 0].tolist(), rel=1e-3, abs=1e-4)
    assert set(found.index.photos["path"].to_pylist()) == {f"{name}.jpg" for name in names}


# Stop, what is refused, and folders


@pytest.mark.parametrize("work", [engine.explain, engine.index])
def test_stop_keeps_the_finished_images(work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BATCH", 2)
    run, real = Run(60.0), engine.turns.report

    def report(turn: Any, fraction: float | None) -> None:
        real(turn, fraction)
        if fraction:  # after the first batch
            run.stop()

    monkeypatch.setattr(engine.turns, "report", report)
    found = steps([str(path) for path in sorted(EXAMPLES.glob("*.jpg"))], run, work, model=SMALL, target="tabby")[-1]
    assert found.message.startswith("Stopped: 2 of 9 images ")
    if work is engine.index:
        assert found.index.manifest["counts"]["images"] == 2 and len(found.index.photos) == 2
        assert found.index.settings["effects"] == "tabby"


@pytest.mark.parametrize("work", [engine.explain, engine.index])
def test_unsupported_requests_are_refused(work: Any) -> None:
    for files, message in (([], "No files selected"), ([DOG] * 101, "at most 100"), ([Path(__file__)], "image")):
        with pytest.raises(Refused, match=message):
            steps([str(file) for file in files], work=work)
    with pytest.raises(Refused, match="too slow for a batch"):
        steps([str(DOG)], method="rise")


def test_folders_of_killed_processes_are_removed_and_those_in_use_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is killed during a report leaves its images; the next one removes them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "NEW", 0.0)
    code = (
        "import sys, time, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from saliscope.page.batch.folders import report_folder\n"
        "with report_folder() as folder:\n"
        "    (folder / 'image.png').write_bytes(b'x'); print(folder, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"{folders.PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{folders.PREFIX}file").touch()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other, folders.report_folder() as own:
        try:
            assert other.stdout is not None
            left = Path(other.stdout.readline().strip())
            assert folders.remove_leftovers() == 0 and own.is_dir() and left.is_dir()
        finally:
            other.kill()
            other.wait()
        assert left.is_dir() and folders.remove_leftovers() == 1
        assert own.is_dir() and not left.exists() and elsewhere.is_dir()
    assert not own.exists()


def test_the_network_stays_on_its_device(monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel) -> None:
    """A run moves the network, which other visitors use, to its device."""
    used = list[str]()
    monkeypatch.setattr("saliscope.runs.run.run", lambda job, device, **_: used.append(device))
    monkeypatch.setattr(model_cache, "load", lambda *_: replace(loaded, device=torch.device("cpu:0")))
    with pytest.raises(Refused, match="Stopped"):
        steps([str(DOG)])
    assert used == ["cpu:0"], "not the default"
