"""The ranking: all supported methods in the order of their rank. A click on a row changes the settings."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope.compute.jobs.runs import Run
from saliscope.compute.ranking import engine, messages
from saliscope.compute.ranking.engine import Ranking
from saliscope.errors import Refused
from saliscope.page.events import Ask, Show, busy, failed, on, run_job, shown, stop_on
from saliscope.page.ranking import parts, view
from saliscope.page.wire import Updates

GRACE = 5.0
"""Additional seconds to finish the last map after the time limit."""


@on(parts.RANKING, "submit")
def rank(ask: Ask) -> Iterator[Updates]:
    """Show the table row by row; a new ranking replaces the previous one of the same visitor."""
    show_error = failed(parts.RANKING)
    try:
        options = engine.parse_options(ask.data)
    except Refused as refusal:
        yield show_error(str(refusal))
        return
    known: view.Packed = {}

    def steps(run: Run) -> Iterator[Updates]:
        show: Show = {Ranking: lambda step: {parts.RANKING: view.ranking(step, known)}, **busy(parts.RANKING)}
        return shown(engine.rank(ask.question(), options, run), show)

    seconds, unknown, stopped = options.seconds + GRACE, messages.UNKNOWN, messages.STOPPED
    yield from run_job(ask.job("ranking"), steps, show_error, seconds=seconds, unknown=unknown, stopped=stopped)


stop_on(parts.RANKING, "ranking")
