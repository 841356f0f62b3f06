"""`python -m benchmarks.data_sets.plan --photos FOLDER`: how long a run of a billion images takes on a cluster.

The costs of the steps are measured on this machine, which needs Ray: listing, decoding, explaining, writing the rows of
a batch, writing a shard, and the work of the processes that start the run and its tasks. The steps run at the same
time, so the busiest resource decides how long the run takes on 1, 2, 4, … machines, and from which number on more
machines do not help. An image on a GPU is not measured here: pass its milliseconds with --explain-ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from benchmarks.data_sets.scaling import decode
from saliscope.datasets import ray_engine, run
from saliscope.datasets.decoding import ImageReader
from saliscope.datasets.explaining import Explainer
from saliscope.datasets.ray_engine.running import Collector
from saliscope.datasets.ray_engine.stages import close_shard
from saliscope.datasets.settings import Settings
from saliscope.datasets.shards.planning import Finished, Stamp
from saliscope.datasets.shards.writing import ShardFiles
from saliscope.datasets.sources import list_items
from saliscope.zoo.model import Model, Preparation

MEASURED = 128
"""Images that are measured."""
FEW, MANY = 60, 360
"""Batches of two runs on Ray, whose difference does not contain its start."""
LISTERS = 64
"""Partitions that are listed at the same time, at most one per machine."""
LIST, CPUS, EXPLAIN, PROCESS = "listing", "CPUs", "explaining", "one process"
"""Resources: CPUs decode and write; one process takes the results."""
GAIN = 1.1
"""Doubling the machines has to be so many times as fast, or the run has stopped scaling."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one core: of an image, a batch or a shard."""

    list_image: float
    decode_image: float
    explain_image: float
    write_batch: float
    write_shard: float
    take_batch: float
    """By the process that starts the run, as the next one."""
    take_shard: float
    shard_bytes: float = 0
    """Memory of that process."""

    def text(self, batch: int, shard: int) -> str:
        """Return the costs as lines."""
        return "\n".join(
            f"{name:46}{seconds * 1e3:10.4f} ms"
            for name, seconds in {
                "list an image": self.list_image,
                "decode an image": self.decode_image,
                "explain an image": self.explain_image,
                f"write the rows of a batch ({batch} images)": self.write_batch,
                f"write a shard ({shard} images)": self.write_shard,
                "start and take a batch (one process)": self.take_batch,
                "take a shard (one process)": self.take_shard,
            }.items()
        )


@dataclass(frozen=True)
class Cluster:
    """Machines with CPUs and GPUs; without GPUs, four of five CPUs explain."""

    machines: int
    cpus: int
    gpus: int
    partitions: int

    def servers(self) -> dict[str, int]:
        """Return how many of each step run at the same time."""
        cpus = self.machines * self.cpus
        explain = self.machines * self.gpus if self.gpus else max(1, cpus * 4 // 5)
        return {
            LIST: min(self.partitions, self.machines, LISTERS),
            CPUS: max(1, cpus - (0 if self.gpus else explain)),
            EXPLAIN: explain,
            PROCESS: 1,
        }


def main() -> None:
    """Print the costs and a table of machines."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_sets.plan", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", help="a source of at least 64 images, to measure the costs")
    parser.add_argument("--images", type=float, default=1e9)
    parser.add_argument("--partitions", type=int, default=10_000, help="files of the set; 1 for a folder or a list")
    parser.add_argument("--cpus", type=int, default=8, help="CPUs per machine")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs per machine")
    parser.add_argument("--explain-ms", type=float, help="milliseconds to explain an image on a GPU")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16, 128], help="a table for each")
    arguments = parser.parse_args()
    if arguments.photos is None:
        parser.error("--photos is needed to measure the costs")
    if arguments.gpus and arguments.explain_ms is None:
        parser.error("an image on a GPU is not measured here: pass --explain-ms, or --gpus 0")
    torch.set_num_threads(1)
    ray = ray_seconds()
    for batch_size in arguments.batch_size:
        settings = Settings(batch_size=batch_size)
        costs = measure(settings, arguments.photos)
        costs = dataclasses.replace(costs, take_batch=costs.take_batch + ray)
        if arguments.explain_ms is not None:
            costs = dataclasses.replace(costs, explain_image=arguments.explain_ms / 1e3)
        print(costs.text(settings.batch_size, settings.shard))
        table(costs, settings, arguments)


def table(costs: Costs, settings: Settings, arguments: argparse.Namespace) -> None:
    """Print the speed of 1, 2, 4, … machines, until more do not help."""
    shards = arguments.images / settings.shard
    print(f"Memory for the shards of {arguments.images:,.0f} images: {shards * costs.shard_bytes / 1e6:,.0f} MB\n")
    print("machines   images/s       hours  limited by     busy")
    before, machines = 0.0, 1
    while True:
        cluster = Cluster(machines, arguments.cpus, arguments.gpus, arguments.partitions)
        rate, busy = speed(costs, cluster, settings.batch_size, settings.shard)
        limit = max(busy, key=lambda name: busy[name])
        print(f"{machines:8,} {rate:10,.0f} {arguments.images / rate / 3600:11,.1f}  {limit:12}  {busy[limit]:.0%}",
              flush=True)  # fmt: skip
        if rate < GAIN * before:
            print(f"More than {machines // 2:,} machines do not help: {limit} is the limit.\n")
            return
        before, machines = rate, 2 * machines


def speed(costs: Costs, cluster: Cluster, batch: int, shard: int) -> tuple[float, dict[str, float]]:
    """Return images per second while all stages are full, and the share of time that each resource is busy."""
    whole = max(1, shard // batch)
    seconds = {
        LIST: costs.list_image * batch,
        CPUS: costs.decode_image * batch + costs.write_batch + costs.write_shard / whole,
        EXPLAIN: costs.explain_image * batch,
        PROCESS: costs.take_batch + costs.take_shard / whole,
    }
    count = cluster.servers()
    rate = min(count[name] / seconds[name] for name in seconds)
    return rate * batch, {name: rate * seconds[name] / count[name] for name in seconds}


def measure(settings: Settings, source: str) -> Costs:
    """Measure the costs with the images of a source, in time of one core."""
    with tempfile.TemporaryDirectory() as folder:
        job = run.prepare(settings, source, Path(folder) / "run", limit=MEASURED)
        found = [(index, items) for _, index, items in job.missing()][:8]
        images = sum(len(items) for _, items in found)
        reader, explain = ImageReader(decode, job.model.preparation), Explainer(job.model, job.settings)
        explain(reader[found[0][1]])  # warm-up
        decoded = []
        decoding = _seconds(lambda: decoded.extend(pickle.loads(pickle.dumps(reader[items])) for _, items in found))
        rows = []
        explaining = _seconds(lambda: rows.extend(map(explain, decoded)))
        out = str(job.shards.folder)
        files, stamps = ShardFiles(job.shards.store), [Stamp.of(items) for _, items in found]
        files.write_batch(1, 0, rows[0], stamps[0])  # warm-up
        whole = max(1, settings.shard // settings.batch_size)  # a shard may have more images than were measured

        def write() -> None:
            for k in range(whole):
                files.write_batch(0, k, rows[k % len(rows)], stamps[k % len(rows)])

        writing = _seconds(write) / whole
        close_shard(out, 1, 1, job.model.labels)  # warm-up
        closed: list[dict[str, object]] = []
        closing = _seconds(lambda: closed.append(close_shard(out, 0, whole, job.model.labels)))
        listing = _seconds(lambda: list_items(source)) / max(1, len(list_items(source).items))
        collector, results = Collector(job, None, None), 20_000
        collector.start()
        one = {"index": 0, "count": 16, "errors": 0, "left": 32, "batches": 32, "closes": True, "warning": None}
        sent = [pickle.dumps({**one, "shard": k, "stamp": stamps[0]}) for k in range(results)]
        taking = _seconds(lambda: [collector.add(pickle.loads(each)) for each in sent]) / results
        commits = [pickle.dumps({**closed[0], "shard": k}) for k in range(results)]
        shards = _seconds(lambda: [collector.add(pickle.loads(each)) for each in commits]) / results
    return Costs(listing, decoding / images, explaining / images, writing, closing, taking, shards,
                 _shard_bytes())  # fmt: skip


def ray_seconds() -> float:
    """Return the CPU seconds that the process which is connected to Ray needs for a batch: it starts all tasks."""
    from ray.cluster_utils import Cluster

    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()
    model = Model("tiny", network, [*"abc"], Preparation(8, 8, (0.5,) * 3, (0.5,) * 3))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    used = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in (FEW, MANY):
            images = Path(folder) / str(count)
            images.mkdir()
            for k in range(count):
                Image.new("RGB", (8, 8)).save(images / f"{k}.png")
            job = run.prepare(Settings(batch_size=1), str(images), Path(folder) / f"run{count}", model=model)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            limits = ray_engine.Workers(most=1, cpus=1)
            ray_engine.run(job, decode=decode, address=cluster.address, workers=limits)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used[count] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cluster.shutdown()
    return (used[MANY] - used[FEW]) / (MANY - FEW)


def _shard_bytes() -> float:
    """Return the memory that the process needs for each finished shard."""
    tracemalloc.start()
    finished, count = Finished(""), 100_000
    for shard in range(10**9, 10**9 + count):
        finished.shards[shard] = f"{shard:016x}"
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / count


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
