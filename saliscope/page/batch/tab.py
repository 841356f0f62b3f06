"""The Batch tab: upload files, explain all, stop, and show or save the report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from saliscope import limits
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import from_form
from saliscope.images import examples
from saliscope.page.batch import engine, messages
from saliscope.page.batch.engine import Progress, Report
from saliscope.page.components import view
from saliscope.page.components.components import canvas
from saliscope.page.shared.tab import UNQUEUED, Tab, Updates, event_data, queue_options, run_job


class Batch(Tab):
    """Explain many images with the settings of the page."""

    title, id = messages.BATCH, "many"

    def build(self) -> None:
        """Create the layout of the tab."""
        head = gr.HTML(_head(messages.FOR_CLASS), elem_id="hl-many-head")
        self.page.followers[head] = lambda settings: _head(
            messages.FOR_SENTENCE if settings.loaded.encodes_text else messages.FOR_CLASS
        )
        most = {"count": limits.BATCH, "bytes": limits.BATCH_BYTES, "file": limits.FILE}
        addresses = [f"hl-examples/{example.path.name}" for example in examples.all_examples().values()]
        terms = messages.TERMS | {"examples": messages.TERMS["examples"].format(count=len(addresses))}
        self.view = canvas("batch/batch", "hl-many", terms=terms, limits=most, examples=addresses)

    def wire(self) -> None:
        """Connect the events; a report waits in the queue, but Stop does not."""
        shared = queue_options("model", show_progress="hidden", trigger_mode="multiple")
        gr.on([self.view.submit], self.report, self.page.panel.inputs, [self.view], **shared)
        gr.on([self.view.stop], self.stop_job, None, None, trigger_mode="multiple", **UNQUEUED)

    def report(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Show progress, then the report; a new report replaces the previous one of the same user."""
        files = event_data(event).get("files")
        current = Run(0.0)

        def steps(run: Run) -> Iterator[Updates]:
            nonlocal current
            current = run
            for step in engine.explain(from_form(*form), engine.parse_uploads(files), run):
                if isinstance(step, Report):
                    yield {self.view: _status("done", step.message) | {"report": step.html}}
                elif isinstance(step, (Waiting, Progress)):
                    yield {self.view: _status("busy", step.message, step.fraction)}

        def show_error(message: str) -> Updates:
            return {self.view: _status("error", messages.STOPPED if current.cancelled else message)}

        yield from run_job(
            self.job_name(request), steps, show_error, seconds=limits.BATCH_SECONDS, unknown=messages.UNKNOWN
        )


def _head(target: str) -> str:
    """Return the heading of the view, and what it explains."""
    return f"<h2 class='hl-heading'>{messages.TITLE}</h2><p class='hl-quiet'>{messages.TEXT.format(target=target)}</p>"


def _status(kind: str, message: str, fraction: float | None = None) -> dict[str, Any]:
    return page_messages.status(kind, message, ident=view.number(), fraction=fraction)
