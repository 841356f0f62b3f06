"""The Channels tab: all channels of the layer, and one channel enlarged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from saliscope.compute import engine
from saliscope.compute.answers import Waiting
from saliscope.compute.bundles.messages import SAVE
from saliscope.compute.channels import engine as channels_engine
from saliscope.compute.channels import messages
from saliscope.compute.channels.answers import (
    Channel,
    Channels,
    Contribution,
    InputGradient,
    Measures,
    ReceptiveFields,
    Sheet,
    Unchanged,
)
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.messages import STATUS
from saliscope.compute.messages import status as status_line
from saliscope.compute.request import Request, from_form
from saliscope.page.channels import view as channels_view
from saliscope.page.channels.arithmetic import ArithmeticPanel
from saliscope.page.channels.changing import Changing
from saliscope.page.components import view
from saliscope.page.components.components import canvas
from saliscope.page.shared.messages import MAP
from saliscope.page.shared.tab import UNQUEUED, Tab, Updates, error_line, event_data, integer, queue_options, run_job

CLICK_FILE = "() => { setTimeout(() => document.querySelector('#hl-channels-file')?.click(), 50); }"
"""Downloads the file as soon as the button has it."""


class Features(Tab):
    """Tiles of all channels in a selectable order; a click enlarges a channel, which then follows the settings."""

    title, id = messages.FEATURES, "features"

    def build(self) -> None:
        """Create the layout of the tab."""
        self.changing = Changing(self.page)
        with gr.Row(elem_id="hl-features"):
            with gr.Column(scale=4, min_width=320):
                empty, terms = messages.EMPTY_GRID, messages.GRID
                self.grid = canvas("channels/channels", "hl-grid", empty=empty, terms=terms, events=["answered"])
                self.status = canvas("page/line", "hl-grid-status", terms=STATUS)
                self.file = gr.DownloadButton(visible="hidden", elem_id="hl-channels-file")
            with gr.Column(scale=5, min_width=320, elem_id="hl-channels-pane"):
                self.opened = canvas("channels/channel", "hl-opened", terms=messages.OPEN)
                self.channel = canvas(
                    "overlay/overlay",
                    "hl-channel",
                    empty=messages.EMPTY_CHANNEL,
                    terms=MAP,
                    save=SAVE,
                    chart=True,
                    action="explainCell",
                )
                self.why = canvas("channels/cell_gradient", "hl-channel-why", terms=messages.OPEN)
                self.facts = canvas("channels/channel_facts", "hl-channel-facts", terms=messages.OPEN)
                self.page.changers.append(self.facts)
                self.arithmetic = ArithmeticPanel(self.page)

    def wire(self) -> None:
        """Connect the events: new settings, more tiles, a measure, and clicks on channels and cells."""
        inputs, shared = self.page.panel.inputs, queue_options("model", trigger_mode="multiple", show_progress="hidden")
        pane = [self.opened, self.channel, self.why, self.facts, self.status]
        self.grid.answered(self.follow, inputs, [self.grid, *pane], **shared)
        self.grid.submit(self.more, inputs, [self.grid, self.status], **shared)
        self.grid.stop(self.stop, None, None, **UNQUEUED)
        self.grid.select(self.open, inputs, pane, **shared)
        self.why.select(self.open, inputs, pane, **shared)
        saved = self.grid.upload(self.save, inputs, [self.file, self.status], **shared)
        saved.success(None, None, None, js=CLICK_FILE)
        self.changing.wire()
        self.arithmetic.wire()

    def follow(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Show the tiles of a new answer, unless the page already has them, and update the open channel.

        `event` contains the identifiers "about" and "whom" of the page (see `Identifiers`) and its channel "number".
        """
        data = event_data(event)
        key, number = str(data.get("key", ""))[:40], integer(data.get("number"), -1)

        def steps(run: Run) -> Iterator[Updates]:
            question, step = from_form(*form), None
            if question.image is None:
                yield self._closed("") | {self.grid: {"id": view.number(), "key": key}}
                return
            for step in channels_engine.sheet(question, run, known=_text(data.get("about"))):
                if isinstance(step, Unchanged):
                    yield {self.grid: channels_view.same(key, step.ids, view.number()), self.status: None}
                elif isinstance(step, Sheet):
                    yield {self.grid: channels_view.sheet(step, key, view.number()), self.status: None}
                elif isinstance(step, Waiting):
                    yield self._waiting(step)
            if number < 0 or (isinstance(step, Unchanged) and step.ids.target == data.get("whom")):
                return
            if isinstance(step, Sheet) and number >= step.total:
                yield self._closed(messages.gone(number, step.settings.layer, step.total))
            else:
                yield from self._channel(question, number, run, None)

        yield from run_job(f"{request.session_hash}/channels", steps, self._show_error)

    def more(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Show more tiles, or a measure of all channels."""
        data = event_data(event)
        kind, numbers = data.get("measure"), _numbers(data.get("numbers"))

        def steps(run: Run) -> Iterator[Updates]:
            question = from_form(*form)
            if kind in channels_engine.MEASURES:
                results = channels_engine.measure(question, run, kind)
            else:
                results = channels_engine.sheet(question, run, numbers)
            for step in results:
                if isinstance(step, Measures):
                    yield {self.grid: channels_view.measures(step, view.number()), self.status: None}
                elif isinstance(step, Sheet):
                    key = str(data.get("key", ""))[:40]
                    yield {self.grid: channels_view.sheet(step, key, view.number()), self.status: None}
                elif isinstance(step, Waiting):
                    yield self._waiting(step)

        def show_error(message: str) -> Updates:
            return {self.grid: {"id": view.number(), "refused": kind}, **self._show_error(message)}

        yield from run_job(f"{request.session_hash}/channels", steps, show_error)

    def stop(self, request: gr.Request) -> None:
        """Stop a long measure."""
        runs.stop(f"{request.session_hash}/channels")

    def open(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Enlarge a channel; with a cell, show its input gradient."""
        data = event_data(event)
        number, cell = integer(data.get("channel"), -1), _cell(data.get("cell"))

        def steps(run: Run) -> Iterator[Updates]:
            yield from self._channel(from_form(*form), number, run, cell)

        yield from run_job(f"{request.session_hash}/channel", steps, self._show_error)

    def save(self, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Save all channels as a file, [K, h, w]."""

        def steps(run: Run) -> Iterator[Updates]:
            for step in channels_engine.all_channels(from_form(*form), run, sort="number"):
                if isinstance(step, Channels):
                    with tempfile.TemporaryDirectory() as folder:  # Gradio copies the file before the next step
                        path = Path(folder) / f"{messages.sheet_file(step.settings)}.npy"
                        engine.save_array(step.maps, path)
                        yield {self.file: str(path), self.status: None}
                elif isinstance(step, Waiting):
                    yield self._waiting(step)

        yield from run_job(f"{request.session_hash}/channels-file", steps, self._show_error)

    def _channel(self, question: Request, number: int, run: Run, cell: tuple[int, int] | None) -> Iterator[Updates]:
        facts: dict[str, Any] = {}
        for step in channels_engine.channel(question, number, run, cell):
            ident = view.number()
            if isinstance(step, Waiting):
                yield self._waiting(step)
            elif isinstance(step, InputGradient):
                yield {self.why: channels_view.input_gradient(step, ident), self.status: None}
            elif isinstance(step, Channel) and cell is None:
                facts = channels_view.facts(step, ident)
                yield {
                    self.opened: channels_view.open_channel(step, ident),
                    self.channel: channels_view.channel(step, ident),
                    self.facts: facts,
                    self.status: None,
                }
            elif isinstance(step, Contribution | ReceptiveFields):
                facts = {**facts, "id": ident, **channels_view.more(step)}
                yield {self.facts: facts}

    def _closed(self, message: str) -> Updates:
        """Close the open channel with a message."""
        ident = view.number()
        empty = {"id": ident, "words": {"empty": messages.EMPTY_CHANNEL}}
        closed = channels_view.no_channel(message, ident)
        return {self.opened: closed, self.channel: empty, self.why: {"id": ident}, self.facts: {"id": ident}}

    def _waiting(self, step: Waiting) -> Updates:
        line = status_line("busy", step.message, ident=view.number(), fraction=step.fraction)
        return {self.status: line}

    def _show_error(self, message: str) -> Updates:
        return {self.status: error_line(message)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _numbers(value: Any) -> list[int] | None:
    """Parse the channels that a script sent."""
    fits = isinstance(value, list) and value and all(type(number) is int for number in value)
    return value[: channels_engine.MOST] if fits else None


def _cell(value: Any) -> tuple[int, int] | None:
    """Parse a cell (row, column) that a script sent."""
    fits = isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)
    return (value[0], value[1]) if fits else None
