"""A run over uploaded pictures with the page's network, method and layer, and the report of it, a step at a time."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ui import limits
from ui.engine import engine
from ui.engine.messages import Refused, Settings, Waiting
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import turns
from ui.many import archive, words
from ui.serving import uploads

if TYPE_CHECKING:
    from dataset.items import Item
    from dataset.run import Job

BATCH = 8
"""Pictures of a batch: a click waits no longer than one."""


@dataclass(frozen=True)
class Going:
    """How far it is."""

    sentence: str
    fraction: float


@dataclass(frozen=True)
class Reported:
    """The end: the report as HTML, and what there is to say of it."""

    sentence: str
    html: str


class _Stopped(Exception):
    """Raised between two batches of a run that is to end."""


Uploaded = tuple[str, str]
"""The path of an upload, and the name that its visitor gave it."""


def received(given: Any) -> list[Uploaded]:
    """The uploads that a script named.

    Errors   Refused for what nobody uploaded here, for too many, and for too many bytes
    """
    pairs = [each for each in given if isinstance(each, list) and len(each) == 2] if isinstance(given, list) else []
    if len(pairs) > limits.MANY:
        raise Refused(words.TOO_MANY.format(count=len(pairs), most=limits.MANY))
    found = [(str(uploads.inside_uploads(path)), str(name)[: archive.LONGEST]) for path, name in pairs]
    if sum(os.path.getsize(path) for path, _ in found) > limits.MANY_BYTES:
        raise Refused(words.TOO_MUCH)
    return found


def explain(request: Request, files: Sequence[Uploaded], run: Run) -> Iterator[Waiting | Going | Reported]:
    """Explain all pictures of these uploads, and report.

    Errors   Refused, and those of the library
    """
    if limits.SHARED_GPU:
        raise Refused(words.LENT)
    if not files:
        raise Refused(words.NONE)
    settings = yield from engine.settled(replace(request, picture=None), run)
    _refuse(settings)
    with tempfile.TemporaryDirectory(prefix="hooklens-many-") as folder:
        items = _items(files, Path(folder))
        with turns.place(run, long=True, aside=0.0) as turn:
            yield from engine.taken(turn)
            yield (yield from engine.stream(partial(_report, settings, items, Path(folder)), run, turn=turn))


def _refuse(settings: Settings) -> None:
    loaded, method = settings.loaded, settings.method
    if loaded.finds:
        raise Refused(words.CLASSIFIER.format(title=loaded.title))
    if loaded.model.channels not in (1, 3):
        raise Refused(words.CHANNELS.format(title=loaded.title, channels=loaded.model.channels))
    if method.long:
        raise Refused(words.LONG.format(title=method.title))


def _items(files: Sequence[Uploaded], folder: Path) -> list[Item]:
    """The pictures of all uploads, sorted by name; of a zip of folders with their labels."""
    from dataset.items import Item  # what a page without this tab does not need
    from dataset.sources.listing import folder_labels  # as above
    from dataset.sources.place import is_picture  # as above

    found: list[tuple[str, str]] = []
    for place, (path, name) in enumerate(files):
        if archive.is_archive(path):
            inside = folder / f"zip{place}"
            inside.mkdir()
            found += archive.unpack(path, name, inside, is_picture)
        else:
            found.append((name, path))
        if len(found) > limits.MANY:
            raise Refused(words.TOO_MANY.format(count=len(found), most=limits.MANY))
    if not found:
        raise Refused(words.EMPTY.format(names=", ".join(name for _, name in files)))
    labels = folder_labels([name for name, _ in found])
    named: dict[str, Item] = {}
    for name, path in sorted(found):
        unique = name if name not in named else f"{name} ({len(named)})"
        named[unique] = Item(unique, labels.get(name), path)
    return list(named.values())


def _report(settings: Settings, items: list[Item], folder: Path, report: Callable[[Any], bool]) -> Reported:
    """The report on all pictures, or on those that were done when the visitor stopped."""
    from dataset import run as runs  # torch takes seconds to start
    from dataset.report import write  # as above
    from dataset.settings import Settings as Asked  # as above
    from dataset.shards import open_run  # as above
    from dataset.sources.listing import Listing  # as above

    options = {**settings.method_options}
    layer = settings.layer if settings.method.takes_layer else None
    asked = Asked(settings.loaded.name, method=settings.method.name, layer=layer, options=options, batch_size=BATCH)
    model, out = settings.loaded.model, folder / "run"
    listing = Listing(items, "uploads", None)
    job = runs.begin(asked, listing, "uploads", out, model, str(settings.loaded.device))
    done = _explained(job, report)
    if not done:
        raise Refused(words.STOPPED)
    cut = replace(job, listing=replace(listing, items=items[:done]))
    if done < len(items):
        cut.finish(0.0)
    finished = open_run(out)
    paths = {item.path: item.url for item in items}

    def drawn(count: int, total: int) -> None:
        report(Going(words.drawing(count, total), 0.5 + 0.5 * count / max(1, total)))

    page = write(
        finished, folder / "report.html", read=lambda path: _photograph(paths[path]), model=model, progress=drawn
    )
    unreadable = int(finished.manifest["counts"]["unreadable"])
    title, method = settings.loaded.title, settings.method.title
    sentence = words.over(done, len(items), unreadable, title, method)
    return Reported(sentence, page.read_text(encoding="utf-8"))


def _explained(job: Job, report: Callable[[Any], bool]) -> int:
    """Explain a job's pictures; returns how many are done when it ends or is stopped."""
    from dataset import run as runs  # torch takes seconds to start

    reached = 0

    def step(done: int, total: int) -> None:
        nonlocal reached
        reached = done
        if not report(Going(words.going(done, total), 0.5 * done / total)) and done < total:
            raise _Stopped

    with contextlib.suppress(_Stopped):
        runs.run(job, decode=uploads.open_picture, workers=0, report=step)
    return reached


def _photograph(path: str) -> Any:
    try:
        return uploads.open_picture(path)
    except Refused:
        return None
