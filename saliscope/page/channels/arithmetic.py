"""The arithmetic of one value: patch, kernel, products, and the operations after their sum, for a clicked cell.

`value` packs it for page/arithmetic/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute.arithmetic import engine, messages
from saliscope.compute.arithmetic.answers import ValueOf
from saliscope.page.channels import parts
from saliscope.page.components import view
from saliscope.page.events import Ask, answer_newest, on
from saliscope.page.wire import Updates


@on(parts.ARITHMETIC, "submit")
def trace(ask: Ask) -> Iterator[Updates]:
    """Show how the value of "channel" at "cell" is computed."""
    channel, cell = ask.integer("channel", -1), ask.cell() or (-1, -1)
    yield from answer_newest(
        ask, parts.ARITHMETIC, "arithmetic", lambda run: engine.trace(ask.question(), channel, cell, run), value
    )


def value(step: ValueOf) -> dict[str, Any]:
    """Pack the operations, the largest products, the patch with its kernel, and the strongest path."""
    found = step.arithmetic
    table = [messages.product(each, step) for each in found.largest]
    packed: dict[str, Any] = {
        "text": messages.title(step),
        "rows": messages.rows(step),
        "check": messages.check(step),
        "products": [*table, *([rest] if (rest := messages.others(step)) else [])],
        "path": [messages.path(part) for part in found.path],
    }
    if found.inputs is not None and found.weights is not None and found.inside is not None:
        strongest = found.largest[0].channel if found.largest else found.first_channel
        packed["patch"] = {
            "shape": list(found.inputs.shape),
            "first": found.first_channel,
            "strongest": strongest,
            "inputs": view.numbers(found.inputs),
            "weights": view.numbers(found.weights),
            "inside": view.numbers(found.inside.float()),
        }
    if found.kernels is not None:
        packed["kernels"] = {
            "shape": list(found.kernels.shape),
            "chosen": found.kernel,
            "values": view.numbers(found.kernels),
        }
    return packed
