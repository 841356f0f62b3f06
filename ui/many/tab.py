"""The tab: the files, Explain all, Stop, and the report in a frame, to look at and to save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ui import limits
from ui import words as page_words
from ui.engine import packing, runs
from ui.engine.messages import Waiting
from ui.engine.request import from_form
from ui.engine.runs import Run
from ui.many import engine, words
from ui.many.engine import Going, Reported
from ui.tabs.components import canvas
from ui.tabs.tab import AT_ONCE, Tab, Updates, event_data, job, queued


class Many(Tab):
    """Many pictures with the settings of the page."""

    title, id = words.MANY, "many"

    def build(self) -> None:
        """Lay the tab out."""
        gr.HTML(
            f"<h2 class='hl-heading'>{words.TITLE}</h2><p class='hl-quiet'>{words.TEXT}</p>", elem_id="hl-many-head"
        )
        most = {"count": limits.MANY, "bytes": limits.MANY_BYTES, "file": limits.FILE}
        self.view = canvas("many/many", "hl-many", terms=words.TERMS, limits=most)

    def wire(self) -> None:
        """A report takes its turn with all that visitors ask; its Stop does not."""
        asked = queued("model", show_progress="hidden", trigger_mode="multiple")
        gr.on([self.view.submit], self.report, self.page.panel.inputs, [self.view], **asked)
        gr.on([self.view.stop], self.stopped, None, None, trigger_mode="multiple", **AT_ONCE)

    def report(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Progress, then the report; a visitor's new one replaces their former one."""
        given = event_data(event).get("files")
        began = Run(0.0)

        def steps(run: Run) -> Iterator[Updates]:
            nonlocal began
            began = run
            for step in engine.explain(from_form(*form), engine.received(given), run):
                if isinstance(step, Reported):
                    yield {self.view: _said("done", step.sentence) | {"report": step.html}}
                elif isinstance(step, (Waiting, Going)):
                    yield {self.view: _said("busy", step.sentence, step.fraction)}

        def refused(sentence: str) -> Updates:
            return {self.view: _said("error", words.STOPPED if began.cancelled else sentence)}

        yield from job(_name(request), steps, refused, seconds=limits.MANY_SECONDS, unknown=words.UNKNOWN)

    def stopped(self, request: gr.Request) -> None:
        """End the visitor's run; its own handler shows the report so far."""
        runs.stop(_name(request))


def _said(kind: str, sentence: str, fraction: float | None = None) -> dict[str, Any]:
    return page_words.status(kind, sentence, ident=packing.number(), fraction=fraction)


def _name(request: gr.Request) -> str:
    return f"{request.session_hash}/many"
