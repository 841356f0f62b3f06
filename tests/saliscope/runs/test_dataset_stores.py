"""Runs in stores (`memory://`, `s3://`): the same rows as in a local folder, after kills and with two writers.

The S3 server is moto's, in this process. These tests need the extra `s3`.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem
from PIL import Image
from torch import nn

from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.runs import run, stores
from saliscope.runs.finished_run import FILE
from saliscope.runs.settings import Settings
from saliscope.runs.shards import locks, open_run, read_manifest
from saliscope.runs.shards.writing import Shards
from saliscope.runs.stores import SETTINGS, WORK
from saliscope.zoo.model import Model, Preparation

COUNT = 45


class Disk(LocalFileSystem):
    """A store that other processes see, on this disk; like S3, it creates a file only once."""

    protocol = "disk"

    def __init__(self, **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)

    def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        self.pipe_file(path, value, mode)


register_implementation("disk", Disk, clobber=True)


def small_model() -> Model:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    return Model("small", nn.Sequential(*layers).eval(), [*"abcd"], Preparation(32, 32, (0.5,) * 3, (0.5,) * 3))


@pytest.fixture(scope="module")
def model() -> Model:
    return small_model()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write images of two classes, and a file that is not an image."""
    folder = tmp_path_factory.mktemp("images")
    for i in range(COUNT - 1):
        noise = torch.randint(0, 256, (32, 32, 3), generator=torch.Generator().manual_seed(i), dtype=torch.uint8)
        path = folder / "ab"[i % 2] / f"{i:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise.numpy()).save(path)
    (folder / "a" / "zzz.png").write_bytes(b"no image")
    return str(folder)


@pytest.fixture(scope="module")
def few(source: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write six of these images, one of which is not an image."""
    folder = tmp_path_factory.mktemp("few")
    for path in sorted((Path(source) / "a").iterdir())[-6:]:
        (folder / path.name).write_bytes(path.read_bytes())
    return str(folder)


def prepare(source: str, out: str | Path, model: Model, **settings: Any) -> run.Job:
    return run.prepare(Settings(**{"batch_size": 4, "shard": 16, **settings}), source, out, model=model)


def explain(source: str, out: str | Path, model: Model, report: Any = None, **settings: Any) -> run.Summary:
    return run.run(prepare(source, out, model, **settings), decode=open_image, workers=0, report=report)


def rows(out: str | Path) -> list[dict[str, Any]]:
    return [{**row, "seconds": None} for row in open_run(out).table.to_pylist()]


def manifest(out: str | Path) -> dict[str, Any]:
    return {**read_manifest(out), "finished": None, "seconds": None}


@pytest.fixture(scope="module")
def expected(source: str, model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a local run."""
    out = tmp_path_factory.mktemp("runs") / "local"
    explain(source, out, model)
    return out


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Start an S3 server, and return its address."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    found = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    found.start()
    host, port = found.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    before = dict(os.environ)
    os.environ.update({**keys, "AWS_ENDPOINT_URL": f"http://{host}:{port}"})
    import fsspec

    fsspec.filesystem("s3").mkdir("bucket")
    yield f"http://{host}:{port}"
    found.stop()
    os.environ.clear()
    os.environ.update(before)


def new(where: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the folder or the URL of a new run."""
    if where == "s3":
        request.getfixturevalue("server")
    name = f"run{random.getrandbits(64)}"
    return {"local": f"{tmp_path}/{name}", "disk": f"disk://{tmp_path}/{name}"}.get(where, f"{where}://bucket/{name}")


@pytest.fixture(params=["memory", "s3"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new(request.param, request, tmp_path)


class Killed(BaseException):
    pass


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def files(out: str | Path) -> list[str]:
    """Return the files of a run, except those of an empty folder."""
    store = stores.open_store(out)
    return sorted(name for name in store.sizes() if name != WORK or store.sizes(WORK).keys() - {"lease"})


def test_run_in_a_store_equals_a_local_run(out, source, model, expected):
    def second(*_: object) -> None:
        with pytest.raises(Refused, match="Another process is writing the run"):
            prepare(source, out, model)

    summary = explain(source, out, model, second)
    assert rows(out) == rows(expected) and manifest(out) == manifest(expected) and summary.folder == out
    names = ["manifest.json", *(f"part-0000{k}.parquet" for k in range(3)), "settings.json"]
    assert files(out) == files(expected) == names
    assert explain(source, out, model).new == 0
    for folder, settings, message in (
        (out, {"method": "hires_cam"}, "method: 'grad_cam' in the folder, 'hires_cam' now"),
        (out.rpartition("/")[0], {}, "contains other files"),
        ("nonsense://x", {}, "Cannot open nonsense://x"),
        *([("s3://nowhere/run", {}, r"Cannot write to .*bucket does not exist.* Check the n")] * out.startswith("s3")),
    ):
        with pytest.raises(Refused, match=message):
            prepare(source, folder, model, **settings)
    stores.open_store(out).write(FILE, b"{}")
    assert open_run(out).store.read(FILE) == b"{}"
    paths = [rows(expected)[number]["path"] for number in (40, 3)]
    assert open_run(out).take([40, 3], ["path"])["path"].to_pylist() == paths


def child(work: Callable[[], object]) -> int:
    """Start a function in a forked process, and return its process ID."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as null:
            warnings.simplefilter("ignore")
            os.dup2(null.fileno(), 2)
            work()
        code = 0
    except Refused:
        code = 3
    finally:
        os._exit(code)


@forks
@pytest.mark.parametrize("where", ["local", "disk", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_kill_at_any_write_or_deletion_loses_no_batch(where, request, few, model, tmp_path):
    """A process ends at each of its steps in turn. Another one continues at once, with the same rows."""
    kind, settings = stores.LocalStore if where == "local" else stores.RemoteStore, {"batch_size": 2, "shard": 4}
    explain(few, tmp_path / "whole", model, **settings)
    expected = rows(tmp_path / "whole"), manifest(tmp_path / "whole"), files(tmp_path / "whole")

    def run_until(step: int) -> None:
        """Explain until this write, or this deletion, of which one file is deleted."""
        left = [step]

        def ending(method: Any) -> Any:
            def call(self: Any, names: Any, *data: Any, **how: Any) -> Any:
                left[0] -= 1
                if left[0]:
                    return method(self, names, *data, **how)
                if not data:
                    method(self, list(names)[:1])
                os._exit(9)

            return call

        with pytest.MonkeyPatch.context() as patch:
            for name in {"write", "create", "delete"} & {*dir(kind)}:
                patch.setattr(kind, name, ending(getattr(kind, name)))
            explain(few, out, model, lambda done, _: (tmp_path / "done").write_text(str(done)), **settings)

    for step in itertools.count(1):
        (tmp_path / "done").write_text("0")
        out = new(where, request, tmp_path)
        code = os.waitstatus_to_exitcode(os.waitpid(child(lambda: run_until(step)), 0)[1])  # noqa: B023
        if code == 0:
            break
        done = int((tmp_path / "done").read_text())
        assert code == 9 and 4 - done <= explain(few, out, model, **settings).new <= 6 - done, step
        assert (rows(out), manifest(out), files(out)) == expected, step
    assert step > 10


def test_a_writer_that_fails_at_its_start_releases_the_run(source, model, monkeypatch):
    out = f"memory://bucket/start{random.getrandbits(64)}"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(stores.RemoteStore, "write", stop_after(0))
        prepare(source, out, model)
    prepare(source, out, model).shards.release()


@forks
@pytest.mark.parametrize("where", ["local", "disk", "s3"])
def test_of_two_writers_one_is_refused(where, request, few, model, tmp_path):
    """Two processes start at the same time: one finishes, the other one writes nothing."""
    out = new(where, request, tmp_path)
    pids = [child(lambda: explain(few, out, model, lambda *_: time.sleep(0.3))) for _ in range(2)]
    assert sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids) == [0, 3]
    assert len(rows(out)) == 6


@pytest.mark.parametrize("exclusive", [True, False])
def test_lease_of_another_machine(exclusive, source, model, expected, monkeypatch):
    """Only a change of the file counts, not the clock; a process that was taken over stops at its next shard."""
    monkeypatch.setattr(locks, "RENEW", 0.1)
    monkeypatch.setattr(locks, "WAIT", 0.4)
    monkeypatch.setattr(stores.RemoteStore, "is_exclusive", exclusive, raising=False)
    out = f"memory://bucket/lease{random.getrandbits(64)}"
    job = prepare(source, out, model)
    monkeypatch.setattr(platform, "node", lambda: "another machine")
    with pytest.warns(UserWarning, match="It is watched for 0.4 seconds"), pytest.raises(Refused, match="is writing"):
        prepare(source, out, model)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(locks, "RENEW", 60.0)
    time.sleep(0.3)  # now the first process is suspended: it renews its lease in a minute
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="this process continues the run"):
        patch.setattr(time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.1)))
        other = prepare(source, out, model)
    monkeypatch.setattr(locks, "RENEW", 0.1)
    with pytest.raises(Refused, match="Another process has taken over the run"):
        run.run(job, decode=open_image, workers=0)
    run.run(other, decode=open_image, workers=0)
    assert rows(out) == rows(expected)


def test_store_without_conditional_writes_has_one_writer(monkeypatch):
    """All processes find no lease and write it. The last one has it."""
    monkeypatch.setattr(locks, "RENEW", 0.2)
    monkeypatch.setattr(stores.RemoteStore, "is_exclusive", False, raising=False)
    barrier = threading.Barrier(3)

    def overwrite(self: stores.RemoteStore, name: str, data: bytes) -> bool:
        barrier.wait(10)  # until all have looked for a lease
        self.write(name, data)
        return True

    monkeypatch.setattr(stores.RemoteStore, "create", overwrite)

    def take(_: int) -> str:
        try:
            locks.Lease(stores.open_store(target))
        except Refused as error:
            return str(error)
        return "mine"

    target = f"memory://bucket/open{random.getrandbits(64)}"
    with ThreadPoolExecutor(3) as pool:
        found = sorted(pool.map(take, range(3)))
    assert found.count("mine") == 1 and all("taken over" in text or text == "mine" for text in found)


def stop_after(count: int) -> Callable[..., None]:
    """Return a function that ends a run after this number of images."""

    def report(done: Any, *_: object) -> None:
        if not count or done >= count:
            raise Killed

    return report


@pytest.mark.parametrize("where", ["memory", "local"])
def test_truncated_files_are_written_again(where, source, model, expected, tmp_path):
    """As after a crash or a power failure: a batch, a commit or its shard, and a shard without a commit."""
    out = tmp_path / "run" if where == "local" else f"memory://bucket/cut{random.getrandbits(64)}"
    with pytest.raises(Killed):
        explain(source, out, model, stop_after(24))
    target = stores.open_store(out)
    # A store does not read shards, whose commits are proof enough.
    first = "part-00000.parquet" if where == "local" else "work/commits/00000.json"
    for name in ("work/000001-0001.arrow", first, "part-00001.parquet"):
        target.write(name, (target.read(name) or b"1234")[: 0 if where == "local" else -3])
    with Shards(out, json.loads(target.read(SETTINGS) or b"")):
        assert target.read("work/commits/00000.json") is None, "a worker that starts again would trust it"
    assert explain(source, out, model).new == COUNT - 4
    assert rows(out) == rows(expected)
