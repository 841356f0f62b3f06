"""Many pictures on the page: what an archive may hold, the run in its turn, Stop, and the report."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dataset.sources.place import is_picture
from ui import limits
from ui.engine import model_cache
from ui.engine.messages import Refused
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.many import archive, engine
from ui.many.engine import Going, Reported

EXAMPLES = Path(__file__).parents[1] / "assets" / "examples"


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    model_cache.start("efficientnet_lite0", 0.0)
    for _ in model_cache.wait():
        pass


def zipped(path: Path, members: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return str(path)


def unpacked(path: str, folder: Path) -> list[tuple[str, str]]:
    return list(archive.unpack(path, "a.zip", folder, is_picture))


def test_a_zip_gives_its_pictures_and_writes_nowhere_else(tmp_path):
    dog = (EXAMPLES / "dog.jpg").read_bytes()
    names = [
        "../../escaped.jpg",
        "/etc/absolute.jpg",
        "a/dog.jpg",
        "a/notes.txt",
        "__MACOSX/._dog.jpg",
        ".hidden/x.jpg",
    ]
    path = zipped(tmp_path / "a.zip", dict.fromkeys(names, dog))
    inside = tmp_path / "inside"
    inside.mkdir()
    found = unpacked(path, inside)
    assert [name for name, _ in found] == ["/etc/absolute.jpg", "a/dog.jpg"]
    assert {Path(file).parent for _, file in found} == {inside} and len(list(inside.iterdir())) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.zip", "inside"]
    assert archive.is_archive(path) and not archive.is_archive(str(EXAMPLES / "dog.jpg"))


def test_what_no_archive_may_hold(tmp_path, monkeypatch):
    many = zipped(tmp_path / "many.zip", {f"{k}.jpg": b"x" for k in range(limits.MANY + 1)})
    with pytest.raises(Refused, match="These are 101 pictures; at most 100"):
        unpacked(many, tmp_path)
    monkeypatch.setattr(limits, "MANY_BYTES", 1_000_000)
    bomb = zipped(tmp_path / "bomb.zip", {"a.jpg": bytes(30_000_000)})
    with pytest.raises(Refused, match="unpacks to more than"):
        unpacked(bomb, tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_500_000, "it stops at the limit"
    whole = io.BytesIO(Path(many).read_bytes()).getvalue()
    for damaged in (whole[: len(whole) // 2], whole.replace(b"PK\x01\x02", b"PK\x09\x09")):
        (tmp_path / "damaged.zip").write_bytes(damaged)
        with pytest.raises(Refused, match="no zip that can be read"):
            unpacked(str(tmp_path / "damaged.zip"), tmp_path)


def steps(files: list[str], run: Run, **request: Any) -> list[Any]:
    named = [(path, Path(path).name) for path in files]
    return list(engine.explain(Request(**request), named, run))


def test_only_uploads_are_taken_so_many_and_so_much(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "abc").mkdir()
    path = str(tmp_path / "abc" / "dog.jpg")
    Path(path).write_bytes((EXAMPLES / "dog.jpg").read_bytes())
    assert engine.received([[path, "my dog.jpg"], "x", [path], {"path": path}]) == [(path, "my dog.jpg")]
    for nothing in (None, {}, "x", 5, [[]]):
        assert engine.received(nothing) == []
    for foreign in ("/etc/passwd", str(EXAMPLES / "dog.jpg"), str(tmp_path / "gone.jpg"), 5, None, ["x"]):
        with pytest.raises(Refused):
            engine.received([[foreign, "a.jpg"]])
    with pytest.raises(Refused, match="These are 101 pictures"):
        engine.received([[path, "a.jpg"]] * 101)
    monkeypatch.setattr(limits, "MANY_BYTES", 100_000)
    with pytest.raises(Refused, match="more than 256 MB together"):
        engine.received([[path, "a.jpg"]] * 3)


def test_pictures_become_a_report(tmp_path):
    """A zip of folders says what is right; a file that is none is counted, not fatal."""
    members = {"German shepherd/dog.jpg": (EXAMPLES / "dog.jpg").read_bytes()}
    members |= {"tabby/cat.jpg": (EXAMPLES / "cat.jpg").read_bytes(), "tabby/broken.jpg": b"\xff\xd8\xff"}
    found = steps([zipped(tmp_path / "a.zip", members)], Run(60.0), method="hires_cam")
    assert any(isinstance(step, Going) for step in found) and isinstance(found[-1], Reported)
    assert found[-1].sentence == "3 pictures explained by HiResCAM for EfficientNet-Lite0; 1 could not be read."
    assert "German shepherd" in found[-1].html and "50" in found[-1].html and "<script" in found[-1].html


def test_stop_reports_what_is_done(monkeypatch):
    monkeypatch.setattr(engine, "BATCH", 2)
    run, found = Run(60.0), []
    files = [str(path) for path in sorted(EXAMPLES.glob("*.jpg"))]
    real = engine.turns.report

    def report(turn: Any, fraction: float | None) -> None:
        real(turn, fraction)
        run.stop()

    monkeypatch.setattr(engine.turns, "report", report)
    found = steps(files, run)
    assert found[-1].sentence == "2 pictures explained by Grad-CAM for EfficientNet-Lite0 of 9: stopped."


@pytest.mark.parametrize(
    ("files", "request_", "sentence"),
    [
        ([], {}, "Choose pictures, or a zip of them, first"),
        ([str(EXAMPLES / "dog.jpg")] * 101, {}, "at most 100"),
        ([str(EXAMPLES / "dog.jpg")], {"method": "rise"}, "takes long for each picture"),
        ([str(Path(__file__))], {}, "none|could not|no readable|picture"),
    ],
)
def test_refusals_are_sentences(files, request_, sentence):
    with pytest.raises(ValueError, match=sentence):
        steps(files, Run(60.0), **request_)
