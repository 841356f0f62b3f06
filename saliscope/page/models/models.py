"""The comparison of the model of the page with a second one."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope.compute import model_cache
from saliscope.compute.answers import Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.models import engine
from saliscope.compute.request import LONGEST
from saliscope.page.events import Ask, on, run_job, stop_on
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
    number, other = ask.integer("number", 0), ask.text("other", LONGEST + 1)
    name = other if len(other) <= LONGEST else ""

    def steps(run: Run) -> Iterator[Updates]:
        with_examples = ask.data.get("examples") is not False
        for step in engine.compare(ask.question(), name, run, with_examples=with_examples):
            shown = view.waiting(number, step) if isinstance(step, Waiting) else view.compared(number, step)
            yield {parts.MODELS: shown}

    def show_error(message: str) -> Updates:
        return {parts.MODELS: view.refused(number, message)}

    yield from run_job(ask.job("models"), steps, show_error, question=str(number), number=number)


stop_on(parts.MODELS, "models")
