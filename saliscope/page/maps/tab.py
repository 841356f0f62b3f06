"""The maps of the most likely classes in the overlay tab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from saliscope.compute.jobs.runs import Run
from saliscope.compute.maps import top
from saliscope.compute.maps.top import TopMaps
from saliscope.compute.request import from_form
from saliscope.page.components import view
from saliscope.page.components.components import receiver
from saliscope.page.maps.view import top_maps
from saliscope.page.shared.tab import Page, Updates, integer, queue_options, run_job


class TopClassMaps:
    """The small maps next to the predictions."""

    def __init__(self, page: Page) -> None:
        self.page, self.maps = page, receiver("hl-topmaps", "smallMaps")

    def wire(self, bars: gr.HTML) -> None:
        """Connect the event that requests the maps of the listed classes after each answer."""
        inputs = [*self.page.panel.inputs, bars]
        shared = queue_options("model", trigger_mode="multiple", show_progress="hidden")
        bars.answered(self.show, inputs, self.maps, **shared)

    def show(self, request: gr.Request, *values: Any) -> Iterator[Updates]:
        """Show the small maps."""
        *form, shown = values
        shown = shown if isinstance(shown, dict) else {}
        maps, items = shown.get("maps"), shown.get("items")

        def steps(run: Run) -> Iterator[Updates]:
            if not isinstance(maps, dict) or not isinstance(items, list):
                return
            classes = [integer(item.get("index"), -1) for item in items if isinstance(item, dict)]
            for step in top.explain(from_form(*form), run, str(shown.get("key")), str(maps.get("method")), classes):
                if isinstance(step, TopMaps):
                    yield {self.maps: top_maps(step, integer(shown.get("id"), 0), view.number())}

        yield {self.maps: gr.skip()}  # Gradio requires at least one step
        yield from run_job(f"{request.session_hash}/top", steps, lambda _: {self.maps: {"id": view.number()}})
