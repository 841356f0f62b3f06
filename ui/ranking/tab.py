"""The ranking's own tab; the same table stands below the panels of the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from ui import limits
from ui.engine import packing as pack
from ui.engine import runs
from ui.engine.messages import Refused, Settings, Waiting
from ui.engine.request import from_form
from ui.engine.runs import Run
from ui.ranking import engine as ranking_engine
from ui.ranking import packing, words
from ui.ranking.engine import Ranking as Ranked
from ui.ranking.engine import Wish
from ui.tabs.components import Canvas, canvas
from ui.tabs.tab import AT_ONCE, Page, Tab, Updates, event_data, job, queued

AFTER = 5.0
"""Seconds in which the last map may end behind the time that was asked for."""


def table(page: Page, elem_id: str) -> Canvas:
    """A table; all of them show the same ranking, and a click on a row changes the page's settings."""
    low, high = limits.RANKING
    form = {"low": low, "high": high, "seconds": ranking_engine.SECONDS}
    found = canvas("ranking/ranking", elem_id, terms=words.TERMS, form=form)
    page.tables.append(found)
    page.changing.append(found)
    page.resolved[canvas("ranking/now", f"{elem_id}-now")] = _now
    return found


def _now(settings: Settings) -> dict[str, Any]:
    """What the page explains, by which the script sees that a table is of something else."""
    return {"id": pack.number(), "subject": settings.subject, **settings.names}


class Ranking(Tab):
    """All methods that fit, in order, as they arrive."""

    title, id = words.RANKING, "ranking"

    def build(self) -> None:
        """Lay the tab out."""
        self.table = table(self.page, "hl-ranking")

    def wire(self) -> None:
        """A ranking takes its turn with all that visitors ask; its Stop does not."""
        tables = self.page.tables
        asked = queued("model", show_progress="hidden", trigger_mode="multiple")
        gr.on([each.submit for each in tables], self.rank, self.page.panel.inputs, tables, **asked)
        gr.on([each.stop for each in tables], self.stopped, None, None, trigger_mode="multiple", **AT_ONCE)

    def rank(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """The table, row by row; a visitor's new ranking replaces their former one."""
        wish = _wish(event_data(event))
        known: packing.Packed = {}
        began = Run(0.0)

        def steps(run: Run) -> Iterator[Updates]:
            nonlocal began
            began = run
            if isinstance(wish, Refused):
                raise wish
            for step in ranking_engine.rank(from_form(*form), wish, run):
                if isinstance(step, Ranked):
                    yield self._all(packing.ranking(step, known))
                elif isinstance(step, Waiting):
                    yield self._all(packing.waiting(step))

        def refused(sentence: str) -> Updates:
            return self._all(packing.refused(words.STOPPED if began.cancelled else sentence))

        seconds = AFTER if isinstance(wish, Refused) else wish.seconds + AFTER
        yield from job(_name(request), steps, refused, seconds=seconds, unknown=words.UNKNOWN)

    def stopped(self, request: gr.Request) -> None:
        """End the visitor's ranking; its own handler shows the table so far."""
        runs.stop(_name(request))

    def _all(self, value: dict[str, Any]) -> Updates:
        return dict.fromkeys(self.page.tables, value)


def _name(request: gr.Request) -> str:
    return f"{request.session_hash}/ranking"


def _wish(data: dict[str, Any]) -> Wish | Refused:
    try:
        return ranking_engine.received(data)
    except Refused as refusal:
        return refusal
