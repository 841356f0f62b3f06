"""The network diagram: its drawing, the gradient norms of its layers, and their sizes and costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute import engine
from saliscope.compute.jobs.runs import Run
from saliscope.compute.rail import description, messages, network, norms
from saliscope.compute.request import LONGEST
from saliscope.page.events import Ask, Show, on, run_job, shown
from saliscope.page.rail import parts
from saliscope.page.wire import Updates


@on(parts.RAIL, "measure")
def measure(ask: Ask) -> Iterator[Updates]:
    """Compute the norms for the settings of the page."""

    def steps(run: Run) -> Iterator[Updates]:
        return shown(norms.measure(ask.question(), run), {norms.Norms: lambda step: {"gradients": pack_norms(step)}})

    yield from run_job(ask.job("rail"), steps, lambda message: {"gradients": {"failed": message}})


@on(parts.RAIL, "describe")
def describe(ask: Ask) -> Iterator[Updates]:
    """Measure the sizes and costs of all layers of the current network."""

    def steps(run: Run) -> Iterator[Updates]:
        show: Show = {description.Described: lambda step: {"description": pack_description(step)}}
        return shown(description.describe(ask.question(), run), show)

    def show_error(message: str) -> Updates:
        return {"description": {"model": ask.text("model", LONGEST), "failed": message}}

    yield from run_job(ask.job("describe"), steps, show_error)


def pack_norms(step: norms.Norms) -> dict[str, Any]:
    """Pack the norms in the layer order of the drawing; None for layers without a finite norm."""
    layers = network.drawing(step.settings.loaded)["layers"]
    values = engine.plain([step.norms.get(name) for name, *_ in layers], 4)
    return {"key": step.key, "model": step.settings.loaded.name, "name": step.name, "norms": values}


def pack_description(step: description.Described) -> dict[str, Any]:
    """Pack the table of the layers, its totals in words, and the same as CSV."""
    found = step.description
    rows = [
        [
            layer.name,
            layer.kind,
            " × ".join(map(str, layer.shape[1:] or layer.shape)),
            f"{layer.parameters:,}",
            f"{layer.multiply_adds:,}",
            f"{layer.output_bytes / 1e6:,.3f}",
            f"{layer.seconds * 1e3:.2f}",
            "" if layer.receptive_field is None else " × ".join(map(str, layer.receptive_field)),
            layer.is_leaf,
        ]
        for layer in found.layers
    ]
    return {"model": step.loaded.name, "rows": rows, "totals": messages.totals(found), "csv": found.to_csv()}
