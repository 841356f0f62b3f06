"""The comparison of the model of the page with a second one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute import model_cache
from saliscope.compute.jobs.runs import Run
from saliscope.compute.models import engine
from saliscope.compute.request import LONGEST
from saliscope.page.events import Ask, answer_number, on, stop_on
from saliscope.page.models import parts, view
from saliscope.page.panel import settings
from saliscope.page.wire import Updates


@on(parts.MODELS, "listed")
def list_names(ask: Ask) -> Iterator[Updates]:
    """Return the models of the page as items of a list."""
    for _ in model_cache.wait():
        pass
    yield {"models": settings.models(model_cache.list_models())}


@on(parts.MODELS, "submit")
def compare(ask: Ask) -> Iterator[Updates]:
    """Compare two models on the image of the page and the examples; a new comparison replaces the previous one."""
    other, with_examples = ask.text("other", LONGEST + 1), ask.data.get("examples") is not False
    name = other if len(other) <= LONGEST else ""

    def work(run: Run) -> Iterator[Any]:
        return engine.compare(ask.question(), name, run, with_examples=with_examples)

    yield from answer_number(ask, parts.MODELS, "models", work, view.compared)


stop_on(parts.MODELS, "models")
