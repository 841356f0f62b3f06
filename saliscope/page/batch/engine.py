"""Explain or index uploaded images with the network and layer of the page, step by step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explainers import ExplainerError
from saliscope import limits
from saliscope.compute import engine
from saliscope.compute.answers import Settings, Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.request import Request
from saliscope.compute.text_messages import NO_SENTENCE
from saliscope.errors import Refused
from saliscope.images import uploads
from saliscope.images.decoder import pool
from saliscope.page.batch import archive, messages
from saliscope.page.batch.folders import report_folder

if TYPE_CHECKING:
    from saliscope.runs.items import Item
    from saliscope.runs.run import Job
    from saliscope.runs.units import IndexJob, StoredIndex

TOP = 9
"""Images of each channel in an index."""
BATCH = 8
"""Images per batch; a click waits at most for one batch."""


@dataclass(frozen=True)
class Report:
    """The finished report as HTML, and its status message."""

    message: str
    html: str


@dataclass(frozen=True)
class Indexed:
    """The finished index of the images, and its status message."""

    message: str
    settings: Settings
    index: StoredIndex


class _StopRun(Exception):
    """Raised between two batches to stop the run."""


@dataclass
class _Count:
    """Counts the images that are done and reports them as the first `share` of the job, until the user stops it."""

    report: Callable[[Any], bool]
    message: str
    total: int
    share: float
    done: int = 0

    def __call__(self, done: int, _: int | None) -> None:
        self.done = done
        step = Waiting(self.message.format(done=done, total=self.total), self.share * done / self.total)
        if not self.report(step) and done < self.total:
            raise _StopRun


Upload = tuple[str, str]
"""The path of an upload, and its original file name."""


def parse_uploads(value: Any) -> list[Upload]:
    """Return the uploads named in a message of the browser; a file that is named several times counts once.

    Errors   Refused for files that are not uploads, too many files, or too many bytes
    """
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
    if len(pairs) > limits.BATCH:
        raise Refused(messages.TOO_MANY.format(count=len(pairs), most=limits.BATCH))
    files: dict[str, str] = {}
    for path, name in pairs:
        files.setdefault(str(uploads.inside_uploads(path)), str(name)[: archive.LONGEST])
    if sum(os.path.getsize(path) for path in files) > limits.BATCH_BYTES:
        raise Refused(messages.TOO_MUCH)
    return list(files.items())


def explain(request: Request, files: Sequence[Upload], run: Run) -> Iterator[Waiting | Report]:
    """Explain all images of these uploads and write the report.

    Errors   Refused, and the errors of the library
    """
    yield from _job(request, files, run, _check, _report)


def index(request: Request, files: Sequence[Upload], run: Run) -> Iterator[Waiting | Indexed]:
    """Index the channels of the layer and of the stages of the network over all images of these uploads.

    Errors   Refused, and the errors of the library
    """
    yield from _job(request, files, run, _check_channels, _index)


def _job(
    request: Request,
    files: Sequence[Upload],
    run: Run,
    check: Callable[[Settings], None],
    work: Callable[[Settings, Sequence[Upload], Path, Callable[[Any], bool]], Any],
) -> Iterator[Any]:
    """Check the settings, wait for the turn, and yield the progress and the result of the work."""
    if limits.SHARED_GPU:
        raise Refused(messages.LENT)
    if not files:
        raise Refused(messages.NONE)
    settings = yield from engine.resolve_settings(replace(request, image=None), run)
    check(settings)
    with report_folder() as folder, turns.enqueue(run, long=True, min_seconds=0.0) as turn:
        yield from engine.wait_turn(turn)
        yield (yield from engine.stream(partial(work, settings, files, folder), run, turn=turn))


def _check(settings: Settings) -> None:
    """Refuse networks and methods that a batch does not support."""
    loaded, method = settings.loaded, settings.method
    if loaded.detects_objects:
        raise Refused(messages.CLASSIFIER.format(title=loaded.title))
    if loaded.encodes_text and settings.sentences is None:
        raise Refused(settings.refusal or NO_SENTENCE)
    if method.long:
        raise Refused(messages.LONG.format(title=method.title))
    _check_channels(settings)


def _check_channels(settings: Settings) -> None:
    """Refuse networks that do not read photos."""
    loaded = settings.loaded
    if loaded.model.channels not in (1, 3):
        raise Refused(messages.CHANNELS.format(title=loaded.title, channels=loaded.model.channels))


def _items(files: Sequence[Upload], folder: Path, budget: archive.Budget) -> list[Item]:
    """Return the images of all uploads, sorted by name, with the folders of a zip archive as labels."""
    from saliscope.runs.items import Item  # it takes 0.3 s to import, only for this view
    from saliscope.runs.sources.listing import folder_labels  # as above
    from saliscope.runs.sources.location import is_image  # as above

    images: list[tuple[str, str]] = []
    for number, (path, name) in enumerate(files):
        if archive.is_archive(path):
            inside = folder / f"zip{number}"
            inside.mkdir()
            images += archive.unpack(path, name, inside, is_image, budget)
        else:
            budget.take_images(1)
            budget.take_bytes(os.path.getsize(path))
            images.append((name, path))
    if not images:
        raise Refused(messages.EMPTY.format(names=", ".join(name for _, name in files)))
    labels = folder_labels([name for name, _ in images])
    items: dict[str, Item] = {}
    for name, path in sorted(images):
        unique = name if name not in items else f"{name} ({len(items)})"
        items[unique] = Item(unique, labels.get(name), path, shown=unique)
    return list(items.values())


def _report(settings: Settings, files: Sequence[Upload], folder: Path, report: Callable[[Any], bool]) -> Report:
    """Return the report on all images, or on the images that were done when the user stopped."""
    items = _items(files, folder, archive.Budget(lambda: report(Waiting(messages.UNPACKING, 0.0))))
    from saliscope.runs import report as reporting  # it takes 0.3 s to import, only for this view
    from saliscope.runs import run as runs  # as above
    from saliscope.runs.settings import PREDICTED  # as above
    from saliscope.runs.settings import Settings as RunSettings  # as above
    from saliscope.runs.shards import open_run  # as above
    from saliscope.runs.sources import Listing  # as above

    options = {**settings.method_options}
    layer = settings.layer if settings.method.takes_layer else None
    target = settings.sentences.name if settings.sentences else PREDICTED
    run_settings = RunSettings(
        settings.loaded.name, {}, settings.method.name, layer, target, options=options, batch_size=BATCH
    )
    model, out, device = settings.loaded.model, folder / "run", str(settings.loaded.device)
    listing = Listing.of(items, "uploads")
    job = runs.create_job(run_settings, listing, "uploads", out, model, device)
    done = _run(job, device, report)
    if not done:
        raise Refused(messages.STOPPED)
    partial_job = replace(job, listing=listing.first(done))
    if done < len(items):
        _run(partial_job, device, report)  # writes the shard and the manifest
    finished = open_run(out)
    paths = {item.path: item.url for item in items}

    def progress(count: int, total: int) -> None:
        report(Waiting(messages.DRAWING.format(done=count, total=total), 0.5 + 0.5 * count / max(1, total)))

    def go_on() -> bool:
        return report(Waiting(messages.TESTING, 0.5))

    inputs = reporting.Report(lambda path: _open_image(paths[path]), model, progress=progress, go_on=go_on)
    page = reporting.write(finished, folder / "report.html", inputs)
    unreadable = int(finished.manifest["counts"]["unreadable"])
    title, method = settings.loaded.title, settings.method.title
    message = messages.finished(done, len(items), unreadable, title, method)
    return Report(message, page.read_text(encoding="utf-8"))


def _run(job: Job, device: str, report: Callable[[Any], bool]) -> int:
    """Explain the images of a job; return how many are done when it ends or is stopped."""
    from saliscope.runs import run as runs  # it takes 0.3 s to import, only for this view

    count = _Count(report, messages.EXPLAINING, job.listing.count or 0, share=0.5)
    with contextlib.suppress(_StopRun):
        runs.run(job, decode=pool.open_image, workers=0, device=device, report=count)
    return count.done


def _index(settings: Settings, files: Sequence[Upload], folder: Path, report: Callable[[Any], bool]) -> Indexed:
    """Return the index of all images, or of the images that were done when the user stopped."""
    items = _items(files, folder, archive.Budget(lambda: report(Waiting(messages.UNPACKING, 0.0))))
    from saliscope.runs import units  # it takes 0.3 s to import, only for this view

    job = _index_job(settings, items, folder / "units")
    loaded, count = settings.loaded, _Count(report, messages.INDEXING, len(items), share=0.7)

    def photos(done: int, total: int | None) -> None:
        total = max(done, total or 0)
        report(Waiting(messages.CROPPING.format(done=done, total=total), 0.7 + 0.3 * done / total))

    options: dict[str, Any] = {"decode": pool.open_image, "workers": 0, "device": str(loaded.device)}
    try:
        units.write_index(job, report=count, report_photos=photos, **options)
    except _StopRun:  # the index of the images so far
        units.write_index(replace(job, items=items[: count.done]), report_photos=photos, **options)
    found = units.open_index(folder / "units")
    if found.settings["effects"] and settings.target is not None:
        found.settings["effects"] = loaded.name_of(settings.target)
    counts = found.manifest["counts"]
    message = messages.indexed(count.done, len(items), counts, loaded.title, found.settings["layers"])
    return Indexed(message, settings, found)


def _index_job(settings: Settings, items: list[Item], out: Path) -> IndexJob:
    """Prepare an index of the layer and the stages of the network, or only of the layer if a stage cannot be indexed.

    A classifier also gets the effects on the chosen or the predicted class.
    """
    from saliscope.runs import units  # it takes 0.3 s to import, only for this view

    loaded = settings.loaded
    stages = [layer.name for layer in loaded.layers if layer.stage and layer.grid and layer.name != settings.layer]
    effects = ""
    if not (loaded.detects_objects or loaded.encodes_text or settings.unit):
        effects = "predicted" if settings.target is None else str(settings.target)
    options: dict[str, Any] = {"top": TOP, "batch_size": BATCH}
    all_layers = units.IndexSettings(loaded.name, {}, (settings.layer, *stages), effects=effects, **options)
    given: dict[str, Any] = {"model": loaded.model, "items": items}
    with contextlib.suppress(ExplainerError):
        return units.prepare(all_layers, "uploads", out, **given)
    return units.prepare(replace(all_layers, layers=(settings.layer,), effects=""), "uploads", out, **given)


def _open_image(path: str) -> Any:
    try:
        return pool.open_image(path)
    except Refused:
        return None
