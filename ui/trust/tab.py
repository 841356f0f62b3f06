"""The trust strip on the overlay's tab, and the questions that it asks after a map is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from ui.engine import packing as page_packing
from ui.engine import runs
from ui.engine.messages import Answer
from ui.engine.request import Request, from_form
from ui.engine.runs import Run
from ui.tabs.components import canvas
from ui.tabs.tab import AT_ONCE, Page, Updates, event_data, job, queued
from ui.trust import engine, packing, words
from ui.trust.messages import Judging, Verdict, Weights

PART = "trust"
"""Of a visitor's jobs."""


class Trust:
    """`strip` asks for the verdict by "focus", for new weights by "submit", and for the end of either by "stop"."""

    def __init__(self, page: Page, overlay: str) -> None:
        self.page = page
        self.strip = canvas("trust/trust", "hl-trust", terms=words.TERMS, of=overlay)

    def wire(self) -> None:
        """The strip asks by itself for quick methods, once the map is there and in sight."""
        inputs, shared = self.page.panel.inputs, queued("model", trigger_mode="multiple", show_progress="hidden")
        self.strip.focus(self.judge, inputs, self.strip, **shared)
        self.strip.submit(self.draw, inputs, self.strip, **shared)
        self.strip.stop(self.stop, **AT_ONCE)

    def answered(self, step: Answer, ident: int) -> Updates:
        """With an answer: whose verdict may be asked for."""
        return {self.strip: packing.wanted(step, ident)}

    def without_answer(self) -> Updates:
        """Where there is nothing to explain."""
        return {self.strip: {"id": page_packing.number(), "key": "", "why": "", "quick": False}}

    def judge(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """The verdict on the map that is shown."""
        yield from self._job(engine.judge, event, request, form)

    def draw(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """The weights drawn anew."""
        yield from self._job(engine.draw_weights, event, request, form)

    def stop(self, request: gr.Request) -> None:
        """End either."""
        runs.stop(f"{request.session_hash}/{PART}")

    def _job(
        self,
        work: Callable[[Request, Run, str], Iterator[Any]],
        event: gr.EventData,
        request: gr.Request,
        form: tuple[Any, ...],
    ) -> Iterator[Updates]:
        key = str(event_data(event).get("key", ""))

        def steps(run: Run) -> Iterator[Updates]:
            step = None
            for step in work(from_form(*form), run, key):
                if isinstance(step, Judging):
                    yield {self.strip: packing.judging(step)}
                elif isinstance(step, Verdict):
                    yield {self.strip: packing.verdict(step)}
                elif isinstance(step, Weights):
                    yield {self.strip: packing.weights(step)}
            if not isinstance(step, (Verdict, Weights)):
                yield refused(words.CHANGED)

        def refused(sentence: str) -> Updates:
            return {self.strip: packing.failed(key, sentence)}

        yield {self.strip: gr.skip()}  # a handler without a step is an error to Gradio
        yield from job(f"{request.session_hash}/{PART}", steps, refused, unknown=words.UNKNOWN)
