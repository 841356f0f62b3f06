"""The Batch view: explain many images with the settings of the page and show the report, or index the channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from saliscope import limits
from saliscope.compute import units
from saliscope.compute.jobs.runs import Run
from saliscope.compute.messages import status
from saliscope.page.batch import engine, messages, parts
from saliscope.page.batch.engine import Indexed, Report
from saliscope.page.events import Ask, Show, busy, failed, on, run_job, shown, stop_on
from saliscope.page.wire import Updates


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

    def steps(run: Run) -> Iterator[Updates]:
        kinds: Show = {**dict.fromkeys((Report, Indexed), lambda step: show(step, run)), **busy(parts.MANY)}
        return shown(work(ask.question(), engine.parse_uploads(ask.data.get("files")), run), kinds)

    seconds, unknown, stopped = limits.BATCH_SECONDS, messages.UNKNOWN, messages.STOPPED
    yield from run_job(ask.job("many"), steps, failed(parts.MANY), seconds=seconds, unknown=unknown, stopped=stopped)


@on(parts.MANY, "forget")
def forget(ask: Ask) -> None:
    """Remove the index of this session, because the network has changed."""
    units.forget(ask.session)


stop_on(parts.MANY, "many")
