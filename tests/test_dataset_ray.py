"""Ray: a run on a cluster has the rows of one machine, bit by bit, whatever is lost on the way."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from dataset import ray_run, run, shards
from dataset.errors import Refused
from dataset.explaining import Explainer
from dataset.pictures import Reading
from dataset.ray_run import Workers, running
from dataset.ray_run.task import portable
from dataset.settings import Settings
from models.model import Model, Preparation
from ui.serving.uploads import open_picture

PICTURES = 120
needs_ray = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="the extra ray")


@pytest.fixture(scope="module")
def model() -> Model:
    """A small convolutional network of ten classes."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()  # fmt: skip
    return Model("small", network, [f"class {i}" for i in range(10)], Preparation(64, 64, (0.5,) * 3, (0.5,) * 3))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random pictures, and one file that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    for i in range(PICTURES - 1):
        noise = torch.randint(0, 256, (64, 64, 3), generator=torch.Generator().manual_seed(i), dtype=torch.uint8)
        Image.fromarray(noise.numpy()).save(folder / f"{i:03d}.png")
    (folder / "zzz.png").write_bytes(b"no picture")
    return str(folder)


def prepared(source: str, out: Path, model: Model, **settings: Any) -> run.Job:
    return run.prepare(Settings(**{"batch_size": 4, "shard": 16, **settings}), source, out, model=model)


@pytest.fixture(scope="module")
def expected(source: str, model: Model, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of one machine."""
    out = tmp_path_factory.mktemp("one") / "out"
    run.run(prepared(source, out, model), decode=open_picture, workers=0)
    return rows(out)


def rows(out: Path) -> list[dict[str, Any]]:
    found = [{**row, "seconds": None} for row in shards.open_run(out).table.to_pylist()]
    assert len(found) == PICTURES and found[-1]["error"]
    return found


def sender(
    model: Model, settings: Settings, change: Callable[[list[Any]], list[Any]]
) -> Callable[[Any], Iterator[Any]]:
    """In place of the cluster: what it would send, changed by `change`."""

    def sent(task: Any) -> Iterator[Any]:
        reading, explain = Reading(task.decode, model.preparation), Explainer(model, settings)
        for shard, place, items in change(task.batches):
            found = pickle.dumps(explain(reading[items]))
            yield {"shard": shard, "place": place, "pictures": len(items), "rows": found}

    return sent


def test_batches_in_any_order_twice_and_after_a_loss(source, model, expected, tmp_path, monkeypatch):
    """The first time half of the batches come, some twice, last ones first; what is left is asked for again."""
    if not importlib.util.find_spec("ray"):
        monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: True)
    job, asked = prepared(source, tmp_path / "out", model), []

    def half(batches: list[Any]) -> list[Any]:
        asked.append(len(batches))
        return [*batches[::-2], *batches[::-4]] if len(asked) == 1 else batches

    monkeypatch.setattr(running, "_sent", sender(model, job.settings, half))
    seen: list[int] = []
    summary = ray_run.run(job, decode=open_picture, report=lambda done, of: seen.append(done))
    assert asked == [30, 15] and rows(tmp_path / "out") == expected
    assert summary.new == PICTURES and seen == sorted(set(seen)) and seen[-1] == PICTURES
    assert ray_run.run(job, decode=open_picture).new == 0


def test_without_ray_it_is_one_sentence(source, model, tmp_path, monkeypatch):
    monkeypatch.setattr(running.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Refused, match=r'pip install "hooklens\[ray\]"'):
        ray_run.run(prepared(source, tmp_path / "out", model), decode=open_picture)


def test_an_error_that_cannot_travel_becomes_its_words():
    class Local(Exception):
        """A class that no other process can find."""

    assert str(portable(Local("no room"))) == "Local: no room"
    assert isinstance(portable(Refused("as it is")), Refused)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two machines of three CPUs, in processes of their own."""
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 200 * 2**20, "include_dashboard": False}
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "_system_config": quick, **memory})
    found.second = found.add_node(num_cpus=3, **memory)
    found.wait_for_nodes()
    yield found
    found.shutdown()


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_a_node_is_killed_midway(cluster, source, model, expected, tmp_path, workers):
    """Two workers find room again on the machine that is left, four do not: their work is given to the others."""
    killed: list[int] = []

    def kill(done: int, of: int) -> None:
        if done >= of // 4 and not killed:
            killed.append(done)
            cluster.remove_node(cluster.second, allow_graceful=False)

    job = prepared(source, tmp_path / "out", model)
    asked = Workers(most=workers, cpus=1)
    summary = ray_run.run(job, decode=open_picture, address=cluster.address, workers=asked, report=kill, patience=10.0)
    assert killed and killed[0] < PICTURES
    assert summary.counts["pictures"] == PICTURES and summary.counts["unreadable"] == 1
    assert rows(tmp_path / "out") == expected


@needs_ray
@pytest.mark.slow
def test_stopped_midway_and_gone_on_with_on_one_machine(cluster, source, model, expected, tmp_path):
    """What one engine has done the other does not do again; a refusal of the library arrives as itself."""

    class Stop(Exception):
        """What the caller raises."""

    def stop(done: int, of: int) -> None:
        if done >= of // 2:
            raise Stop

    with pytest.raises(Stop):
        ray_run.run(
            prepared(source, tmp_path / "out", model), decode=open_picture, address=cluster.address, report=stop
        )
    summary = run.run(prepared(source, tmp_path / "out", model), decode=open_picture, workers=0)
    assert summary.new <= PICTURES // 2 and rows(tmp_path / "out") == expected
    with pytest.raises(Refused, match=r"too small \(CPUs: 6, GPUs: 0\): a worker takes 1 and 1"):
        job = prepared(source, tmp_path / "other", model)
        ray_run.run(job, decode=open_picture, address=cluster.address, workers=Workers(gpus=1))


@needs_ray
@pytest.mark.slow
def test_without_an_address_ray_begins_here_and_nothing_answers_elsewhere(source, model, expected, tmp_path):
    ray_run.run(prepared(source, tmp_path / "out", model), decode=open_picture)
    assert rows(tmp_path / "out") == expected
    with pytest.raises(Refused, match=r"No Ray cluster answers at 127\.0\.0\.1:1"):
        ray_run.run(prepared(source, tmp_path / "none", model), decode=open_picture, address="127.0.0.1:1")


@needs_ray
def test_the_cluster_file_is_one_that_ray_takes():
    """Oracle: Ray's own validation, which `ray up` begins with, and which refuses the file with a line too many."""
    yaml = pytest.importorskip("yaml")
    from ray.autoscaler._private.util import prepare_config, validate_config

    read = yaml.safe_load((Path(__file__).parents[1] / "docs" / "cluster.yaml").read_text(encoding="utf-8"))
    validate_config(found := prepare_config(dict(read)))
    gpu = found["available_node_types"]["gpu"]
    assert gpu["resources"] == {"CPU": 8, "GPU": 1} and gpu["min_workers"] == found["max_workers"] == 16
    with pytest.raises(Exception, match="surprise"):
        validate_config(prepare_config({**read, "surprise": 1}))
