"""The tab with all channels of the layer, and one of them large."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from ui.channels import engine as channels_engine
from ui.channels import packing as channels_packing
from ui.channels import words
from ui.channels.messages import Channel, Fields, Measures, Same, Share, Sheet, Why
from ui.engine import engine, packing, runs
from ui.engine.messages import Settings, Waiting
from ui.engine.request import Request, from_form
from ui.engine.runs import Run
from ui.tabs.components import canvas
from ui.tabs.tab import AT_ONCE, Tab, Updates, error_line, event_data, integer, job, queued
from ui.words import status as status_line

CLICK_FILE = "() => { setTimeout(() => document.querySelector('#hl-channels-file')?.click(), 50); }"
"""The browser fetches the file as soon as the button holds it."""


class Features(Tab):
    """Tiles of all channels, in a chosen order; a click opens one large, which then follows the settings."""

    title, id = words.FEATURES, "features"

    def build(self) -> None:
        """Lay the tab out."""
        self.seen = canvas("channels/asked", "hl-channels-seen")
        self.now = canvas("channels/asked", "hl-channels-now")
        self.page.seen.append(self.seen)
        self.page.resolved[self.now] = _now
        with gr.Row(elem_id="hl-features"):
            with gr.Column(scale=4, min_width=320):
                self.grid = canvas("channels/channels", "hl-grid", empty=words.EMPTY_GRID, terms=words.GRID)
                self.status = canvas("page/line", "hl-grid-status")
                self.file = gr.DownloadButton(visible="hidden", elem_id="hl-channels-file")
            with gr.Column(scale=5, min_width=320, elem_id="hl-channels-pane"):
                self.opened = canvas("channels/channel", "hl-opened", terms=words.OPEN)
                self.channel = canvas("overlay/overlay", "hl-channel", empty=words.EMPTY_CHANNEL, chart=True)
                self.why = canvas("channels/why", "hl-channel-why", terms=words.OPEN)
                self.facts = canvas("channels/figures", "hl-channel-facts", terms=words.OPEN)
                self.page.changing.append(self.facts)

    def wire(self) -> None:
        """Tiles for new settings, more tiles, a measure; one channel for a click on it, and one cell of it."""
        inputs, shared = self.page.panel.inputs, queued("model", trigger_mode="multiple", show_progress="hidden")
        pane = [self.opened, self.channel, self.why, self.facts, self.status]
        self.seen.focus(self.follow, inputs, [self.grid, *pane], **shared)
        self.grid.submit(self.more, inputs, [self.grid, self.status], **shared)
        self.grid.stop(self.stopped, None, None, **AT_ONCE)
        self.grid.select(self.open, inputs, pane, **shared)
        self.why.select(self.open, inputs, pane, **shared)
        saved = self.grid.upload(self.save, inputs, [self.file, self.status], **shared)
        saved.success(None, None, None, js=CLICK_FILE)

    def follow(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """The tiles of a new answer, unless the page has them, and its open channel, while there is one of its number.

        `event` says what the page shows: the channels "about", of which "whom", and the "number" that is open.
        """
        data = event_data(event)
        key, number = str(data.get("key", ""))[:40], integer(data.get("number"), -1)

        def steps(run: Run) -> Iterator[Updates]:
            question, step = from_form(*form), None
            if question.picture is None:
                yield self._closed("") | {self.grid: {"id": packing.number(), "key": key}}
                return
            for step in channels_engine.sheet(question, run, known=_text(data.get("about"))):
                if isinstance(step, Same):
                    yield {self.grid: channels_packing.same(key, step.about, packing.number()), self.status: None}
                elif isinstance(step, Sheet):
                    yield {self.grid: channels_packing.sheet(step, key, packing.number()), self.status: None}
                elif isinstance(step, Waiting):
                    yield self._waiting(step)
            if number < 0 or (isinstance(step, Same) and step.about.whom == data.get("whom")):
                return
            if isinstance(step, Sheet) and number >= step.total:
                yield self._closed(words.gone(number, step.settings.layer, step.total))
            else:
                yield from self._channel(question, number, run, None)

        yield from job(f"{request.session_hash}/channels", steps, self._refused)

    def more(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """More tiles of the channels that are shown, or a measure of them all."""
        data = event_data(event)
        kind, numbers = data.get("measure"), _numbers(data.get("numbers"))

        def steps(run: Run) -> Iterator[Updates]:
            question = from_form(*form)
            if kind in channels_engine.MEASURES:
                found = channels_engine.measured(question, run, kind)
            else:
                found = channels_engine.sheet(question, run, numbers)
            for step in found:
                if isinstance(step, Measures):
                    yield {self.grid: channels_packing.measures(step, packing.number()), self.status: None}
                elif isinstance(step, Sheet):
                    key = str(data.get("key", ""))[:40]
                    yield {self.grid: channels_packing.sheet(step, key, packing.number()), self.status: None}
                elif isinstance(step, Waiting):
                    yield self._waiting(step)

        def refused(sentence: str) -> Updates:
            return {self.grid: {"id": packing.number(), "refused": kind}, **self._refused(sentence)}

        yield from job(f"{request.session_hash}/channels", steps, refused)

    def stopped(self, request: gr.Request) -> None:
        """End a measure that takes long."""
        runs.stop(f"{request.session_hash}/channels")

    def open(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """One channel, large; with a cell why that cell fired."""
        data = event_data(event)
        number, cell = integer(data.get("channel"), -1), _cell(data.get("cell"))

        def steps(run: Run) -> Iterator[Updates]:
            yield from self._channel(from_form(*form), number, run, cell)

        yield from job(f"{request.session_hash}/channel", steps, self._refused)

    def save(self, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """All channels as a file, [K, h, w]."""

        def steps(run: Run) -> Iterator[Updates]:
            for step in channels_engine.every(from_form(*form), run, sort="number"):
                if isinstance(step, channels_engine.Channels):
                    with tempfile.TemporaryDirectory() as folder:  # Gradio copies the file before the next step
                        path = Path(folder) / f"{words.sheet_file(step.settings)}.npy"
                        engine.save_array(step.maps, path)
                        yield {self.file: str(path), self.status: None}
                elif isinstance(step, Waiting):
                    yield self._waiting(step)

        yield from job(f"{request.session_hash}/channels-file", steps, self._refused)

    def _channel(self, question: Request, number: int, run: Run, cell: tuple[int, int] | None) -> Iterator[Updates]:
        facts: dict[str, Any] = {}
        for step in channels_engine.channel(question, number, run, cell):
            ident = packing.number()
            if isinstance(step, Waiting):
                yield self._waiting(step)
            elif isinstance(step, Why):
                yield {self.why: channels_packing.why(step, ident), self.status: None}
            elif isinstance(step, Channel) and cell is None:
                facts = channels_packing.facts(step, ident)
                yield {
                    self.opened: channels_packing.opened(step, ident),
                    self.channel: channels_packing.channel(step, ident),
                    self.facts: facts,
                    self.status: None,
                }
            elif isinstance(step, Share | Fields):
                facts = {**facts, "id": ident, **channels_packing.more(step)}
                yield {self.facts: facts}

    def _closed(self, sentence: str) -> Updates:
        """No channel is open any more, and why."""
        ident = packing.number()
        empty = {"id": ident, "words": {"empty": words.EMPTY_CHANNEL}}
        closed = channels_packing.closed(sentence, ident)
        return {self.opened: closed, self.channel: empty, self.why: {"id": ident}, self.facts: {"id": ident}}

    def _waiting(self, step: Waiting) -> Updates:
        line = status_line("busy", step.sentence, ident=packing.number(), fraction=step.fraction)
        return {self.status: line}

    def _refused(self, sentence: str) -> Updates:
        return {self.status: error_line(sentence)}


def _now(settings: Settings) -> dict[str, Any]:
    """What the tab shows is the former question's from now on."""
    return {"now": packing.number()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _numbers(value: Any) -> list[int] | None:
    """Channels that a script asked for."""
    fits = isinstance(value, list) and value and all(type(number) is int for number in value)
    return value[: channels_engine.MOST] if fits else None


def _cell(value: Any) -> tuple[int, int] | None:
    """A cell (row, column) that a script asked for."""
    fits = isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)
    return (value[0], value[1]) if fits else None
