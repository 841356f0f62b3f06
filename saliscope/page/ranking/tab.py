"""The Ranking tab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from saliscope import limits
from saliscope.compute.answers import Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.ranking import engine as ranking_engine
from saliscope.compute.ranking import messages
from saliscope.compute.ranking.engine import Ranking as Ranked
from saliscope.compute.ranking.engine import RankingOptions
from saliscope.compute.request import from_form
from saliscope.errors import Refused
from saliscope.page.components.components import canvas
from saliscope.page.ranking import view
from saliscope.page.shared.tab import UNQUEUED, Tab, Updates, event_data, queue_options, run_job

GRACE = 5.0
"""Additional seconds to finish the last map after the time limit."""


class Ranking(Tab):
    """All supported methods in the order of their rank, as the second part of the comparison."""

    title, id = messages.RANKING, "ranking"
    within = "compare"

    def build(self) -> None:
        """Create the layout of the tab; a click on a row changes the settings."""
        low, high = limits.RANKING
        form = {"low": low, "high": high, "seconds": ranking_engine.SECONDS}
        self.table = canvas("ranking/ranking", "hl-ranking", terms=messages.TERMS, form=form)
        self.page.changers.append(self.table)

    def wire(self) -> None:
        """Connect the events; a ranking waits in the queue, but Stop does not."""
        shared = queue_options("model", show_progress="hidden", trigger_mode="multiple")
        self.table.submit(self.rank, self.page.panel.inputs, self.table, **shared)
        self.table.stop(self.stop_job, None, None, trigger_mode="multiple", **UNQUEUED)

    def rank(self, event: gr.EventData, request: gr.Request, *form: Any) -> Iterator[Updates]:
        """Show the table row by row; a new ranking replaces the previous one of the same user."""
        options = _options(event_data(event))
        known: view.Packed = {}
        current = Run(0.0)

        def steps(run: Run) -> Iterator[Updates]:
            nonlocal current
            current = run
            if isinstance(options, Refused):
                raise options
            for step in ranking_engine.rank(from_form(*form), options, run):
                if isinstance(step, Ranked):
                    yield self._all(view.ranking(step, known))
                elif isinstance(step, Waiting):
                    yield self._all(view.waiting(step))

        def show_error(message: str) -> Updates:
            return self._all(view.refused(messages.STOPPED if current.cancelled else message))

        seconds = GRACE if isinstance(options, Refused) else options.seconds + GRACE
        yield from run_job(self.job_name(request), steps, show_error, seconds=seconds, unknown=messages.UNKNOWN)

    def _all(self, value: dict[str, Any]) -> Updates:
        return {self.table: value}


def _options(data: dict[str, Any]) -> RankingOptions | Refused:
    try:
        return ranking_engine.parse_options(data)
    except Refused as refusal:
        return refusal
