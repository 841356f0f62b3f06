"""Changes the selected channels and shows the answer of the changed network."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope.compute.interventions import engine
from saliscope.compute.interventions.changes import parse
from saliscope.page.channels import change_view, parts
from saliscope.page.events import Ask, answer_ticket, on, stop_on
from saliscope.page.wire import Updates


@on(parts.CHANGE, "submit")
def apply(ask: Ask) -> Iterator[Updates]:
    """Answer a change as `changes.parse` describes it."""
    yield from answer_ticket(
        ask,
        parts.CHANGE,
        "change",
        lambda run: engine.intervene(ask.question(), parse(ask.data), run),
        lambda step: {"result": change_view.changed(step)},
    )


stop_on(parts.CHANGE, "change")
