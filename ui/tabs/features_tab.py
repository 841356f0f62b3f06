"""The tab with all channels of the layer, and one of them large."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import gradio as gr

from ui import limits, words
from ui.engine import features, packing, runs
from ui.engine.messages import Channel, Channels, Refused, Settings, Waiting
from ui.tabs import picture_panel
from ui.tabs.components import Choice, canvas
from ui.tabs.picture_panel import Panel

log = logging.getLogger("hooklens")


class Features:
    """The components of the tab and their handlers."""

    def __init__(self) -> None:
        with gr.Row(elem_id="hl-order"):
            self.sort = Choice(
                words.SORTS, value="activation", label=words.SORT, elem_id="hl-sort", interactive=True, filterable=False
            )
            self.status = canvas("line", "hl-grid-status")
        self.seen = canvas("seen", "hl-seen")
        with gr.Row(elem_id="hl-features"):
            with gr.Column(scale=3, min_width=320):
                self.grid = canvas("channels", "hl-grid", empty=words.EMPTY_GRID)
            with gr.Column(scale=2, min_width=280):
                self.channel = canvas("overlay", "hl-channel", empty=words.EMPTY_CHANNEL, chart=True)

    def wire(self, panel: Panel) -> None:
        """Ask when the tab is seen with other settings, when the order changes, when a page or a channel is chosen."""
        shared: dict[str, Any] = {
            "concurrency_id": "model",
            "concurrency_limit": 1,
            "api_visibility": "private",
            "show_progress": "minimal",
            "show_progress_on": [self.status],
            "trigger_mode": "multiple",
        }
        page = [*panel.inputs, self.sort]
        gr.on([self.seen.focus, self.grid.submit, self.sort.input], self.page, page, [self.grid, self.status], **shared)
        self.grid.select(self.open, panel.inputs, [self.channel, self.status], **shared)

    def page(self, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        """A page of channels."""
        *settings, sort = values
        data = getattr(event, "_data", None)
        data = data if isinstance(data, dict) else {}
        sort = sort if sort in words.MEASURE else "activation"
        page = data.get("page")
        with runs.begin(f"{request.session_hash}/features") as run:
            try:
                asked = picture_panel.asked(*settings)
                for step in features.page(asked, run, sort=sort, number=page if isinstance(page, int) else 0):
                    if isinstance(step, Channels):
                        key = str(data.get("key", ""))[:40]
                        yield {self.grid: packing.channels(step, sort, key, packing.number()), self.status: None}
                    elif isinstance(step, Waiting):
                        yield {
                            self.status: words.status(
                                "busy", step.sentence, ident=packing.number(), fraction=step.fraction
                            )
                        }
            except Refused as refusal:
                yield {self.status: words.status("error", str(refusal), ident=packing.number())}
            except Exception:
                log.exception("a page of channels failed")
                yield {self.status: words.status("error", words.UNKNOWN, ident=packing.number())}

    def open(self, event: gr.EventData, request: gr.Request, *values: Any) -> Iterator[dict[Any, Any]]:
        """One channel, large."""
        data = getattr(event, "_data", None)
        number = data.get("channel") if isinstance(data, dict) else None
        with runs.begin(f"{request.session_hash}/features", limits.SECONDS) as run:
            try:
                asked = picture_panel.asked(*values)
                for step in features.channel(asked, number if isinstance(number, int) else -1, run):
                    if isinstance(step, Channel):
                        yield {self.channel: packing.channel(step, packing.number()), self.status: None}
                    elif not isinstance(step, Settings):
                        yield {self.status: words.status("busy", step.sentence, ident=packing.number())}
            except Refused as refusal:
                yield {self.status: words.status("error", str(refusal), ident=packing.number())}
            except Exception:
                log.exception("a channel failed")
                yield {self.status: words.status("error", words.UNKNOWN, ident=packing.number())}
