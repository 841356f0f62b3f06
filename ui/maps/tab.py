"""What the overlay's tab shows of other maps: those of the likely classes, and one that it knows already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ui.engine import packing
from ui.engine.messages import Settings
from ui.engine.request import from_form
from ui.engine.runs import Run
from ui.maps import top
from ui.maps.packing import top_maps
from ui.maps.top import TopMaps
from ui.tabs.components import canvas
from ui.tabs.tab import Page, Updates, integer, job, queued


class Beside:
    """The component that says which question was asked, and the maps beside the predictions."""

    def __init__(self, page: Page, overlay: str) -> None:
        self.page = page
        self.recall = canvas("maps/recall", "hl-recall", of=overlay)
        self.seen, self.maps = page.seen_in_tab("hl-top-seen"), canvas("maps/topmaps", "hl-topmaps")

    def wire(self, bars: gr.HTML) -> None:
        """After each answer that is seen, the maps of the classes that it lists."""
        inputs = [*self.page.panel.inputs, bars]
        self.seen.focus(
            self.show, inputs, self.maps, **queued("model", trigger_mode="multiple", show_progress="hidden")
        )

    def asked(self, settings: Settings) -> Updates:
        """The page may have a map of this question already."""
        return {self.recall: {"id": packing.number(), "key": settings.key}}

    def show(self, request: gr.Request, *values: Any) -> Iterator[Updates]:
        """The small maps."""
        *form, shown = values
        shown = shown if isinstance(shown, dict) else {}
        maps, items = shown.get("maps"), shown.get("items")

        def steps(run: Run) -> Iterator[Updates]:
            if not isinstance(maps, dict) or not isinstance(items, list):
                return
            classes = [integer(item.get("index"), -1) for item in items if isinstance(item, dict)]
            for step in top.explain(from_form(*form), run, str(shown.get("key")), str(maps.get("method")), classes):
                if isinstance(step, TopMaps):
                    yield {self.maps: top_maps(step, integer(shown.get("id"), 0), packing.number())}

        yield {self.maps: gr.skip()}  # a handler without a step is an error to Gradio
        yield from job(f"{request.session_hash}/top", steps, lambda _: {self.maps: {"id": packing.number()}})
