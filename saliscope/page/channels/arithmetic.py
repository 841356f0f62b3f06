"""The arithmetic of one value: patch, kernel, products, and the operations after their sum, for a clicked cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute.arithmetic import engine
from saliscope.compute.arithmetic.answers import ValueOf
from saliscope.compute.jobs.runs import Run
from saliscope.page.channels import arithmetic_view, parts
from saliscope.page.events import Ask, on, run_job
from saliscope.page.wire import Updates


@on(parts.ARITHMETIC, "submit")
def trace(ask: Ask) -> Iterator[Updates]:
    """Show how the value of "channel" at "cell" is computed."""
    number, cell = ask.integer("channel", -1), ask.cell() or (-1, -1)

    def pack(**fields: Any) -> Updates:
        return {parts.ARITHMETIC: {"channel": number, "cell": cell, **fields}}

    def steps(run: Run) -> Iterator[Updates]:
        for step in engine.trace(ask.question(), number, cell, run):
            if isinstance(step, ValueOf):
                yield pack(**arithmetic_view.value(step))

    yield from run_job(ask.job("arithmetic"), steps, lambda message: pack(refused=message))
