"""The small maps of the most likely classes, next to the predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute.jobs.runs import Run
from saliscope.compute.maps import top
from saliscope.compute.maps.top import TopMaps
from saliscope.page.components import view
from saliscope.page.events import Ask, on, run_job
from saliscope.page.maps import parts
from saliscope.page.wire import Updates, new_number


@on(parts.BARS, "answered")
def show(ask: Ask) -> Iterator[Updates]:
    """Show the small maps of the classes that the script lists, after each answer."""
    classes = ask.data.get("classes")

    def steps(run: Run) -> Iterator[Updates]:
        if not isinstance(classes, list) or not classes:
            return
        listed = [index if isinstance(index, int) else -1 for index in classes]
        for step in top.explain(ask.question(), run, ask.text("key"), ask.text("method"), listed):
            if isinstance(step, TopMaps):
                yield {"smallMaps": top_maps(step, ask.integer("id", 0), new_number())}

    yield from run_job(ask.job("top"), steps, lambda _: {"smallMaps": {"id": new_number()}})


def top_maps(step: TopMaps, of: int, ident: int) -> dict[str, Any]:
    """Pack the maps of classes; `of` is the number of the answer with the list of classes."""
    items = [
        {"index": index, "map": view.small_map(values, step.method.by_size)} for index, values in step.maps.items()
    ]
    return {"id": ident, "of": of, "crop": view.jpeg(step.crop, 128), "items": items}
