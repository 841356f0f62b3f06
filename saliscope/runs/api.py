"""The public functions for runs: `explain` a source, `open` a finished run, and what a `Run` can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from explainers import Display, MethodName, overlay
from saliscope.errors import Refused
from saliscope.images import uploads
from saliscope.runs import compare as comparing
from saliscope.runs import export as exporting
from saliscope.runs import finished_run, pages, units
from saliscope.runs import report as reporting
from saliscope.runs import run as running
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.formats import by_size, plural
from saliscope.runs.report.analysis.columns import evenly
from saliscope.runs.report.images import check_link, crop, small
from saliscope.runs.results import IndexResult, Progress, ReportResult
from saliscope.runs.rows import SCHEMA, RunData, map_of
from saliscope.runs.run import Detail, Report
from saliscope.runs.settings import PREDICTED, Settings, check_engine
from saliscope.runs.shards import open_run, read_manifest
from saliscope.zoo import Model

SHOWN = 6
"""Number of images, evenly spaced over the rows."""
SIDE = 192
"""The longer side of a shown image in pixels."""
BYTES = 12_000
"""Maximum size of a shown image, if possible."""
ROWS = 64
"""Rows that are read at once."""


def explain(
    source: str | Path,
    out: str | Path,
    *,
    model: str | Model = "auto",
    model_options: Mapping[str, Any] | None = None,
    method: MethodName | str = "grad_cam",
    layer: str | None = None,
    target: str = PREDICTED,
    where: str = "",
    limit: int | None = None,
    batch_size: int = 16,
    workers: int | None = 0,
    precision: str | None = None,
    seed: int = 0,
    device: str = "cpu",
    engine: str = "local",
    address: str | None = None,
    gpus: float = 0,
    min_workers: int | None = None,
    progress: Report | None = None,
    detail: Detail | None = None,
    **options: Any,
) -> Run:
    """Explain every image of a source, and write one row per image to Parquet files, as `saliscope explain` does.

    A run that was stopped resumes; a finished one is opened.

    Args     source: an image, a folder, a list, a tar or a dataset, local or a URL that fsspec opens
             out: the folder or URL of the run
             model: a name as in `saliscope.load_model`, or a `Model` that it returned
             model_options: arguments of `load_model`, such as {"weights": "mine.pt", "size": 96}
             target: "predicted", "label", or the name or index of a class as text
             where: "wrong" or "label=NAME" to include only these images
             limit: the maximum number of images
             workers: processes that decode, None for half of the processors. As for torch's DataLoader, a script that
             uses them needs `if __name__ == "__main__":`. With Ray, the maximum number of workers that explain
             device: "cpu", "cuda", "cuda:1", "mps", "xpu" or "auto"
             engine: "local", or "ray" with `address`, `gpus` per worker and `min_workers`
             progress: called with the number of finished images and the total, None if it is not known yet; an
             exception in it stops the run, and finished batches are kept
             detail: called before `progress` with the errors of the batch, its shard from 1 and the number of shards
             options: of the method, such as samples=50
    Errors   Refused for wrong settings, for a folder with a run of other settings, and if the disk is full;
             zoo.ModelUnavailable; those of `explainers`

    Example
        >>> run = runs.explain("images", "run", limit=2)
        >>> run.counts["images"]
        2
    """
    values = {name: value for name, value in locals().items() if name in Settings.__dataclass_fields__}
    check_engine(engine, device, workers, address=address, gpus=gpus, min_workers=min_workers)
    name, own, given = _given(model, model_options)
    settings = Settings(**values | {"model": name, "own": own})
    here = "cpu" if engine == "ray" else device  # with Ray, only the workers have the device
    job = running.prepare(settings, str(source), out, limit=limit, device=here, model=given)
    decode = uploads.open_image
    if engine == "ray":
        from saliscope.runs import ray_engine  # ray is an extra

        actors = ray_engine.Workers(workers or None, gpus=gpus, device=device, least=min_workers or 1)
        done = ray_engine.run(job, decode=decode, address=address, workers=actors, report=progress, detail=detail)
    else:
        done = running.run(job, decode=decode, workers=workers, device=device, report=progress, detail=detail)
    run = Run(RunData(done.folder, read_manifest(done.folder)), decode, job.model)
    run.new, run.seconds = done.new, done.seconds
    return run


def index(
    source: str | Path,
    out: str | Path,
    *,
    model: str | Model = "auto",
    model_options: Mapping[str, Any] | None = None,
    layers: Sequence[str] = (),
    top: int = 9,
    effects: str = "",
    synthetic: int = 0,
    words: str | Path | Sequence[str] = "",
    encoder: str | Model = "",
    limit: int | None = None,
    batch_size: int = 32,
    workers: int | None = 0,
    device: str = "cpu",
    progress: Report | None = None,
) -> IndexResult:
    """Find the images to which each channel of some layers responds most, as `saliscope index` does.

    An index that was stopped resumes. `saliscope.runs.units.open_index` opens a finished one.

    Args     layers: names of layers; without any, the default layer of the model
             top: images of each channel
             effects: "predicted" or the name of a class: also the images in which a channel contributes most to it
             synthetic: the side in pixels of an image that is optimized for each channel, 0 for none
             words: a file with one word per line, or a list of words, from which names are chosen, instead of labels
             encoder: the network that decides which images have a word, such as "hf:openai/clip-vit-base-patch32"; a
             sentence encoder decides it by the labels of the images
             others: as of `explain`
    Errors   Refused for wrong settings, for a folder with another index, and if the disk is full;
             zoo.ModelUnavailable; those of `explainers`

    Example
        >>> runs.index("images", "units", layers=["head"]).counts["channels"]
        1280
    """
    name, own, given = _given(model, model_options)
    settings = units.IndexSettings(name, own, tuple(layers), top, effects, batch_size, synthetic)
    labeler = units.open_labeler(words, encoder) if words or encoder else None
    job = units.prepare(settings, str(source), out, limit=limit, model=given, labeler=labeler)
    return units.write_index(job, decode=uploads.open_image, workers=workers, device=device, report=progress)


def _given(model: str | Model, options: Mapping[str, Any] | None) -> tuple[str, dict[str, Any], Model | None]:
    """Return the name of a model, the arguments of `load_model` with paths as strings, and the model if it is loaded.

    Errors   Refused for other objects, for options of a loaded model, and for a network in training mode
    """
    if isinstance(model, str):
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in (options or {}).items()}
        return model, plain, None
    if not isinstance(model, Model):
        raise Refused(
            f"A {type(model).__name__} has no class names and no preprocessing. Pass a saliscope.zoo.Model, or the "
            'name of a function that returns the network: model="file.py:factory".'
        )
    if options:
        raise Refused(f"{model.name} is already loaded, so model_options have no effect. Pass them to load_model.")
    if any(module.training for module in model.network.modules()):
        raise Refused(f"The network of {model.name} is in training mode. Call network.eval() first.")
    return model.name, {}, model


def open(folder: str | Path, *, model: Model | None = None) -> Run:
    """Open a finished run. Rows are read when they are needed.

    Args     folder: that of `explain`, local or a URL that fsspec opens
             model: the network of the run, if it cannot be loaded by the name that the run has
    Errors   Refused for a folder without a run, and for an unfinished or damaged run

    Example
        >>> run = runs.open("run")
        >>> len(run)
        2
    """
    return Run(open_run(folder), uploads.open_image, model)


class Run(FinishedRun):
    """A finished run: its rows with maps, and what can be made of them.

    `len` is the number of rows. A loop over a run yields each row as a dictionary, with its map as an array [h, w].
    `explain` and `open` return a run.

    Example
        >>> for row in run:
        ...     print(row["path"], row["map"].shape)
        alp.jpg (7, 7)
        cat.jpg (7, 7)
    """

    new: int | None = None
    """The number of images that this call of `explain` has computed; None if the run was opened."""
    seconds: float | None = None
    """The time of this call of `explain`; None if the run was opened."""

    @property
    def folder(self) -> str:
        """The folder of the run, or its URL."""
        return str(self.data.folder)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of images: looked_at, images (rows), unreadable, labeled and correct."""
        return {name: int(count) for name, count in self.data.manifest["counts"].items()}

    @property
    def accuracy(self) -> float | None:
        """The share of correct predictions among the labeled images, from 0 to 1; None without labels."""
        counts = self.counts
        return counts["correct"] / counts["labeled"] if counts["labeled"] else None

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.data)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows as a pyarrow table. Maps are bytes: loop over the run to get arrays.

        Args     columns: their names; without them, all columns of a large run may not fit in memory
        Errors   Refused for a damaged file and an unknown column

        Example
            >>> run.table(["path", "probability"]).num_columns
            2
        """
        if unknown := [name for name in columns or () if name not in SCHEMA.names]:
            raise Refused(f"A run has no column {', '.join(map(repr, unknown))}. Use {', '.join(SCHEMA.names)}.")
        return self.data.columns(columns or SCHEMA.names)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in order; `map` is float32 [h, w], or None for an image that could not be read."""
        for _, part in self.data.batches(SCHEMA.names, ROWS):
            for row in part.to_pylist():
                yield row | {"map": None if row["map"] is None else map_of(row)}

    def report(
        self,
        out: str | Path = "report.html",
        *,
        box: Sequence[float] | None = None,
        mask: str | Path | None = None,
        link: str | None = None,
        metadata: str | Path | None = None,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> ReportResult:
        """Write a report as one self-contained HTML file, as `saliscope report` does.

        Args     box: (left, top, right, bottom) as fractions of the image, whose share of the relevance is reported
                 mask: a mask image (white is inside), or a folder with one mask per image, for the same
                 link: the URL of the page, to open images of the report in it
                 metadata: a list with a column path and other columns, whose values are compared by accuracy
        Errors   Refused for an invalid box, mask, link or list, a run without a readable image, and a full disk

        Example
            >>> run.report("report.html").missing
            0
        """
        check_link(link)
        self.move(device)
        missing: set[str] = set()

        def read(path: str) -> Image.Image | None:
            image = self.image(path)
            if image is None:
                missing.add(path)
            return image

        inputs = reporting.Report(
            read=read,
            model=self.try_model(),
            box=box,
            mask=mask,
            link=link,
            metadata=metadata,
            source=self.source,
            progress=progress,
        )
        return ReportResult(reporting.write(self.data, out, inputs), len(missing))

    evaluate = finished_run.evaluate
    compare = comparing.compare
    export = exporting.export

    def to_dict(self) -> dict[str, Any]:
        """Return the main values by name, as `saliscope explain --format json` prints them."""
        record = self.data.settings
        names = "model method layer target where options batch_size precision seed".split()
        return {
            "folder": self.folder,
            "source": self.data.manifest.get("source", ""),
            "counts": self.counts,
            "accuracy": self.accuracy,
            "new": self.new,
            "seconds": self.seconds,
            "settings": {name: record.get(name) for name in names},
        }

    def __repr__(self) -> str:
        return f"Run({self.folder!r}, {plural(len(self), 'image')})"

    def __str__(self) -> str:
        """Return a summary of the run and of the call that computed it."""
        return pages.text_of(type(self).__name__, r=self)

    def _repr_html_(self) -> str:
        return str(self._repr_mimebundle_()["text/html"])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return what notebooks show: HTML, and images for hosts that show no HTML. No network runs for it."""
        values: dict[str, object] = {"images": f"{len(self):,}", "folder": self.folder}
        counts, settings = self.counts, self.to_dict()["settings"]
        if counts["unreadable"]:
            values["unreadable"] = f"{counts['unreadable']:,}"
        if self.accuracy is not None:
            values["accuracy"] = f"{self.accuracy:.1%} of {counts['labeled']:,} labeled images"
        names = ("model", "method", "layer", "target", "where", "options")
        values |= {name: settings[name] for name in names if settings[name] not in (None, "", {})}
        drawn = [(row, self._draw(row)) for row in self.data.take(evenly(np.arange(len(self)), SHOWN)).to_pylist()]
        figures = [(row, image and small(image, BYTES)) for row, image in drawn]
        content = pages.notebook(rows=list(values.items()), figures=figures)
        images = [image for _, image in drawn if image is not None]
        return Display(content, repr(self), images)._repr_mimebundle_()

    def _draw(self, row: dict[str, Any]) -> Image.Image | None:
        """Return the part of an image that the network received with its map; only the map if the image is gone."""
        if row["map"] is None:
            return None
        values, image = torch.from_numpy(map_of(row)), self.image(row["path"], row["sha256"])
        if image is None or self.preparation is None:
            height, width = values.shape
            image = Image.new("RGB", (SIDE, max(1, round(SIDE * height / width))), "gray")
        else:
            image = crop(image, self.preparation)
            image.thumbnail((SIDE, SIDE))
        return overlay(image, values, signed=not by_size(self.settings.method))
