"""The Batch view: explain many images with the settings of the page and show the report, or index the channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from saliscope import limits
from saliscope.compute import units
from saliscope.compute.answers import Settings, Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.messages import status
from saliscope.page.batch import engine, messages, parts
from saliscope.page.batch.engine import Indexed, Progress, Report
from saliscope.page.events import Ask, follow, on, run_job, stop_on
from saliscope.page.wire import Updates


@follow(parts.MANY_HEAD)
def target(settings: Settings) -> str:
    """Return what a batch explains."""
    return messages.FOR_SENTENCE if settings.loaded.encodes_text else messages.FOR_CLASS


@on(parts.MANY, "submit")
def report(ask: Ask) -> Iterator[Updates]:
    """Show progress, then the report; a new report replaces the previous one of the same visitor."""

    def show(step: Report, _: Run) -> Updates:
        return {parts.MANY: status("done", step.message) | {"report": step.html}}

    yield from _run(ask, engine.explain, show)


@on(parts.MANY, "index")
def index(ask: Ask) -> Iterator[Updates]:
    """Index the channels over the images for this session; a new index replaces the previous one."""

    def show(step: Indexed, run: Run) -> Updates:
        if run.superseded:  # the visitor may have left
            return {}
        units.keep(ask.session, step.index)
        loaded = step.settings.loaded
        indexed = {"model": loaded.name, "title": loaded.title}
        return {parts.MANY: status("done", step.message), "indexed": indexed}

    yield from _run(ask, engine.index, show)


def _run(ask: Ask, work: Callable[..., Iterator[Any]], show: Callable[[Any, Run], Updates]) -> Iterator[Updates]:
    """Run the work over the files of a request: show its progress, and its result by `show`."""
    current = Run(0.0)

    def steps(run: Run) -> Iterator[Updates]:
        nonlocal current
        current = run
        for step in work(ask.question(), engine.parse_uploads(ask.data.get("files")), run):
            if isinstance(step, (Report, Indexed)):
                yield show(step, run)
            elif isinstance(step, (Waiting, Progress)):
                yield {parts.MANY: status("busy", step.message, fraction=step.fraction)}

    def show_error(message: str) -> Updates:
        return {parts.MANY: status("error", messages.STOPPED if current.cancelled else message)}

    yield from run_job(ask.job("many"), steps, show_error, seconds=limits.BATCH_SECONDS, unknown=messages.UNKNOWN)


@on(parts.MANY, "forget")
def forget(ask: Ask) -> None:
    """Remove the index of this session, because the network has changed."""
    units.forget(ask.session)


stop_on(parts.MANY, "many")
