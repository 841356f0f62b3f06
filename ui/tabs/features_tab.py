"""The tab with all channels of the layer, and one of them large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ui import words
from ui.engine import features, packing
from ui.engine.messages import Channel, Channels, Waiting
from ui.engine.request import from_form
from ui.engine.runs import Run
from ui.tabs.components import Choice, canvas
from ui.tabs.tab import Tab, Updates, error_line, event_data, integer, job, queued


class Features(Tab):
    """A sheet of channels, in pages and in a chosen order; a click opens one."""

    title, id = words.FEATURES, "features"

    def build(self) -> None:
        """Lay the tab out."""
        with gr.Row(elem_id="hl-order"):
            self.sort = Choice(
                words.SORTS, value="activation", label=words.SORT, elem_id="hl-sort", interactive=True, filterable=False
            )
            self.status = canvas("line", "hl-grid-status")
        self.seen = self.page.seen_in_tab("hl-seen")
        with gr.Row(elem_id="hl-features"):
            with gr.Column(scale=3, min_width=320):
                self.grid = canvas("channels", "hl-grid", empty=words.EMPTY_GRID)
            with gr.Column(scale=2, min_width=280):
                self.channel = canvas("overlay", "hl-channel", empty=words.EMPTY_CHANNEL, chart=True)

    def wire(self) -> None:
        """A page of channels for new settings, another order, another page; one channel for a click on it."""
        inputs, shown = self.page.panel.inputs, {"show_progress": "minimal", "show_progress_on": [self.status]}
        shared = queued("model", trigger_mode="multiple", **shown)
        asks = [self.seen.focus, self.grid.submit, self.sort.input]
        gr.on(asks, self.show_page, [*inputs, self.sort], [self.grid, self.status], **shared)
        self.grid.select(self.show_channel, inputs, [self.channel, self.status], **shared)

    def show_page(self, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[Updates]:
        """A page of channels."""
        *form, sort = values
        data, sort = event_data(event), sort if sort in words.MEASURE else "activation"
        key = str(data.get("key", ""))[:40]

        def steps(run: Run) -> Iterator[Updates]:
            for step in features.page(from_form(*form), run, sort=sort, number=integer(data.get("page"), 0)):
                if isinstance(step, Channels):
                    yield {self.grid: packing.channels(step, sort, key, packing.number()), self.status: None}
                elif isinstance(step, Waiting):
                    yield self._waiting(step)

        yield from job(f"{request.session_hash}/features", steps, self._refused)

    def show_channel(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """One channel, large."""
        number = integer(event_data(event).get("channel"), -1)

        def steps(run: Run) -> Iterator[Updates]:
            for step in features.channel(from_form(*form), number, run):
                if isinstance(step, Channel):
                    yield {self.channel: packing.channel(step, packing.number()), self.status: None}
                elif isinstance(step, Waiting):
                    yield self._waiting(step)

        yield from job(f"{request.session_hash}/features", steps, self._refused)

    def _waiting(self, step: Waiting) -> Updates:
        line = words.status("busy", step.sentence, ident=packing.number(), fraction=step.fraction)
        return {self.status: line}

    def _refused(self, sentence: str) -> Updates:
        return {self.status: error_line(sentence)}
