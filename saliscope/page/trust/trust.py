"""The checks of a map, which run after it is shown: "focus" starts the check, and "submit" the randomization test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import Request
from saliscope.compute.trust import engine, messages
from saliscope.compute.trust.answers import CheckedMap, CheckProgress, Weights
from saliscope.page.events import Ask, on, run_job, stop_on
from saliscope.page.trust import parts, view
from saliscope.page.wire import Updates

JOB = "trust"
"""Name of these jobs among the jobs of a visitor."""


def interrupt(session: str) -> Updates:
    """Stop the check or the test of a visitor who asks a new question, because both would take twice as long.

    Returns  what to show if the new question fails
    """
    run = runs.supersede(f"{session}/{JOB}")
    return {parts.TRUST: view.failed(next(iter(run.questions), ""), messages.STOPPED)} if run else {}


@on(parts.TRUST, "focus")
def check(ask: Ask) -> Iterator[Updates]:
    """Check the current map."""
    yield from _job(engine.check, ask)


@on(parts.TRUST, "submit")
def randomize(ask: Ask) -> Iterator[Updates]:
    """Run the randomization test."""
    yield from _job(engine.randomize_weights, ask)


stop_on(parts.TRUST, JOB)


def _job(work: Callable[[Request, Run, str], Iterator[Any]], ask: Ask) -> Iterator[Updates]:
    key = ask.text("key")

    def steps(run: Run) -> Iterator[Updates]:
        step = None
        for step in work(ask.question(), run, key):
            if isinstance(step, CheckProgress):
                yield {parts.TRUST: view.progress(step)}
            elif isinstance(step, CheckedMap):
                yield {parts.TRUST: view.verdict(step)}
            elif isinstance(step, Weights):
                yield {parts.TRUST: view.weights(step)}
        if not isinstance(step, (CheckedMap, Weights)):
            yield show_error(messages.CHANGED)

    def show_error(message: str) -> Updates:
        return {parts.TRUST: view.failed(key, message)}

    yield from run_job(ask.job(JOB), steps, show_error, question=key, again=True, unknown=messages.UNKNOWN)
