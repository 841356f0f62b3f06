"""Storage that fails and runs that are stopped: a clear message, the right exit code, and no row lost or repeated."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from saliscope.cli.progress import StopOnTerminate, Terminated
from saliscope.errors import Refused
from saliscope.runs import items, stores
from saliscope.runs.shards import open_run
from saliscope.runs.sources import list_items
from tests.saliscope.runs.test_dataset_cli import command
from tests.saliscope.runs.test_dataset_stores import expected, explain, model, rows, source

__all__ = ["command", "expected", "model", "source"]  # fixtures
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "assets" / "examples"


class Denied(MemoryFileSystem):
    """A bucket that refuses every request."""

    protocol = "denied"

    def _deny(self, *_: Any, **__: Any) -> Any:
        raise PermissionError("Forbidden")

    ls = info = cat_file = pipe_file = _open = _deny


class Flaky(MemoryFileSystem):
    """A store whose first requests fail."""

    protocol = "flaky"
    failures = 2

    def cat_file(self, path: str, *_: Any, **__: Any) -> bytes:
        if Flaky.failures:
            Flaky.failures -= 1
            raise ConnectionError("reset by peer")
        return (EXAMPLES / "dog.jpg").read_bytes()


class Versioned(MemoryFileSystem):
    """A store as in s3fs: the second parameter is a version, and a part of an empty file cannot be requested."""

    protocol = "versioned"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("versioned://", "memory://")))

    def cat_file(self, path: str, version: Any = None, start: Any = None, end: Any = None, **_: Any) -> bytes:
        assert version is None
        content = bytes(super().cat_file(path, start, end))
        if start is not None and not content:
            raise OSError("The requested range is not satisfiable")
        return content


register_implementation("versioned", Versioned, clobber=True)
register_implementation("denied", Denied, clobber=True)
register_implementation("flaky", Flaky, clobber=True)


def test_bucket_without_permission(command, tmp_path):
    for action, message in (
        (lambda: list_items("denied://bucket/images"), r"Permission denied: denied://bucket/images\."),
        (lambda: stores.open_store("denied://bucket/run").write("a", b"{}"), r"Cannot write to .*Permission denied"),
        (lambda: open_run("denied://bucket/run"), r"Permission denied: denied://bucket/run\. Check the credentials"),
    ):
        with pytest.raises(Refused, match=message):
            action()
    code, output = command("explain", "denied://bucket/images", "--out", tmp_path / "run")
    assert code == 1 and "Permission denied: denied://bucket/images." in output and not (tmp_path / "run").exists()


def test_image_of_a_store_is_requested_three_times(monkeypatch):
    monkeypatch.setattr(items, "PAUSES", (0.0, 0.0))
    item = items.Item("dog.jpg", None, "flaky://bucket/dog.jpg")
    assert items.read(item) == (EXAMPLES / "dog.jpg").read_bytes() and Flaky.failures == 0
    Flaky.failures = 3
    with pytest.raises(Refused, match="Cannot read flaky://bucket/dog.jpg: reset by peer"):
        items.read(item)
    assert Flaky.failures == 0


@pytest.mark.parametrize("place", ["local", "memory", "versioned"])
def test_huge_files_are_not_read(place, tmp_path, monkeypatch):
    """Neither whole files nor members of tars. An empty file stays an empty file."""
    monkeypatch.setattr(items, "MOST_BYTES", 5_000_000)
    fs = fsspec.filesystem("file" if place == "local" else place)
    root = str(tmp_path) if place == "local" else "/huge"
    for name, size in {"huge.jpg": 7_000_000, "most.jpg": 5_000_000, "empty.jpg": 0}.items():
        fs.pipe_file(f"{root}/{name}", b"x" * size)
    url = root if place == "local" else f"{place}:/{root}"
    for offset, size in ((-1, -1), (10, 6_000_000)):
        with pytest.raises(Refused, match=r"The file has [67] MB, too much for an image"):
            items.read(items.Item("huge.jpg", None, f"{url}/huge.jpg", offset, size))
    assert len(items.read(items.Item("most.jpg", None, f"{url}/most.jpg"))) == 5_000_000
    assert items.read(items.Item("empty.jpg", None, f"{url}/empty.jpg")) == b""
    fs.pipe_file(f"{root}/a.tar", b"0123456789")
    assert items.read(items.Item("a.jpg", None, f"{url}/a.tar", 2, 3)) == b"234"


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "is full. Finished batches are kept. Free some space and"),
        (errno.EFBIG, "exceeds the file-size limit"),
    ],
)
def test_full_disk(number, message, source, model, expected, tmp_path, monkeypatch):
    """The finished batches are kept, no file is incomplete, and with more space the same command ends the run."""
    replace, left, full = os.replace, [0], 0

    def fill(*paths: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(number, "No space left on device")
        replace(*paths)

    monkeypatch.setattr(os, "replace", fill)
    while full < 40:
        left[0] = 4
        try:
            explain(source, tmp_path, model)
            break
        except Refused as error:
            full += 1
            assert message in str(error) and "run the same command again" in str(error)
            assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    assert 3 < full < 40 and rows(tmp_path) == rows(expected)


def test_signal_ends_the_run_after_its_batch():
    before = signal.getsignal(signal.SIGTERM)
    with StopOnTerminate() as stop:
        stop(1, 9)
        os.kill(os.getpid(), signal.SIGTERM)
        stop(9, 9)
        with pytest.raises(Terminated):
            stop(2, 9)
        with pytest.raises(SystemExit, match="143"):  # repeated
            os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"), StopOnTerminate():  # before the first batch
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
    threading.Thread(target=lambda: StopOnTerminate().__enter__()).start()  # only the main thread has signals


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_ended_command_keeps_its_batches(number, code, tmp_path):
    """A signal to all processes of the command, or its kill, which ends its workers, and the same command again."""
    (tmp_path / "images").mkdir()
    for i in range(120):
        (tmp_path / "images" / f"{i:03d}.jpg").symlink_to(EXAMPLES / "dog.jpg")
    arguments = ["explain", tmp_path / "images", "--out", tmp_path / "run", "--batch-size", "4", "--workers", "1"]
    command = [sys.executable, "-m", "saliscope", *map(str, arguments)]
    # If the tests run in the background of a shell, Ctrl+C is ignored by the processes that they start.
    process = subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    work = tmp_path / "run" / "work"
    while not list(work.glob("*.arrow")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, number) if code < 0 else os.killpg(process.pid, number)
    error = io.TextIOWrapper(process.stderr).read()  # until the last worker has ended
    assert process.wait(timeout=60) == code
    assert code < 0 or ("Finished batches are kept" in error and "Traceback" not in error)
    kept = len(list(work.glob("*.arrow")))
    assert 0 < kept < 30
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{120 - 4 * kept} new" in again and len(open_run(tmp_path / "run")) == 120
