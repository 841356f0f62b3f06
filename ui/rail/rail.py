"""The rail's components, and the question for gradient norms that the page asks after a map is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ui.engine.messages import Answer, Settings
from ui.engine.request import Request, from_form
from ui.engine.runs import Run
from ui.rail import network, norms, packing, words
from ui.tabs.components import canvas
from ui.tabs.tab import Page, Updates, job, queued


class Rail:
    """`drawing` is what is seen; its value holds the stages' maps. The network and the norms have carriers."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.drawing = canvas("rail/rail", "hl-strip", terms=words.terms())
        self.network = canvas("rail/network", "hl-rail-network")
        self.norms = canvas("rail/norms", "hl-rail-norms")

    @property
    def outputs(self) -> list[Any]:
        """What an answer may change."""
        return [self.drawing, self.network, self.norms]

    def wire(self) -> None:
        """The carrier of the norms asks for them once the map is there and the rail is in sight."""
        shared = queued("model", show_progress="hidden", trigger_mode="multiple")
        self.norms.focus(self.measured, self.page.panel.inputs, self.norms, **shared)

    def drawn(self, settings: Settings, form: Any) -> Updates:
        """The network's drawing, where the page shows another; `form` says which, as the value of the options does."""
        known = form.get("model") if isinstance(form, dict) else None
        return {} if known == settings.loaded.name else {self.network: network.drawing(settings.loaded)}

    def answered(self, step: Answer, question: Request) -> Updates:
        """With an answer: whose norms are wanted."""
        return {self.norms: packing.wanted(step, str(question.picture))}

    def without_answer(self, settings: Settings) -> Updates:
        """Where there is nothing to explain: no norms are wanted."""
        return {self.norms: {"key": "", "chosen": settings.layer, "note": ""}}

    def without_stages(self, step: Answer, ident: int) -> Updates:
        """After an answer of a network that has no maps of several stages."""
        return {self.drawing: {"id": ident, "chosen": step.settings.layer, "stages": []}}

    def measured(self, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """The norms for what the page shows."""

        def steps(run: Run) -> Iterator[Updates]:
            for step in norms.measure(from_form(*form), run):
                if isinstance(step, norms.Norms):
                    yield {self.norms: packing.norms(step)}

        yield from job(f"{request.session_hash}/rail", steps, lambda sentence: {self.norms: {"failed": sentence}})
