"""Storage that fails and runs that are stopped: a clear message, the right exit code, and no row lost or repeated."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import parquet as pq

from hooklens.cli.commands import Exit
from hooklens.cli.stopping import StopOnTerminate, Terminated
from hooklens.datasets import items, stores
from hooklens.datasets.shards import open_run
from hooklens.datasets.sources import list_items
from hooklens.errors import Refused
from tests.hooklens.datasets.test_dataset_stores import COUNT, child, explain, model, source

__all__ = ["model", "source"]  # fixtures
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


register_implementation("denied", Denied, clobber=True)
register_implementation("flaky", Flaky, clobber=True)


def test_bucket_without_permission():
    with pytest.raises(Refused, match=r"Permission denied: denied://bucket/images\."):
        list_items("denied://bucket/images")
    with pytest.raises(Refused, match=r"Cannot write to 'denied://bucket/run' \(Permission denied\). Check the name"):
        stores.open_store("denied://bucket/run").write("settings.json", b"{}")
    with pytest.raises(Refused, match=r"Permission denied: denied://bucket/run\. Check the credentials"):
        open_run("denied://bucket/run")


def test_image_of_a_store_is_requested_three_times(monkeypatch):
    monkeypatch.setattr(items, "PAUSES", (0.0, 0.0))
    item = items.Item("dog.jpg", None, "flaky://bucket/dog.jpg")
    assert items.read(item) == (EXAMPLES / "dog.jpg").read_bytes() and Flaky.failures == 0
    Flaky.failures = 3
    with pytest.raises(Refused, match="Cannot read flaky://bucket/dog.jpg: reset by peer"):
        items.read(item)
    assert Flaky.failures == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_file_size_limit_while_a_batch_is_written(source, model, tmp_path):
    """The limit applies to real files; without it, the same command computes all images."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            explain(source, tmp_path / "run", model)
        except Refused as error:
            if "exceeds the file-size limit" not in str(error) or "run the same command again" not in str(error):
                raise AssertionError from error
            raise

    assert os.waitstatus_to_exitcode(os.waitpid(child(limited), 0)[1]) == 3
    assert [path.name for path in (tmp_path / "run").rglob("*.*")] == ["settings.json"]
    assert explain(source, tmp_path / "run", model).new == COUNT == len(open_run(tmp_path / "run"))


def test_tables_with_different_columns(tmp_path):
    def write(name: str, **more: Any) -> None:
        image = {"bytes": (EXAMPLES / "dog.jpg").read_bytes(), "path": "dog.jpg"}
        pq.write_table(pa.Table.from_pylist([{"image": image, **more}]), tmp_path / name)

    write("a.parquet", label="dog")
    write("b.parquet", label="dog")
    assert [item.label for item in list_items(str(tmp_path)).items] == ["dog", "dog"]
    write("c.parquet")
    message = r"different columns: c.parquet has .* labels in no column; a.parquet has .* label\."
    with pytest.raises(Refused, match=message):
        list_items(str(tmp_path))


def test_signal_ends_the_run_after_its_batch():
    before = signal.getsignal(signal.SIGTERM)
    with StopOnTerminate() as stop:
        stop.running = True
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
def test_terminated_command_keeps_its_batches(tmp_path):
    """As on a spot instance: SIGTERM to all processes of the command, and the same command again."""
    for i in range(120):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / f"{i:03d}.jpg").write_bytes((EXAMPLES / "dog.jpg").read_bytes())
    arguments = ["explain", tmp_path / "images", "--out", tmp_path / "run", "--batch-size", "4", "--workers", "1"]
    command = [sys.executable, "-m", "hooklens", *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    work = tmp_path / "run" / "work"
    while not list(work.glob("*.arrow")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    error = io.TextIOWrapper(process.stderr).read()
    assert process.wait(timeout=60) == Exit.TERMINATED == 143
    assert "Terminated. Finished batches are kept" in error and "Traceback" not in error
    kept = len(list(work.glob("*.arrow")))
    assert 0 < kept < 30
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{120 - 4 * kept} new" in again and len(open_run(tmp_path / "run")) == 120
