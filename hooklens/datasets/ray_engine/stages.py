"""The stages on the cluster: tasks read and decode batches, actors explain them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hooklens.datasets.decoding import DecodedBatch, ImageReader
from hooklens.datasets.ray_engine.task import READING, Task, Workers, picklable
from hooklens.datasets.settings import Settings
from hooklens.datasets.shards.writing import ShardFiles
from hooklens.datasets.stores import open_store

if TYPE_CHECKING:
    from hooklens.zoo import Model

BLOCKS = 2000
"""Maximum number of reading tasks that Ray plans; if there are more batches, a task reads several."""


def results(task: Task) -> Iterator[dict[str, Any]]:
    """Yield shard, batch index, number of images and pickled rows of every batch, in the order of completion."""
    import ray  # slow to import, or an extra

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    options = ray.data.DataContext.get_current()
    options.enable_progress_bars = False
    options.target_max_block_size = 1  # one batch per block, so that a batch is explained while the next one is decoded
    batches = [{"shard": shard, "index": index, "items": pickle.dumps(items)} for shard, index, items in task.batches]
    data = ray.data.from_items(batches, override_num_blocks=min(len(batches), BLOCKS))
    read = data.map(_make_reader(ImageReader(task.decode, task.model.preparation)), num_cpus=READING)
    workers = task.workers
    explained = read.map(
        ExplainActor,  # Ray runs a class as an actor
        fn_constructor_args=(ray.put(task.model), task.settings, workers, task.out),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers.most, initial_size=workers.most),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
    )
    batches_left, closing = _Countdown(task), _Closing(task)
    for result in explained.iter_rows():
        yield result
        if task.out is not None and batches_left.finish(result["shard"], result["index"]):
            closing.start(result["shard"])
        yield from closing.results(wait=False)
    yield from closing.results(wait=True)


class _Countdown:
    """The unfinished batches of each shard."""

    def __init__(self, task: Task) -> None:
        self.left: dict[int, set[int]] = {}
        for shard, index, _ in task.batches:
            self.left.setdefault(shard, set()).add(index)

    def finish(self, shard: int, index: int) -> bool:
        """Return whether this was the last batch of a shard."""
        left = self.left.get(shard, set())
        if index not in left:
            return False
        left.discard(index)
        return not left


class _Closing:
    """Tasks that write the shards whose batches are finished."""

    def __init__(self, task: Task) -> None:
        import ray  # slow to import, or an extra

        self.task = task
        self.running: list[Any] = []
        self.remote = ray.remote(num_cpus=0, max_retries=3)(close_shard).options(name="write shards")
        self.names = ray.put(task.model.labels)

    def start(self, shard: int) -> None:
        """Write a shard."""
        count, labels = self.task.shards[shard]
        self.running.append(self.remote.remote(self.task.out, shard, count, labels, self.names))

    def results(self, wait: bool) -> Iterator[dict[str, Any]]:
        """Yield shard and commit of the shards that were written since the last call, or of all of them."""
        import ray  # slow to import, or an extra

        while self.running:
            done, self.running = ray.wait(self.running, timeout=None if wait else 0)
            if not done:
                return
            yield from ray.get(done)


def close_shard(out: str, shard: int, count: int, labels: list[str | None], names: list[str]) -> dict[str, Any]:
    """Write the Parquet file and the commit of a shard, and return the commit, or the error.

    This runs in a task on any machine, because the rows are not sent to the process that started the run.
    """
    from hooklens.datasets.run import count_rows  # imports torch
    from hooklens.datasets.settings import Classes  # as above

    files = ShardFiles(open_store(out))
    commit: dict[str, Any] | Exception
    try:
        commit = count_rows(labels, files.merge(shard, count), Classes(names))
        files.commit(shard, count, commit)
    except Exception as error:
        commit = picklable(error)
    return {"shard": shard, "commit": commit}


def _make_reader(reader: ImageReader) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def read(batch: dict[str, Any]) -> dict[str, Any]:
        decoded = reader[pickle.loads(batch["items"])]
        return {"shard": batch["shard"], "index": batch["index"], "decoded": pickle.dumps(decoded)}

    return read


class ExplainActor:
    """An actor that loads the network once, explains batches, and writes their rows if it knows the folder."""

    def __init__(self, model: Any, settings: Settings, workers: Workers, out: str | None = None) -> None:
        import ray  # slow to import, or an extra
        import torch  # torch takes seconds to start

        from hooklens.datasets.explaining import Explainer  # imports torch or an extra
        from hooklens.zoo import devices  # as above

        torch.set_num_threads(max(1, round(workers.cpus or 1)))
        loaded: Model = ray.get(model)
        device = devices.choose(workers.device)
        self._warning = devices.compare(loaded, device)
        self._explain = Explainer(loaded, settings, str(device))
        self._files = None if out is None else ShardFiles(open_store(out))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a batch, None if they are written, or an error, which the starting process raises."""
        decoded: DecodedBatch = pickle.loads(batch["decoded"])
        rows: list[dict[str, Any]] | Exception | None
        try:
            rows = self._explain(decoded)
            if self._files is not None:
                self._files.write_batch(batch["shard"], batch["index"], rows)
                rows = None
        except Exception as error:
            rows = picklable(error)
        count = len(decoded.items)
        result = {"shard": batch["shard"], "index": batch["index"], "count": count, "rows": pickle.dumps(rows)}
        return result | {"warning": self._warning}
