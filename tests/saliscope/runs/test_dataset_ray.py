"""Runs on a cluster (Ray) have exactly the rows of a run on one machine."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from saliscope.errors import Refused
from saliscope.images.uploads import open_image
from saliscope.runs import ray_engine, shards
from saliscope.runs.decoding import ImageReader
from saliscope.runs.explaining import Explainer
from saliscope.runs.ray_engine import Workers, running, stages
from saliscope.runs.ray_engine.stages import picklable
from saliscope.runs.settings import Settings
from saliscope.runs.shards.planning import Batch, Finished, Stamp, list_partition
from saliscope.runs.shards.writing import ShardFiles
from saliscope.runs.stores import open_store
from saliscope.zoo.model import Model
from tests.saliscope.runs.test_dataset_stores import (
    COUNT,
    Killed,
    expected,
    explain,
    model,
    prepare,
    rows,
    source,
    stop_after,
)  # fmt: skip

__all__ = ["expected", "model", "source"]  # fixtures
needs_ray = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs the extra ray")
Change = Callable[[list[Any]], list[Any]]


def sender(model: Model, settings: Settings, change: Change) -> Callable[[Any], Iterator[Any]]:
    """Return a replacement of the cluster that sends its results, changed by `change`."""

    def send(task: Any) -> Iterator[Any]:
        reader, explain = ImageReader(task.decode, model.preparation), Explainer(model, settings)
        listed = (list_partition(*each, task.settings, task.finished) for each in task.partitions)
        found = list(itertools.chain.from_iterable(listed))
        for batch in change([each for each in found if isinstance(each, Batch)]):
            result = batch.result() | {"closes": False, "stamp": Stamp.of(batch.items), "errors": 0}
            yield result | {"rows": explain(reader[batch.items])}
        yield from (each for each in found if not isinstance(each, Batch))

    return send


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Iterator[Any]]], None]:
    """Return a function that replaces the cluster."""
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: True)
    return lambda send: monkeypatch.setattr(running, "receive", send)


@pytest.mark.parametrize("out", ["local", "memory://bucket/workers"])
def test_workers_write_the_shards(out, source, model, expected, tmp_path, pretended, monkeypatch):
    """The starting process receives only counts; a batch that arrives twice does not matter."""
    job = prepare(source, tmp_path / "out" if out == "local" else out, model)

    def send(task: Any) -> Iterator[Any]:
        files, finished = ShardFiles(open_store(task.out)), Finished("")
        for result in sender(model, job.settings, lambda batches: [*batches[::-1], batches[0]])(task):
            if "end" in result:
                yield result
                continue
            rows_ = result.pop("rows")
            if result["shard"] not in job.shards.finished.shards:
                files.write_batch(result["shard"], result["index"], rows_, result["stamp"])
            yield {**result, "closes": True}
            if finished.add(result):
                yield stages.close_shard(task.out, result["shard"], result["batches"], model.labels)

    pretended(send)
    monkeypatch.setattr(shards.Shards, "write_batch", None)
    monkeypatch.setattr(shards.Shards, "close", None)
    summary = ray_engine.run(job, decode=open_image)
    assert rows(job.shards.folder) == rows(expected) and summary.new == COUNT
    assert summary.counts == shards.read_manifest(expected)["counts"]


def test_shard_that_another_task_has_written_or_lost(source, model, tmp_path):
    """As after a driver that has given up while its task wrote the shard and deleted the batches."""
    with pytest.raises(Killed):
        explain(source, tmp_path / "out", model, stop_after(16))
    found = stages.close_shard(str(tmp_path / "out"), 0, 4, model.labels)
    assert found["shard"] == 0 and found["commit"]["counts"]["images"] == 16
    found = stages.close_shard(str(tmp_path), 0, 1, model.labels)
    assert isinstance(found["error"], Refused) and "disappeared" in str(found["error"])


def test_missing_ray_is_reported(source, model, tmp_path, monkeypatch):
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r'pip install "saliscope\[ray\] @ git\+'):
        ray_engine.run(prepare(source, tmp_path / "out", model), decode=open_image)


def test_errors_that_cannot_be_pickled_become_messages():
    class Local(Exception):
        """A class that other processes cannot import."""

    assert str(picklable(Local("no space"))) == "Local: no space"
    assert isinstance(picklable(Refused("as it is")), Refused)


@pytest.fixture
def cluster(monkeypatch, tmp_path) -> Iterator[Any]:
    """Start two machines with three CPUs each and one declared GPU, in separate processes, without Saliscope."""
    from ray.cluster_utils import Cluster

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    memory = {"object_store_memory": 200 * 2**20, "include_dashboard": False}
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 3, "num_gpus": 1, "_system_config": quick, **memory}
    found = Cluster(initialize_head=True, head_node_args=head)
    found.second = found.add_node(num_cpus=3, **memory)
    found.wait_for_nodes()
    yield found
    found.shutdown()


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_run_survives_a_killed_node(cluster, source, model, expected, tmp_path, workers):
    """Two workers fit on the remaining machine; of four workers, some do not, and their work is given to the others."""
    killed: list[int] = []

    def kill(done: int, of: int) -> None:
        if done >= of // 4 and not killed:
            killed.append(done)
            cluster.remove_node(cluster.second, allow_graceful=False)

    job, limit = prepare(source, tmp_path / "out", model), Workers(most=workers, cpus=1)
    ray_engine.run(job, decode=open_image, address=cluster.address, workers=limit, report=kill, patience=10.0)
    assert killed and killed[0] < COUNT and rows(tmp_path / "out") == rows(expected)


@needs_ray
@pytest.mark.slow
def test_run_stopped_on_a_cluster_resumes_on_one_machine(cluster, source, model, expected, tmp_path):
    """Batches finished by one engine are not computed again by the other one; errors keep their type."""
    on_cluster = {"decode": open_image, "address": cluster.address}
    with pytest.raises(Killed):
        ray_engine.run(prepare(source, tmp_path / "out", model), report=stop_after(COUNT // 2), **on_cluster)
    assert explain(source, tmp_path / "out", model).new <= COUNT // 2 + 1 and rows(tmp_path / "out") == rows(expected)
    with pytest.raises(Refused, match=r"too small \(CPUs: 6, GPUs: 1\): a worker needs 1 CPUs and 2 GPUs"):
        ray_engine.run(prepare(source, tmp_path / "other", model), workers=Workers(gpus=2), **on_cluster)


@needs_ray
def test_cluster_file_is_valid():
    """Oracle: Ray's own validation, the first step of `ray up`, which rejects the file with an additional line."""
    yaml = pytest.importorskip("yaml")
    from ray.autoscaler._private.util import prepare_config, validate_config

    read = yaml.safe_load((Path(__file__).parents[3] / "docs" / "cluster.yaml").read_text(encoding="utf-8"))
    validate_config(found := prepare_config(dict(read)))
    gpu = found["available_node_types"]["gpu"]
    assert gpu["resources"] == {"CPU": 8, "GPU": 1} and gpu["min_workers"] == found["max_workers"] == 16
    with pytest.raises(Exception, match="surprise"):
        validate_config(prepare_config({**read, "surprise": 1}))
