"""The ranking: all supported methods in the order of their rank. A click on a row changes the settings."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope.compute.answers import Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.ranking import engine, messages
from saliscope.compute.ranking.engine import Ranking, RankingOptions
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
        options: RankingOptions | Refused = engine.parse_options(ask.data)
    except Refused as refusal:
        options = refusal
    known: view.Packed = {}
    current = Run(0.0)

    def steps(run: Run) -> Iterator[Updates]:
        nonlocal current
        current = run
        if isinstance(options, Refused):
            raise options
        for step in engine.rank(ask.question(), options, run):
            if isinstance(step, Ranking):
                yield {parts.RANKING: view.ranking(step, known)}
            elif isinstance(step, Waiting):
                yield {parts.RANKING: view.waiting(step)}

    def show_error(message: str) -> Updates:
        return {parts.RANKING: view.refused(messages.STOPPED if current.cancelled else message)}

    seconds = GRACE if isinstance(options, Refused) else options.seconds + GRACE
    yield from run_job(ask.job("ranking"), steps, show_error, seconds=seconds, unknown=messages.UNKNOWN)


stop_on(parts.RANKING, "ranking")
