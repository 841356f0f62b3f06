"""What the cluster does: tasks read and decode a batch, actors explain it."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dataset.pictures import Decoded, Reading
from dataset.ray_run.task import READING, Task, Workers, portable
from dataset.settings import Settings

if TYPE_CHECKING:
    from models import Model

BLOCKS = 2000
"""Tasks of reading that Ray plans at most; where there are more batches, a task reads several."""


def results(task: Task) -> Iterator[dict[str, Any]]:
    """Shard, place, number of pictures and pickled rows of every batch, as they are finished."""
    import ray

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    options = ray.data.DataContext.get_current()
    options.enable_progress_bars = False
    options.target_max_block_size = 1  # a batch is a block: it is explained while the next one is decoded
    batches = [{"shard": shard, "place": place, "items": pickle.dumps(items)} for shard, place, items in task.batches]
    data = ray.data.from_items(batches, override_num_blocks=min(len(batches), BLOCKS))
    read = data.map(_reading(Reading(task.decode, task.model.preparation)), num_cpus=READING)
    workers = task.workers
    explained = read.map(
        Explaining,  # a class is an actor
        fn_constructor_args=(ray.put(task.model), task.settings, workers),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers.most, initial_size=workers.most),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
    )
    yield from explained.iter_rows()


def _reading(reading: Reading) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def read(batch: dict[str, Any]) -> dict[str, Any]:
        decoded = reading[pickle.loads(batch["items"])]
        return {"shard": batch["shard"], "place": batch["place"], "decoded": pickle.dumps(decoded)}

    return read


class Explaining:
    """The actor: it has the network once, and explains one batch after the other."""

    def __init__(self, model: Any, settings: Settings, workers: Workers) -> None:
        import ray
        import torch

        from dataset.explaining import Explainer

        torch.set_num_threads(max(1, round(workers.cpus or 1)))
        loaded: Model = ray.get(model)
        self._explain = Explainer(loaded, settings, "cuda" if workers.gpus else "cpu")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The rows of a batch; an error of the library travels in their place, and is raised where the run began."""
        decoded: Decoded = pickle.loads(batch["decoded"])
        rows: list[dict[str, Any]] | Exception
        try:
            rows = self._explain(decoded)
        except Exception as error:
            rows = portable(error)
        count = len(decoded.items)
        return {"shard": batch["shard"], "place": batch["place"], "pictures": count, "rows": pickle.dumps(rows)}
