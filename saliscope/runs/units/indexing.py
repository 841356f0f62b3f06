"""Write an index of units: images are decoded in worker processes and indexed in batches; a stopped index resumes."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

import explainers
from explainers import IndexedBatch, LayerUnits, TopImages, UnitIndex, default_layer, index_units
from saliscope import zoo
from saliscope.errors import Refused
from saliscope.runs.decoding import Decode, decode_batches
from saliscope.runs.items import Item
from saliscope.runs.results import IndexResult
from saliscope.runs.run import Report, default_workers, provenance
from saliscope.runs.settings import FORMAT, PREDICTED, Classes
from saliscope.runs.shards.locks import take_lock
from saliscope.runs.shards.planning import Stamp
from saliscope.runs.shards.writing import check_folder
from saliscope.runs.sources import list_items
from saliscope.runs.stores import MANIFEST, SETTINGS, WORK, Store, open_store
from saliscope.runs.units import tables
from saliscope.runs.units.labeling import NONE, Labeler
from saliscope.zoo import Model, devices
from saliscope.zoo.weights import weights_hash

STATE = f"{WORK}/index.pt"
EVERY = 60.0
"""Seconds between two writes of the index so far."""
CHOOSE_IMAGES = "Use an encoder of images and text, such as CLIP, or folders with the names of classes."
TESTED = 10_000
"""Images whose activations are kept to name the units: half of them propose names, the others test them."""


@dataclass(frozen=True)
class IndexSettings:
    """The user's settings. `effects` is "", "predicted" or a class; `own` has the arguments of `zoo.add` except `name`.

    Without `layers`, the default layer of the model is indexed. `synthetic` is the side in pixels of a synthetic image
    for each channel, 0 for none.
    """

    model: str = "auto"
    own: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    top: int = 9
    effects: str = ""
    batch_size: int = 32
    synthetic: int = 0


@dataclass
class State:
    """The index so far: `done` images were read, `samples` has mean activations [n, K] of some of them by layer,
    `words` the numbers of the words of the first of these, `errors` the messages of unreadable images by path, and
    `synthetic` the synthetic images of the first channels by layer.
    """

    done: int = 0
    index: UnitIndex | None = None
    positions: list[Tensor] = field(default_factory=list)
    samples: dict[str, list[Tensor]] = field(default_factory=dict)
    words: list[int] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    synthetic: dict[str, Tensor] = field(default_factory=dict)

    def write(self, store: Store) -> None:
        """Write the state, without code: only tensors, numbers and strings."""
        values = vars(self) | {"index": self.index and asdict(self.index)}
        buffer = io.BytesIO()
        torch.save(values, buffer)
        store.write(STATE, buffer.getvalue())

    @classmethod
    def read(cls, store: Store) -> State:
        """Return the state of a folder; a new one if there is none, or if it is damaged."""
        try:
            values = torch.load(io.BytesIO(store.read(STATE) or b""), weights_only=True)
            if values["index"] is not None:
                layers = values["index"]["layers"]
                for name, of in layers.items():
                    tops = {key: of[key] and TopImages(**of[key]) for key in ("top", "effects")}
                    layers[name] = LayerUnits(**{**of, **tops})
                values["index"] = UnitIndex(**values["index"])
            return cls(**values)
        except Refused:
            raise
        except Exception:  # a power failure may cut the file, for which torch raises errors of many types
            return cls()


@dataclass(frozen=True)
class IndexJob:
    """A prepared index: the network, the images, and the record of the settings."""

    settings: IndexSettings
    model: Model
    items: list[Item]
    store: Store
    record: dict[str, Any]
    effects: int | str | None
    labeler: Labeler | None = None


def prepare(
    settings: IndexSettings,
    source: str,
    out: str | Path,
    *,
    limit: int | None = None,
    model: Model | None = None,
    items: list[Item] | None = None,
    labeler: Labeler | None = None,
) -> IndexJob:
    """Prepare an index, and report all errors in the settings and the source before any work starts.

    `items` are the images, if they are known already. Then `source` is only their name. A `labeler` labels the images
    for names instead of the source.

    Errors   Refused; zoo.ModelUnavailable; those of `explainers`
    """
    items = list_items(source, limit).items if items is None else items
    if labeler and not labeler.reads_images and all(item.label is None for item in items):
        raise Refused(f"{labeler.model.name} reads only text, but no image of {source!r} has a label. {CHOOSE_IMAGES}")
    model = model or zoo.load_model(settings.model, **settings.own)
    if model.channels not in (1, 3):
        raise Refused(f"{model.name} needs {model.channels} channels, but images have 3. Choose another --model.")
    if settings.effects and model.task == "detection":
        raise Refused(f"Effects need a score in every image, but {model.name} may detect nothing in one. Omit effects.")
    effects: int | str | None = settings.effects or None
    if effects not in (None, PREDICTED):
        effects = Classes(model.labels).find(settings.effects)
        if effects is None:
            near = Classes(model.labels).near(settings.effects)
            raise Refused(f"--effects {settings.effects!r} is not a class of {model.name}. {near}Or use predicted.")
    noise = torch.rand((1, model.channels, *model.size), generator=torch.Generator().manual_seed(0))
    weight = next(model.network.parameters(), None)
    noise = noise if weight is None else noise.to(weight.device)
    layers = list(settings.layers) or [default_layer(model.network, noise)]
    for layer in layers:  # reports unsuitable layers and networks
        explainers.feature_maps(model.network, noise, layer=layer)
        if effects is not None:
            target = effects if isinstance(effects, int) else None
            explainers.channel_contributions(model.network, noise, target, layer=layer)
    record = {
        "format": FORMAT,
        **asdict(settings),
        "model": model.name if settings.model == "auto" else settings.model,
        "weights_sha256": weights_hash(model),
        "preprocessing": repr(model.preparation),
        "layers": layers,
        "source": source,
        "images": f"{len(items)} images ({Stamp.of(items).digest})",
        **(labeler.record() if labeler else {}),
    }
    del record["batch_size"]  # the index does not depend on it
    return IndexJob(settings, model, items, open_store(out), json.loads(json.dumps(record)), effects, labeler)


def write_index(
    job: IndexJob,
    *,
    decode: Decode,
    workers: int | None = None,
    device: str = "cpu",
    report: Report | None = None,
    report_photos: Report | None = None,
) -> IndexResult:
    """Index all images that are not indexed yet, and write the tables.

    `report` is called after each batch. An exception in it stops the index; finished batches are kept. At the end, the
    strongest images are read again, and `report_photos` is called after each batch of these.

    Errors   Refused for a folder with other files or settings, if no image can be read, or if the disk is full
    """
    start, store = time.perf_counter(), job.store
    if check_folder(store, job.record, "index"):
        counts = dict(json.loads(store.read(MANIFEST) or b"{}")["counts"])
        return IndexResult(store.folder, counts, 0, time.perf_counter() - start, job.record.get("names_by", ""))
    with contextlib.closing(take_lock(store)) as lock:
        store.write(SETTINGS, json.dumps(job.record, indent=1).encode())
        state = State.read(store)
        before = state.done
        if workers is None:
            workers = default_workers(len(job.items) - before)
        steps = _Steps(job, state, decode, workers, device, report)
        try:
            steps.index()
            steps.label()
            steps.synthesize()
            counts = steps.write_tables(report_photos)
        except BaseException:
            if state.index is not None:
                state.write(store)
            raise
        seconds = time.perf_counter() - start
        manifest = {"counts": counts, "errors": state.errors, **provenance(seconds)}
        lock.check()
        store.write(MANIFEST, json.dumps(manifest, indent=1).encode())
        store.delete([STATE])
    return IndexResult(store.folder, counts, len(job.items) - before, seconds, job.record.get("names_by", ""))


class _Steps:
    """Completes the state of an index step by step, and writes its tables. The report counts the work of all steps."""

    def __init__(
        self, job: IndexJob, state: State, decode: Decode, workers: int, device: str, report: Report | None
    ) -> None:
        self.job, self.state, self.report = job, state, report
        self.decode, self.workers, self.device = decode, workers, device
        self.before, self.read, self.written = state.index, state.done, time.monotonic()
        self.has_labels = job.labeler is not None or any(item.label is not None for item in job.items)

    def _keep(self, done: int, total: int) -> None:
        """Report the progress, and write the state from time to time."""
        if time.monotonic() - self.written > EVERY:
            self.state.write(self.job.store)
            self.written = time.monotonic()
        if self.report is not None:
            self.report(done, total)

    def index(self) -> None:
        """Index the images that are not in the state.

        Errors   Refused if no image can be read; those of `explainers`
        """
        job, place = self.job, devices.choose(self.device)
        batches = self._batches(place)
        options: dict[str, Any] = {"top": job.settings.top, "batch_size": job.settings.batch_size}
        if (first := next(batches, None)) is not None:
            network, images = job.model.network.to(place), itertools.chain([first], batches)
            layers = job.record["layers"]
            index_units(network, images, layers, effects=job.effects, progress=self._add, **options)
        self.state.done = self.read
        if self.state.index is None:
            why = next(iter(self.state.errors.values()), "")
            raise Refused(f"None of the {len(job.items)} images could be read. The first message: {why}")

    def _batches(self, place: torch.device) -> Iterator[tuple[Tensor, list[int]]]:
        items, size, preparation = self.job.items, self.job.settings.batch_size, self.job.model.preparation
        parts = [items[start : start + size] for start in range(self.read, len(items), size)]
        pin = devices.copies_asynchronously(place)
        for batch in decode_batches(parts, self.decode, preparation, self.workers, pin):
            positions = [self.read + k for k in batch.places]
            found = zip(batch.items, batch.errors, strict=True)
            self.state.errors |= {item.path: error for item, error in found if error is not None}
            self.read += len(batch.items)
            if positions:
                yield devices.move(batch.images, place), positions

    def _add(self, batch: IndexedBatch) -> None:
        state = self.state
        if self.has_labels:
            chosen = batch.positions % -(-len(self.job.items) // TESTED) == 0
            state.positions.append(batch.positions[chosen])
            for name, values in batch.means.items():
                state.samples.setdefault(name, []).append(values[chosen])
        state.index = batch.index if self.before is None else self.before | batch.index
        state.done = self.read
        self._keep(state.done, len(self.job.items))

    def label(self) -> None:
        """Add the words of the images for names that the state does not have."""
        job, state = self.job, self.state
        if job.labeler is None or not state.positions:
            return
        items = [job.items[k] for k in torch.cat(state.positions).tolist()]
        left, size = items[len(state.words) :], job.settings.batch_size
        for words in job.labeler.label(left, job.model.labels, self.decode, self.workers, self.device, size):
            state.words += words
            self._keep(len(job.items) + len(state.words), len(job.items) + len(items))

    def synthesize(self) -> None:
        """Add the synthetic images that the state does not have."""
        job, known = self.job, self.state.synthetic
        assert self.state.index is not None, "checked by index"
        counts = {name: len(units.mean) for name, units in self.state.index.layers.items()}
        total = len(job.items) + sum(counts.values())
        for layer, channels in counts.items() if job.settings.synthetic else ():
            for images in tables.add_images(job.model, layer, channels, job.settings.synthetic, known.get(layer)):
                known[layer] = images
                self._keep(len(job.items) + sum(map(len, known.values())), total)

    def write_tables(self, report: Report | None) -> dict[str, int]:
        """Write the tables, and return the counts."""
        job, state = self.job, self.state
        assert state.index is not None, "checked by index"
        positions = torch.cat(state.positions).tolist() if state.positions else []
        samples = {name: torch.cat(parts) for name, parts in state.samples.items()}
        if job.labeler is None:
            names = tables.names_of([job.items[k].label for k in positions], job.model.labels)
        else:
            names = [None if word == NONE else [job.labeler.words[word]] for word in state.words]
        units = tables.unit_table(state.index, samples, names)
        if state.synthetic:
            dead = units["dead"].to_pylist()
            files = tables.to_webp(torch.cat([state.synthetic[name] for name in state.index.layers]), dead)
            units = units.append_column("image", pa.array(files, pa.binary()))
        about = job.record | {"indexed": state.index.count}
        units = units.replace_schema_metadata({tables.METADATA: json.dumps(about)})
        top = tables.top_table(state.index, job.items)
        preparation = job.model.preparation
        top, photos = tables.add_thumbnails(top, job.items, self.decode, preparation, self.workers, report)
        for name, table in ((tables.UNITS, units), (tables.TOP, top), (tables.PHOTOS, photos)):
            job.store.write(name, tables.to_parquet(table))
        counts = {"images": state.index.count, "unreadable": len(state.errors), "skipped": state.index.skipped}
        named = len(units) - units["name"].null_count
        if job.labeler is not None:
            counts |= {"tested": len(names), "labeled": len(names) - names.count(None)}
        return counts | {"channels": len(units), "dead": sum(units["dead"].to_pylist()), "named": named}
