"""`python -m benchmarks.data_sets.plan --photos FOLDER`: how long a run of a billion images takes on a cluster.

The costs of the steps are measured on this machine: listing, decoding, explaining, writing the rows of a batch, writing
a shard. The steps run at the same time, so the busiest resource decides how long the run takes on 1, 2, 4, … machines,
and from which number on more machines do not help. An image on a GPU and the work of the process that starts the tasks
of Ray are not measured here: pass their milliseconds with --explain-ms and --start-ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.data_sets.__main__ import decode
from saliscope.datasets import run
from saliscope.datasets.decoding import ImageReader
from saliscope.datasets.explaining import Explainer
from saliscope.datasets.ray_engine.stages import close_shard
from saliscope.datasets.settings import Settings
from saliscope.datasets.shards.planning import Stamp
from saliscope.datasets.shards.writing import ShardFiles
from saliscope.datasets.sources import list_items

MEASURED = 128
"""Images that are measured."""
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
    take_batch: float = 0.0
    """By the process that starts the run, as the next one."""
    take_shard: float = 0.0


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
        others = max(1, cpus - (0 if self.gpus else explain))
        return {LIST: min(self.partitions, self.machines, LISTERS), CPUS: others, EXPLAIN: explain, PROCESS: 1}


def main() -> None:
    """Print the costs and a table of machines."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_sets.plan", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", required=True, help="a source of at least 64 images, to measure the costs")
    parser.add_argument("--limit", type=int, default=MEASURED)
    parser.add_argument("--images", type=float, default=1e9)
    parser.add_argument("--partitions", type=int, default=10_000, help="files of the set; 1 for a folder or a list")
    parser.add_argument("--cpus", type=int, default=8, help="CPUs per machine")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs per machine")
    parser.add_argument("--explain-ms", type=float, help="milliseconds to explain an image (default: as on this CPU)")
    parser.add_argument("--start-ms", type=float, default=0.0, help="milliseconds to start and take a batch")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[16, 128], help="a table for each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for batch in arguments.batch_size:
        settings = Settings(batch_size=batch)
        costs = dataclasses.replace(
            measure(settings, arguments.photos, arguments.limit), take_batch=arguments.start_ms / 1e3
        )
        if arguments.explain_ms is not None:
            costs = dataclasses.replace(costs, explain_image=arguments.explain_ms / 1e3)
        for name, seconds in dataclasses.asdict(costs).items():
            print(f"{name:16}{seconds * 1e3:10.4f} ms")
        table(costs, settings, arguments)


def table(costs: Costs, settings: Settings, arguments: argparse.Namespace) -> None:
    """Print the speed of 1, 2, 4, … machines, until more do not help."""
    print("machines   images/s       hours  limited by     busy")
    before, rate, machines = 0.0, 0.0, 1
    while not before or rate >= GAIN * before:
        before = rate
        cluster = Cluster(machines, arguments.cpus, arguments.gpus, arguments.partitions)
        rate, busy = speed(costs, cluster, settings.batch_size, settings.shard)
        limit, hours = max(busy, key=lambda name: busy[name]), arguments.images / rate / 3600
        print(f"{machines:8,} {rate:10,.0f} {hours:11,.1f}  {limit:12}  {busy[limit]:.0%}", flush=True)
        machines *= 2
    print(f"More than {machines // 4:,} machines do not help: {limit} is the limit.\n")


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
    rate = min(count[name] / each for name, each in seconds.items() if each)
    return rate * batch, {name: rate * seconds[name] / count[name] for name in seconds}


def measure(settings: Settings, source: str, limit: int) -> Costs:
    """Measure the costs with the images of a source, in time of one core."""
    with tempfile.TemporaryDirectory() as folder:
        job = run.prepare(settings, source, Path(folder) / "run", limit=limit)
        batches = [items for *_, items in job.missing()]
        images, stamps = sum(map(len, batches)), [Stamp.of(items) for items in batches]
        reader, explain = ImageReader(decode, job.model.preparation), Explainer(job.model, job.settings)
        explain(reader[batches[0]])  # warm-up
        decoded, rows = [], []
        decoding = _seconds(lambda: decoded.extend(pickle.loads(pickle.dumps(reader[items])) for items in batches))
        explaining = _seconds(lambda: rows.extend(map(explain, decoded)))
        files = ShardFiles(job.shards.store)
        whole = max(1, settings.shard // settings.batch_size)  # a shard may have more images than were measured

        def write() -> None:
            for k in range(whole):
                files.write_batch(0, k, rows[k % len(rows)], stamps[k % len(rows)])

        write()  # warm-up
        writing = _seconds(write) / whole
        closing = _seconds(lambda: close_shard(str(job.shards.folder), 0, whole, job.model.labels))
        size = sum(part.stat().st_size for part in Path(job.shards.folder).glob("*.parquet"))
        print(f"bytes of a batch for another process: {len(pickle.dumps(decoded[0])):,}, of a shard: {size:,}")
        listing = _seconds(lambda: list_items(source)) / max(1, len(list_items(source).items))
    return Costs(listing, decoding / images, explaining / images, writing, closing)


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
