"""The tab with up to four panels; a script lays them out and draws them, asks for their maps and compares them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ui.compare import asks, packing, words
from ui.engine import packing as pack
from ui.engine import runs
from ui.engine.messages import Answer, Refining, Scene, Settings, Waiting
from ui.engine.request import from_form
from ui.engine.runs import Run
from ui.ranking.tab import table
from ui.tabs.components import canvas
from ui.tabs.tab import AT_ONCE, Tab, Updates, event_data, job, queued

FORM = "(...form) => JSON.stringify({form, at: Date.now()})"
PICTURE = "(picture) => JSON.stringify({picture})"
"""The browser's side: what stands on the page, for the script; without a request."""


class Compare(Tab):
    """The board with the panels, and for each panel a component that takes its answers to the board's script."""

    title, id = words.COMPARE, "compare"

    def build(self) -> None:
        """Lay the tab out."""
        self.seen = self.page.seen_in_tab("hl-compare-seen")
        self.board = canvas("compare/compare", "hl-compare", terms=words.TERMS, slots=asks.SLOTS)
        table(self.page, "hl-ranking-compare")
        with gr.Column(elem_id="hl-compare-mail"):
            self.slots = [canvas("compare/mail", f"hl-compare-{slot}", kind="answer") for slot in range(asks.SLOTS)]
            self.picture = canvas("compare/mail", "hl-compare-picture", kind="picture")
            self.settings = canvas("compare/mail", "hl-compare-settings", kind="settings")
            self.page.resolved[self.settings] = settings

    def wire(self) -> None:
        """Panels ask for themselves; what they need of the page reaches their script without a request."""
        panel = self.page.panel
        silent: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        self.seen.focus(None, panel.inputs, self.board, js=FORM, **silent)
        panel.picture.change(None, panel.picture, self.picture, js=PICTURE, **silent)
        asked = queued("model", show_progress="hidden", trigger_mode="multiple")
        self.board.submit(self.answer, panel.inputs, self.slots, **asked)
        self.board.focus(self.stopped, None, None, trigger_mode="multiple", **AT_ONCE)

    def answer(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """One panel's map. A question that was sent twice is answered once."""
        ask = asks.received(event_data(event))
        slot, began = self.slots[ask.slot], Run(0.0)
        known: dict[str, Any] = {}

        def steps(run: Run) -> Iterator[Updates]:
            nonlocal began
            began = run
            picture = from_form(*form).picture
            if picture is None or form[0] != ask.picture:
                yield {slot: packing.passed(ask)}
                return
            for value in _values(ask, picture, run, known):
                yield {slot: value}

        def refused(sentence: str) -> Updates:
            stopped = began.cancelled
            return {slot: known | packing.refused(ask, words.STOPPED if stopped else sentence, stopped=stopped)}

        name = f"{request.session_hash}/compare-{ask.slot}"
        yield from job(name, steps, refused, question=str(ask.number))

    def stopped(self, event: gr.EventData, request: gr.Request) -> None:
        """End one panel's run, or those of all; their own handlers show the best maps so far."""
        for slot in (event_data(event).get("slot"),) if "slot" in event_data(event) else range(asks.SLOTS):
            runs.stop(f"{request.session_hash}/compare-{slot}")


def _values(ask: asks.Ask, picture: str, run: Run, known: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What the script gets for each step. What comes once is `known` from then on: of two steps in quick succession
    only the second may arrive.
    """
    for step in asks.answers(ask, picture, run):
        if isinstance(step, asks.Place):
            known["box"] = step.box
        elif isinstance(step, Settings):
            known |= packing.resolved(ask, step)
        elif isinstance(step, Scene):
            known |= packing.found(step)
        elif isinstance(step, Waiting):
            yield known | packing.waiting(ask, step)
        elif isinstance(step, Refining):
            yield known | packing.refining(ask, step) | ({} if step.map is None else {"lists": None})
        elif isinstance(step, Answer):
            yield known | packing.answer(ask, step)


def settings(now: Settings) -> dict[str, Any]:
    """The page's settings, for panels that follow them; a new value for every question, be it of another picture."""
    return {"id": pack.number(), "names": now.names, "options": now.options}
