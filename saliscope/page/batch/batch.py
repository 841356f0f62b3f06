"""The Batch view: explain many images with the settings of the page, and show the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope import limits
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import Settings, Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.page.batch import engine, messages, parts
from saliscope.page.batch.engine import Progress, Report
from saliscope.page.events import Ask, follow, on, run_job, stop_on
from saliscope.page.wire import Updates, new_number


@follow(parts.MANY_HEAD)
def target(settings: Settings) -> str:
    """Return what a batch explains."""
    return messages.FOR_SENTENCE if settings.loaded.encodes_text else messages.FOR_CLASS


@on(parts.MANY, "submit")
def report(ask: Ask) -> Iterator[Updates]:
    """Show progress, then the report; a new report replaces the previous one of the same visitor."""
    current = Run(0.0)

    def steps(run: Run) -> Iterator[Updates]:
        nonlocal current
        current = run
        for step in engine.explain(ask.question(), engine.parse_uploads(ask.data.get("files")), run):
            if isinstance(step, Report):
                yield {parts.MANY: _status("done", step.message) | {"report": step.html}}
            elif isinstance(step, (Waiting, Progress)):
                yield {parts.MANY: _status("busy", step.message, step.fraction)}

    def show_error(message: str) -> Updates:
        return {parts.MANY: _status("error", messages.STOPPED if current.cancelled else message)}

    yield from run_job(ask.job("many"), steps, show_error, seconds=limits.BATCH_SECONDS, unknown=messages.UNKNOWN)


stop_on(parts.MANY, "many")


def _status(kind: str, message: str, fraction: float | None = None) -> dict[str, Any]:
    return page_messages.status(kind, message, ident=new_number(), fraction=fraction)
