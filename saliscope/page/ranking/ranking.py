"""The ranking: all supported methods in the order of their rank. A click on a row changes the settings."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope.compute.answers import Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.messages import status
from saliscope.compute.ranking import engine, messages
from saliscope.compute.ranking.engine import Ranking
from saliscope.errors import Refused
from saliscope.page.events import Ask, on, run_job, stop_on
from saliscope.page.ranking import parts, view
from saliscope.page.wire import Updates

GRACE = 5.0
"""Additional seconds to finish the last map after the time limit."""


@on(parts.RANKING, "submit")
def rank(ask: Ask) -> Iterator[Updates]:
    """Show the table row by row; a new ranking replaces the previous one of the same visitor."""
    try:
        options = engine.parse_options(ask.data)
    except Refused as refusal:
        yield {parts.RANKING: status("error", str(refusal))}
        return
    known: view.Packed = {}

    def steps(run: Run) -> Iterator[Updates]:
        for step in engine.rank(ask.question(), options, run):
            if isinstance(step, Ranking):
                yield {parts.RANKING: view.ranking(step, known)}
            elif isinstance(step, Waiting):
                yield {parts.RANKING: status("busy", step.message, fraction=step.fraction)}

    def show_error(message: str) -> Updates:
        return {parts.RANKING: status("error", message)}

    seconds, unknown, stopped = options.seconds + GRACE, messages.UNKNOWN, messages.STOPPED
    yield from run_job(ask.job("ranking"), steps, show_error, seconds=seconds, unknown=unknown, stopped=stopped)


stop_on(parts.RANKING, "ranking")
