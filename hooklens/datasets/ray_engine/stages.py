"""The stages on the cluster: tasks read and decode batches, actors explain them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from hooklens.datasets.decoding import DecodedBatch, ImageReader
from hooklens.datasets.ray_engine.task import READING, Task, Workers, picklable
from hooklens.datasets.settings import Settings

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
        fn_constructor_args=(ray.put(task.model), task.settings, workers),
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers.most, initial_size=workers.most),
        num_cpus=workers.cpus,
        num_gpus=workers.gpus,
    )
    yield from explained.iter_rows()


def _make_reader(reader: ImageReader) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def read(batch: dict[str, Any]) -> dict[str, Any]:
        decoded = reader[pickle.loads(batch["items"])]
        return {"shard": batch["shard"], "index": batch["index"], "decoded": pickle.dumps(decoded)}

    return read


class ExplainActor:
    """An actor that loads the network once and explains batches."""

    def __init__(self, model: Any, settings: Settings, workers: Workers) -> None:
        import ray  # slow to import, or an extra
        import torch  # torch takes seconds to start

        from hooklens.datasets.explaining import Explainer  # imports torch or an extra
        from hooklens.zoo import devices  # as above

        torch.set_num_threads(max(1, round(workers.cpus or 1)))
        loaded: Model = ray.get(model)
        device = devices.choose(workers.device)
        self._warning = devices.compare(loaded, device)
        self._explain = Explainer(loaded, settings, str(device))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a batch, or an error, which is raised in the process that started the run."""
        decoded: DecodedBatch = pickle.loads(batch["decoded"])
        rows: list[dict[str, Any]] | Exception
        try:
            rows = self._explain(decoded)
        except Exception as error:
            rows = picklable(error)
        count = len(decoded.items)
        result = {"shard": batch["shard"], "index": batch["index"], "count": count, "rows": pickle.dumps(rows)}
        return result | {"warning": self._warning}
