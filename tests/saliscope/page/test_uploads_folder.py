"""The folder of uploads: who loses files when it is full, what is swept, and a full disk."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from saliscope import limits
from saliscope.page.serving.door import uploads
from saliscope.page.serving.door.refusals import Refusal
from saliscope.page.serving.door.uploads import Uploads, sweep
from saliscope.page.serving.guard import Guard
from tests.saliscope.page.guarded import UPLOAD, ask
from tests.support.coroutines import finished


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of uploads for at most 1000 bytes."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    for name, value in {"UPLOADS": 1000, "UPLOADED_FILES": 1000, "DISK_RESERVE": 0}.items():
        monkeypatch.setattr(limits, name, value)
    return tmp_path


def store(folder: Path, number: int, size: int, ago: float) -> Path:
    """Store an upload that was used some seconds ago."""
    path = folder / f"{number:064x}" / "image.png"
    path.parent.mkdir()
    path.write_bytes(bytes(size))
    for each in (path, path.parent):
        os.utime(each, (time.time() - ago, time.time() - ago))
    return path


def make_room(size: int, owners: dict[Path, str] | None = None) -> None:
    """Make room for an upload while the uploads of these owners fill the folder."""

    async def make() -> None:
        shared = Uploads()
        await shared.make_room(limits.UPLOADS)
        for path, owner in (owners or {}).items():
            shared.own([str(path)], owner)
        await shared.make_room(size)

    finished(make())


def test_the_least_recently_used_uploads_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, older, new = (store(folder, number, 300, ago) for number, ago in ((1, 900), (2, 1800), (3, 1)))
    make_room(300)
    assert (old.exists(), older.exists(), new.exists()) == (True, False, True)
    uploads.touch(str(old))
    with pytest.raises(Refusal, match="no room") as caught:
        make_room(800)
    assert caught.value.status == 507 and old.exists() and new.exists(), "they are in use"

    monkeypatch.setattr(limits, "UPLOADED_FILES", 5)
    paths = [store(folder, number, 1, 5000 - number) for number in range(4, 10)]
    finished(Uploads().make_room(1))
    assert [path.exists() for path in (old, new, *paths)] == [True, True, *[False] * 4, True, True]


@pytest.mark.parametrize(("ages", "mine"), [((400, 399, 398), 3000), ((40, 39, 38, 37), 60)])
def test_the_address_with_the_most_loses_its_files_first(folder: Path, ages: tuple[int, ...], mine: int) -> None:
    """Also if all files were used in the last minutes: an address with most of the folder cannot keep it full."""
    theirs = [store(folder, number, 200, ago) for number, ago in enumerate(ages)]
    own = store(folder, 9, 200, mine)
    make_room(300 if mine > 1000 else 200, {**dict.fromkeys(theirs, "6.6.6.6"), own: "1.1.1.1"})
    assert own.exists() and not theirs[0].exists() and theirs[-1].exists()


def test_using_an_upload_keeps_it(folder: Path) -> None:
    path = store(folder, 1, 10, 7200)
    ask(chunks=json.dumps({"data": [{"path": str(path), "meta": {"_type": "gradio.FileData"}}]}).encode())
    assert sweep(folder, age=3600) == 0 and path.exists()


def test_the_running_server_removes_old_uploads_and_results_beyond_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP", 0.01)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            for number, ago in enumerate((7200, 1000, 900, 800, 700)):
                path = folder / f"tmp{number}-map.npy"
                path.write_bytes(bytes(400))
                os.utime(path, (time.time() - ago, time.time() - ago))
            end = time.monotonic() + 5
            while len(os.listdir(folder)) > 2 and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert sorted(os.listdir(folder)) == ["tmp3-map.npy", "tmp4-map.npy"]

    async def live() -> None:
        await Guard(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "it must end with the server"

    finished(live())


def test_sweeping_deletes_what_was_not_used_for_long_and_nothing_of_others(tmp_path: Path) -> None:
    stored, used, empty = (f"{number:064x}" for number in range(3))
    for name in (stored, used, empty, "tmp_folder", "other"):
        (tmp_path / name).mkdir()
    for name in (f"{stored}/photo.png", f"{used}/new.png", "tmp1234", "tmpnew", "photo.png", "tmp_folder/tmpdeep"):
        (tmp_path / name).write_bytes(b"x")
    os.symlink(tmp_path / "photo.png", tmp_path / "tmplink")
    for place in tmp_path.rglob("*"):
        if "new" not in place.name:
            os.utime(place, (time.time() - 7200, time.time() - 7200), follow_symlinks=False)

    before = set(tmp_path.rglob("*"))
    assert sweep(tmp_path, age=3600) == 3
    gone = {str(place.relative_to(tmp_path)) for place in before - set(tmp_path.rglob("*"))}
    assert gone == {stored, f"{stored}/photo.png", empty, "tmp1234"}
    assert sweep(tmp_path / "not there") == 0


def test_a_full_disk_is_one_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from saliscope.compute import engine, messages

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/secret/path")

    seen = ask(path=UPLOAD, chunks=b"x", app=app)
    assert (seen.status, seen.detail) == (507, uploads.FULL_DISK) and b"secret" not in seen.answer
    assert engine.message_of(OSError(errno.ENOSPC, "x"), "unknown") == messages.FULL_DISK
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    assert uploads.is_full() and ask(path=UPLOAD, chunks=b"x").status == 507
    assert ask(chunks=b"{}").status == 200, "everything else works"


def test_uploads_are_in_a_folder_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def chosen(given: str = "") -> Path:
        monkeypatch.setenv("GRADIO_TEMP_DIR", given)
        uploads.use_own_folder()
        return Path(os.environ["GRADIO_TEMP_DIR"])

    assert chosen("/given") == Path("/given")
    own = chosen()
    assert own == chosen() and own.parent == tmp_path and own.stat().st_mode & 0o077 == 0
    own.rmdir()
    own.symlink_to(tmp_path)
    assert chosen() not in (own, tmp_path), "a link of another user is not followed"
