"""The Batch tab: checks of archives and uploads, Stop, and the report."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from saliscope import limits
from saliscope.datasets.sources.location import IMAGE_SUFFIXES, is_image
from saliscope.errors import Refused
from saliscope.page.batch import archive, engine, folders
from saliscope.page.batch.engine import Progress, Report
from saliscope.page.build import STATIC
from saliscope.session import model_cache
from saliscope.session.answers import Waiting
from saliscope.session.jobs.runs import Run
from saliscope.session.request import Request

EXAMPLES = Path(__file__).parents[3] / "assets" / "examples"


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    model_cache.start("efficientnet_lite0", 0.0)
    for _ in model_cache.wait():
        pass


def test_the_browser_lists_the_same_images_of_an_archive_as_the_server() -> None:
    script = (STATIC / "batch" / "archive.js").read_text(encoding="utf-8")
    (pattern,) = re.findall(r"const IMAGE = /(.*)/i;", script)
    assert all(re.search(pattern, f"a{suffix}") for suffix in IMAGE_SUFFIXES)
    assert not any(re.search(pattern, name) for name in ("a.txt", "jpg", "a.jpgx", "a.svg"))


def make_zip(path: Path, members: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return str(path)


def unpack(path: str, folder: Path, budget: archive.Budget | None = None) -> list[tuple[str, str]]:
    return list(archive.unpack(path, "a.zip", folder, is_image, budget or archive.Budget()))


def test_unpacking_extracts_only_images_and_only_into_the_folder(tmp_path):
    dog = (EXAMPLES / "dog.jpg").read_bytes()
    names = [
        "../../escaped.jpg",
        "/etc/absolute.jpg",
        "a/dog.jpg",
        "a/notes.txt",
        "__MACOSX/._dog.jpg",
        ".hidden/x.jpg",
    ]
    path = make_zip(tmp_path / "a.zip", dict.fromkeys(names, dog))
    inside = tmp_path / "inside"
    inside.mkdir()
    found = unpack(path, inside)
    assert [name for name, _ in found] == ["/etc/absolute.jpg", "a/dog.jpg"]
    assert {Path(file).parent for _, file in found} == {inside} and len(list(inside.iterdir())) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zip", "inside"]
    assert archive.is_archive(path) and not archive.is_archive(str(EXAMPLES / "dog.jpg"))


def test_too_many_images_zip_bombs_and_damaged_archives_are_refused(tmp_path, monkeypatch):
    many = make_zip(tmp_path / "many.zip", {f"{k}.jpg": b"x" for k in range(limits.BATCH + 1)})
    with pytest.raises(Refused, match="101 images selected, but at most 100"):
        unpack(many, tmp_path)
    monkeypatch.setattr(limits, "BATCH_BYTES", 1_000_000)
    bomb = make_zip(tmp_path / "bomb.zip", {"a.jpg": bytes(30_000_000)})
    with pytest.raises(Refused, match="larger than 256 MB in total"):
        unpack(bomb, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_500_000, "extraction stops at the limit"
    whole = io.BytesIO(Path(many).read_bytes()).getvalue()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"PK\x01\x02", b"PK\x09\x09")):
        (tmp_path / "damaged.zip").write_bytes(damaged)
        with pytest.raises(Refused, match="not a readable zip archive"):
            unpack(str(tmp_path / "damaged.zip"), tmp_path)


def steps(files: list[str], run: Run, **request: Any) -> list[Any]:
    named = [(path, Path(path).name) for path in files]
    return list(engine.explain(Request(**request), named, run))


def test_only_uploads_within_the_limits_are_accepted(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "abc").mkdir()
    path = str(tmp_path / "abc" / "dog.jpg")
    Path(path).write_bytes((EXAMPLES / "dog.jpg").read_bytes())
    assert engine.parse_uploads([[path, "my dog.jpg"], "x", [path], {"path": path}]) == [(path, "my dog.jpg")]
    indirect = f"{tmp_path}/abc/../abc/dog.jpg"
    assert engine.parse_uploads([[path, "a.jpg"], [path, "b.jpg"], [indirect, "c.jpg"]]) == [(path, "a.jpg")]
    for nothing in (None, {}, "x", 5, [[]]):
        assert engine.parse_uploads(nothing) == []
    for foreign in ("/etc/passwd", str(EXAMPLES / "dog.jpg"), str(tmp_path / "gone.jpg"), 5, None, ["x"]):
        with pytest.raises(Refused):
            engine.parse_uploads([[foreign, "a.jpg"]])
    with pytest.raises(Refused, match="101 images selected"):
        engine.parse_uploads([[path, "a.jpg"]] * 101)
    monkeypatch.setattr(limits, "BATCH_BYTES", 100_000)
    other = shutil.copy(path, tmp_path / "other.jpg")
    with pytest.raises(Refused, match="larger than 256 MB in total"):
        engine.parse_uploads([[path, "a.jpg"], [other, "b.jpg"]])


def test_archives_and_images_share_one_budget(tmp_path, monkeypatch):
    """Two archives of half the size each are accepted, and a third one is not; so are images."""
    monkeypatch.setattr(limits, "BATCH_BYTES", 1_000_000)
    halves = [make_zip(tmp_path / f"{k}.zip", {f"{k}.jpg": bytes(500_000)}) for k in range(3)]
    budget = archive.Budget()
    for half in halves[:2]:
        unpack(half, tmp_path, budget)
    with pytest.raises(Refused, match="larger than 256 MB in total"):
        unpack(halves[2], tmp_path, budget)
    with pytest.raises(Refused, match="larger than 256 MB in total"):
        steps([*halves[:2], str(EXAMPLES / "dog.jpg")], Run(60.0))
    sixty = [make_zip(tmp_path / f"many{k}.zip", {f"{n}.jpg": b"x" for n in range(60)}) for k in range(2)]
    with pytest.raises(Refused, match="120 images selected, but at most 100"):
        steps(sixty, Run(60.0))


def test_unpacking_can_be_stopped_and_ends_in_time(tmp_path):
    path, calls = make_zip(tmp_path / "a.zip", {f"{k}.jpg": bytes(3_000_000) for k in range(9)}), []

    def go_on() -> bool:
        calls.append(1)
        return len(calls) < 5

    with pytest.raises(Refused, match="Stopped"):
        unpack(path, tmp_path, archive.Budget(go_on))
    assert len(calls) == 5 and sum(file.stat().st_size for file in tmp_path.glob("0*")) < 5_000_000
    with pytest.raises(Refused, match="Stopped"):
        steps([path], Run(-1.0))


def test_an_archive_is_not_unpacked_before_its_turn(tmp_path, monkeypatch):
    path, run, found = make_zip(tmp_path / "a.zip", {"a.jpg": b"x"}), Run(60.0), []
    monkeypatch.setattr(archive, "unpack", lambda *_: pytest.fail("unpacked before its turn"))
    other = Run(60.0)
    with engine.turns.enqueue(other, long=True) as turn:
        list(engine.turns.wait(turn))
        for step in engine.explain(Request(), [(path, "a.zip")], run):
            found.append(step)
            if len(found) > 1:
                break
    assert all(isinstance(step, Waiting) for step in found)


def test_archives_with_many_files_or_other_compressions_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "names.zip", "w") as file:
        for k in range(11_000):
            file.writestr(f"{k}/" + "n" * 50, b"")
    with pytest.raises(Refused, match="too many files"):
        unpack(str(tmp_path / "names.zip"), tmp_path)
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "other.zip", "w", kind) as file:
            file.writestr("a.jpg", bytes(1000))
        with pytest.raises(Refused, match=r"a\.zip does not use the usual compression"):
            unpack(str(tmp_path / "other.zip"), tmp_path)


def test_a_message_does_not_show_a_path_of_the_server(tmp_path, monkeypatch):
    files = [shutil.copy(EXAMPLES / f"{name}.jpg", tmp_path / f"{name}.jpg") for name in ("dog", "cat", "coffee")]
    real = engine._run
    monkeypatch.setattr(engine, "_run", lambda *given: Path(files[1]).unlink() or real(*given))
    found = steps([str(path) for path in files], Run(60.0))
    assert found[-1].message.endswith("1 could not be read.")
    assert "File not found: cat.jpg." in found[-1].html and str(tmp_path) not in found[-1].html
    assert "saliscope-report" not in found[-1].html and "/tmp" not in found[-1].html


def test_folders_of_killed_processes_are_removed_and_those_in_use_stay(tmp_path, monkeypatch):
    """A page that is killed during a report leaves its images; the next one removes them."""
    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "NEW", 0.0)
    code = (
        "import sys, time, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from saliscope.page.batch.folders import report_folder\n"
        "with report_folder() as folder:\n"
        "    (folder / 'image.png').write_bytes(b'x'); print(folder, flush=True); time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        left = Path(other.stdout.readline().strip())
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (tmp_path / f"{folders.PREFIX}link").symlink_to(elsewhere)
        (tmp_path / f"{folders.PREFIX}file").touch()
        with folders.report_folder() as own:
            assert folders.remove_leftovers() == 0 and own.is_dir() and left.is_dir()
            other.kill()
            other.wait()
            assert left.is_dir()
            assert folders.remove_leftovers() == 1 and own.is_dir() and not left.exists() and elsewhere.is_dir()
        assert not own.exists()
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


def test_images_become_a_report(tmp_path):
    """Folders of a zip archive are the labels, and unreadable files are counted."""
    members = {"German shepherd/dog.jpg": (EXAMPLES / "dog.jpg").read_bytes()}
    members |= {"tabby/cat.jpg": (EXAMPLES / "cat.jpg").read_bytes(), "tabby/broken.jpg": b"\xff\xd8\xff"}
    found = steps([make_zip(tmp_path / "a.zip", members)], Run(60.0), method="hires_cam")
    assert any(isinstance(step, Progress) for step in found) and isinstance(found[-1], Report)
    assert found[-1].message == "2 of 3 images explained with HiResCAM for EfficientNet-Lite0; 1 could not be read."
    assert "German shepherd" in found[-1].html and "50" in found[-1].html and "<script" in found[-1].html


def test_stop_reports_the_finished_images(monkeypatch):
    monkeypatch.setattr(engine, "BATCH", 2)
    run, found = Run(60.0), []
    files = [str(path) for path in sorted(EXAMPLES.glob("*.jpg"))]
    real = engine.turns.report

    def report(turn: Any, fraction: float | None) -> None:
        real(turn, fraction)
        run.stop()

    monkeypatch.setattr(engine.turns, "report", report)
    found = steps(files, run)
    assert found[-1].message == "Stopped: 2 of 9 images explained with Grad-CAM for EfficientNet-Lite0."


@pytest.mark.parametrize(
    ("files", "request_", "message"),
    [
        ([], {}, "No files selected"),
        ([str(EXAMPLES / "dog.jpg")] * 101, {}, "at most 100"),
        ([str(EXAMPLES / "dog.jpg")], {"method": "rise"}, "too slow for a batch"),
        ([str(Path(__file__))], {}, "none|could not|no readable|image"),
    ],
)
def test_unsupported_requests_are_refused(files, request_, message):
    with pytest.raises(ValueError, match=message):
        steps(files, Run(60.0), **request_)
