"""The gradient lab: one expression, a network in training, a picture; layout and wiring."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import gradio as gr

from ui import engine, experiments, lab_engine, lab_packing, limits, packing, runs, shelf
from ui import lab_words as words
from ui import words as page_words
from ui.parts import canvas
from ui.steps import Refused

log = logging.getLogger("hooklens")


class Lab:
    """The components of the tab and their handlers."""

    def __init__(self) -> None:
        with gr.Tabs(elem_id="hl-lab"), gr.Tab(words.EXPRESSION, id="expression"):
            self.expression = canvas("expression", "hl-expression", **_form())

    def wire(self) -> None:
        """An experiment is asked for by the form's script, which sends it with the event."""
        self.expression.submit(
            self.experiment,
            None,
            self.expression,
            concurrency_id="lab",
            concurrency_limit=limits.CONCURRENCY["lab"],
            api_visibility="private",
            show_progress="hidden",
            trigger_mode="multiple",  # a repeated event would bring the data of the one before
        )

    def experiment(self, event: gr.EventData, request: gr.Request) -> Iterator[dict[str, Any]]:
        """One experiment on an expression."""
        with runs.begin(f"{request.session_hash}/expression") as run:
            try:
                plan = experiments.planned(experiments.received(getattr(event, "_data", None)))
                for step in shelf.wait(run):
                    yield lab_packing.waiting(step.sentence, packing.number())
                with engine.sentences():
                    found = lab_engine.run(plan)
                if not run.asked:  # else a newer experiment of this visitor is on its way
                    yield lab_packing.outcome(found, packing.number())
            except (experiments.Refusal, Refused) as refusal:
                yield lab_packing.refusal(str(refusal), packing.number())
            except Exception:
                log.exception("an experiment failed")
                yield lab_packing.refusal(page_words.UNKNOWN, packing.number())


def _form() -> dict[str, Any]:
    """What the form's script needs to know: words, gallery, hooks."""
    gallery = [
        {"id": name, "title": words.EXPERIMENTS[name][0], "says": words.EXPERIMENTS[name][1], "settings": asdict(each)}
        for name, each in experiments.GALLERY.items()
    ]
    terms = words.FORM | {"text": words.EXPRESSION_TEXT}
    shared = {"hooks": words.HOOKS, "again": words.AGAIN, "longest": limits.EXPRESSION_LENGTH}
    return {"terms": terms, "gallery": gallery, **shared}
