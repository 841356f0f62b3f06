"""Runs in stores (`memory://`, `s3://`): the same rows as in a local folder, after kills and with two writers.

The S3 server is moto's, in this process. These tests need the extra `s3`.
"""

from __future__ import annotations

import os
import random
import signal
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from saliscope.datasets import run, stores
from saliscope.datasets.finished.evaluation import FILE
from saliscope.datasets.settings import Settings
from saliscope.datasets.shards import locks, open_run, read_manifest
from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.zoo.model import Model, Preparation

COUNT = 45
KILLS = 20


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    return Model("small", nn.Sequential(*layers).eval(), [*"abcd"], Preparation(32, 32, (0.5,) * 3, (0.5,) * 3))


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


def prepare(source: str, out: str | Path, model: Model, **settings: Any) -> run.Job:
    return run.prepare(Settings(**{"batch_size": 4, "shard": 16, **settings}), source, out, model=model)


def explain(source: str, out: str | Path, model: Model, report: Any = None) -> run.Summary:
    return run.run(prepare(source, out, model), decode=open_image, workers=0, report=report)


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


@pytest.fixture(params=["memory", "s3"])
def out(request: pytest.FixtureRequest) -> str:
    """Return the URL of a new run."""
    if request.param == "s3":
        request.getfixturevalue("server")
    return f"{request.param}://bucket/run{random.getrandbits(64)}"


class Killed(BaseException):
    pass


def files(out: str) -> list[str]:
    found = stores.open_store(out)
    assert isinstance(found, stores.RemoteStore)
    found.fs.invalidate_cache()
    return sorted(str(path).rpartition(out.rpartition("/")[2] + "/")[2] for path in found.fs.find(found.root))


def test_run_in_a_store_equals_a_local_run(out, source, model, expected):
    summary = explain(source, out, model)
    assert rows(out) == rows(expected) and manifest(out) == manifest(expected) and summary.folder == out
    assert files(out) == sorted(path.name for path in expected.iterdir())
    assert explain(source, out, model).new == 0
    with pytest.raises(Refused, match="method: 'grad_cam' in the folder, 'hires_cam' now"):
        prepare(source, out, model, method="hires_cam")
    with pytest.raises(Refused, match="contains other files"):
        prepare(source, out.rpartition("/")[0], model)
    if out.startswith("s3"):
        with pytest.raises(Refused, match=r"Cannot write to 's3://nowhere/run' .*bucket does not exist.* Check the n"):
            prepare(source, "s3://nowhere/run", model)
    with pytest.raises(Refused, match="Cannot open nonsense://x"):
        prepare(source, "nonsense://x", model)
    stores.open_store(out).write(FILE, b"{}")
    assert open_run(out).store.read(FILE) == b"{}"
    paths = [row["path"] for row in rows(expected)]
    assert open_run(out).columns(["path"])["path"].to_pylist() == paths
    assert open_run(out).take([40, 3], ["path"])["path"].to_pylist() == [paths[40], paths[3]]


def test_killed_run_in_a_store_ends_with_the_same_rows(out, source, model, expected, monkeypatch):
    """The process stops before or after a random write or deletion; what it wrote stays."""
    generator, steps = random.Random(0), [0]

    def breaking(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            steps[0] -= 1
            if steps[0] == 0 and generator.random() < 0.5:
                raise Killed
            result = method(*arguments, **options)
            if steps[0] == 0:
                raise Killed
            return result

        return call

    for name in ("write", "create", "delete"):
        monkeypatch.setattr(stores.RemoteStore, name, breaking(getattr(stores.RemoteStore, name)))
    monkeypatch.setattr(locks, "_is_alive", lambda content: False)
    kills = 0
    for _ in range(60):
        steps[0] = generator.randint(3, 8) if kills < KILLS else 10**6
        try:
            explain(source, out, model)
            break
        except Killed:
            kills += 1
    steps[0] = 10**6
    assert kills >= 6 and rows(out) == rows(expected) and manifest(out) == manifest(expected)
    explain(source, out, model)
    assert files(out) == sorted(path.name for path in expected.iterdir())


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_killed_at_random_times(server, source, model, expected):
    """SIGKILL, 20 times. A process on the same machine continues at once, since the owner of the lease has ended."""
    out, generator = f"s3://bucket/killed{random.getrandbits(64)}", random.Random(time.time_ns())
    for _ in range(KILLS):
        pid = child(lambda: explain(source, out, model, lambda *_: time.sleep(0.05)))
        time.sleep(generator.uniform(0.05, 0.5))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    explain(source, out, model)
    assert rows(out) == rows(expected) and manifest(out) == manifest(expected)
    assert files(out) == sorted(path.name for path in expected.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_of_two_writers_one_is_refused(server, source, model, expected):
    """Two processes start at the same time: one finishes, the other one writes nothing."""
    for _ in range(3):
        out = f"s3://bucket/two{random.getrandbits(64)}"
        pids = [child(lambda: explain(source, out, model, lambda *_: time.sleep(0.1))) for _ in range(2)]  # noqa: B023
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
        assert codes == [0, 3] and rows(out) == rows(expected)


def test_second_writer_is_refused_while_the_first_one_writes(out, source, model, expected):
    def second(*_: object) -> None:
        with pytest.raises(Refused, match="Another process is writing the run"):
            prepare(source, out, model)

    explain(source, out, model, second)
    assert rows(out) == rows(expected)


@pytest.mark.parametrize("exclusive", [True, False])
def test_lease_of_another_machine(exclusive, source, model, expected, monkeypatch):
    """Only a change of the file counts, not the clock; a process that was taken over stops at its next shard."""
    monkeypatch.setattr(locks, "RENEW", 0.1)
    monkeypatch.setattr(locks, "WAIT", 0.4)
    monkeypatch.setattr(locks, "_is_alive", lambda content: None)
    monkeypatch.setattr(stores.RemoteStore, "is_exclusive", exclusive, raising=False)
    out = f"memory://bucket/lease{random.getrandbits(64)}"
    job = prepare(source, out, model)
    with pytest.warns(UserWarning, match="It is watched for 0.4 seconds"), pytest.raises(Refused, match="is writing"):
        prepare(source, out, model)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    job.shards.lock._end.set()  # the first process is suspended
    with pytest.warns(UserWarning, match="this process continues the run"):
        other = prepare(source, out, model)
    with pytest.raises(Refused, match="Another process has taken over the run"):
        run.run(job, decode=open_image, workers=0)
    run.run(other, decode=open_image, workers=0)
    assert rows(out) == rows(expected)


def test_store_without_conditional_writes_has_one_writer(monkeypatch):
    """Both processes find no lease and write it. The last one has it."""
    monkeypatch.setattr(locks, "RENEW", 0.2)
    monkeypatch.setattr(stores.RemoteStore, "is_exclusive", False, raising=False)

    def overwrite(self: stores.RemoteStore, name: str, data: bytes) -> bool:
        self.write(name, data)
        return True

    monkeypatch.setattr(stores.RemoteStore, "create", overwrite)
    from concurrent.futures import ThreadPoolExecutor

    def take(_: int) -> str:
        try:
            locks.Lease(target)
        except Refused as error:
            return str(error)
        return "mine"

    target = stores.open_store(f"memory://bucket/open{random.getrandbits(64)}")
    monkeypatch.setattr(locks.Lease, "_wait_for_owner", lambda self: 0)
    with ThreadPoolExecutor(3) as pool:
        found = sorted(pool.map(take, range(3)))
    assert found.count("mine") == 1 and all("taken over" in text or text == "mine" for text in found)


@pytest.mark.parametrize("where", ["memory", "local"])
@pytest.mark.parametrize("step", ["before the commit", "after the commit", "while batches are deleted"])
def test_a_kill_around_a_commit_loses_no_batch(step, where, source, model, expected, tmp_path, monkeypatch):
    """A shard without a commit is merged again from its batches; batches of a committed shard are deleted."""
    out = tmp_path / "run" if where == "local" else f"memory://bucket/commit{random.getrandbits(64)}"
    kind = stores.LocalStore if where == "local" else stores.RemoteStore
    write, delete = kind.write, kind.delete

    def stop_write(self: Any, name: str, data: bytes, sync: bool = True) -> None:
        if "commits/00001" in name and step == "before the commit":
            raise Killed
        write(self, name, data, sync)

    def stop_delete(self: Any, names: Any) -> None:
        names = list(names)
        if any("000001-" in name for name in names) and step != "before the commit":
            delete(self, names[:1] if step == "while batches are deleted" else [])
            raise Killed
        delete(self, names)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "write", stop_write)
        patched.setattr(kind, "delete", stop_delete)
        with pytest.raises(Killed):
            explain(source, out, model)
    left = [name for name in stores.open_store(out).sizes("work") if name.startswith("000001-")]
    assert left and "part-00001.parquet" in stores.open_store(out).sizes()

    assert explain(source, out, model).new == COUNT - 32
    assert rows(out) == rows(expected) and manifest(out) == manifest(expected)
    assert "work" not in stores.open_store(out).sizes() or where == "memory"


def stop_after(count: int) -> Callable[[int, int | None], None]:
    """Return a function that ends a run after this number of images."""

    def report(done: int, total: int | None) -> None:
        if done >= count:
            raise Killed

    return report


def test_a_shard_whose_commit_and_batches_are_lost_is_computed_again(source, model, expected, tmp_path):
    """As after a power failure. Its rows alone do not tell which images it was about."""
    with pytest.raises(Killed):
        explain(source, tmp_path, model, stop_after(32))
    (tmp_path / "work" / "commits" / "00000.json").unlink()

    assert explain(source, tmp_path, model).new == COUNT - 16
    assert rows(tmp_path) == rows(expected) and manifest(tmp_path) == manifest(expected)


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
    assert explain(source, out, model).new == COUNT - 4
    assert rows(out) == rows(expected)


def test_images_and_tars_on_s3(server, source, model, expected, tmp_path):
    """Oracle: the local run. The tar has the same images with other paths."""
    import fsspec

    fs = fsspec.filesystem("s3")
    fs.put(source, "bucket/images", recursive=True)
    with tarfile.open(tmp_path / "images.tar", "w") as tar:
        tar.add(source, arcname=".")
    fs.put_file(str(tmp_path / "images.tar"), "bucket/images.tar")
    local = [(row["sha256"], row["map"], bool(row["error"])) for row in rows(expected)]
    for name in ("images", "images.tar"):
        explain(f"s3://bucket/{name}", tmp_path / name.replace(".", "-"), model)
        found = rows(tmp_path / name.replace(".", "-"))
        assert [(row["sha256"], row["map"], bool(row["error"])) for row in found] == local
