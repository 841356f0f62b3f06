"""The gradient lab: one expression, a network in training, a picture; layout and wiring."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import gradio as gr

from ui import limits
from ui import words as page_words
from ui.engine import engine, model_cache, packing, runs
from ui.engine.messages import Refused, Waiting
from ui.lab import engine as lab_engine
from ui.lab import experiments, words
from ui.lab import packing as lab_packing
from ui.lab import picture as lab_picture
from ui.lab import training as lab_training
from ui.tabs import picture_panel
from ui.tabs.components import canvas
from ui.tabs.picture_panel import Panel

log = logging.getLogger("hooklens")


class Lab:
    """The components of the tab and their handlers."""

    def __init__(self) -> None:
        with gr.Tabs(elem_id="hl-lab"):
            with gr.Tab(words.EXPRESSION, id="expression"):
                self.expression = canvas("expression", "hl-expression", **_form())
            with gr.Tab(words.TRAINING, id="training"):
                self.training = canvas("training", "hl-training", **_training_form())
            with gr.Tab(words.PICTURE, id="picture"):
                self.seen = canvas("seen", "hl-depth-seen")
                self.depth = canvas("depth", "hl-depth", terms=words.DEPTH_FORM)

    def wire(self, panel: Panel) -> None:
        """Experiments and runs are asked for by their forms' scripts; a picture when it is seen with other settings."""
        shared: dict[str, Any] = {
            "api_visibility": "private",
            "show_progress": "hidden",
            "trigger_mode": "multiple",  # a repeated event would bring the data of the one before
        }
        queued = shared | {"concurrency_id": "lab", "concurrency_limit": limits.CONCURRENCY["lab"]}
        self.expression.submit(self.experiment, None, self.expression, **queued)
        queued = shared | {"concurrency_id": "training", "concurrency_limit": limits.CONCURRENCY["training"]}
        self.training.submit(self.trained, None, self.training, **queued)
        self.training.select(self.stopped, None, None, queue=False, **shared)
        queued = shared | {"concurrency_id": "model", "concurrency_limit": limits.CONCURRENCY["model"]}
        self.seen.focus(self.measured, panel.inputs, self.depth, **queued)

    def experiment(self, event: gr.EventData, request: gr.Request) -> Iterator[dict[str, Any]]:
        """One experiment on an expression."""
        with runs.begin(f"{request.session_hash}/expression") as run:
            try:
                plan = experiments.planned(experiments.received(getattr(event, "_data", None)))
                for step in model_cache.wait(run):
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

    def trained(self, event: gr.EventData, request: gr.Request) -> Iterator[dict[str, Any]]:
        """A run, its charts as it goes."""
        with runs.begin(f"{request.session_hash}/training", limits.TRAINING_SECONDS) as run:
            try:
                training = lab_training.received(getattr(event, "_data", None))
                for step in model_cache.wait(run):
                    yield lab_packing.training_line("running", step.sentence, packing.number())
                with engine.sentences():
                    going = lab_training.train(training, run)
                    try:
                        while True:
                            yield lab_packing.curves(next(going), packing.number())
                    except StopIteration as end:
                        yield lab_packing.curves(end.value, packing.number())
            except Refused as refusal:
                yield lab_packing.training_line("error", str(refusal), packing.number())
            except Exception:
                log.exception("a training run failed")
                yield lab_packing.training_line("error", words.RUN_BROKEN, packing.number())

    def stopped(self, request: gr.Request) -> None:
        """End the visitor's run; its own generator shows what there is."""
        runs.stop(f"{request.session_hash}/training")

    def measured(self, request: gr.Request, *settings: Any) -> Iterator[dict[str, Any]]:
        """The gradient at every layer."""
        with runs.begin(f"{request.session_hash}/depth") as run:
            try:
                for step in lab_picture.measure(picture_panel.asked(*settings), run):
                    if isinstance(step, lab_picture.Depth):
                        yield lab_packing.depth(step, packing.number())
                    elif isinstance(step, Waiting):
                        yield lab_packing.waiting(step.sentence, packing.number())
            except Refused as refusal:
                yield lab_packing.refusal(str(refusal), packing.number())
            except Exception:
                log.exception("the gradient at every layer failed")
                yield lab_packing.refusal(page_words.UNKNOWN, packing.number())


def left(session: str | None) -> None:
    """The visitor has gone."""
    for part in ("expression", "training", "depth"):
        runs.stop(f"{session}/{part}")


def _training_form() -> dict[str, Any]:
    """What the training form's script needs to know."""
    presets = [
        {"id": name, "title": words.PRESETS[name], "settings": asdict(each)}
        for name, each in lab_training.PRESETS.items()
    ]
    return {
        "terms": words.TRAINING_FORM | {"text": words.TRAINING_TEXT},
        "presets": presets,
        "tasks": words.TASKS,
        "activations": words.ACTIVATIONS,
        "optimisers": words.OPTIMISERS,
        "ranges": lab_training.RANGES,
        "layers": {"line": ["line"], "cnn": list(lab_training.CONV)},
    }


def _form() -> dict[str, Any]:
    """What the form's script needs to know: words, gallery, hooks."""
    gallery = [
        {"id": name, "title": words.EXPERIMENTS[name][0], "says": words.EXPERIMENTS[name][1], "settings": asdict(each)}
        for name, each in experiments.GALLERY.items()
    ]
    terms = words.FORM | {"text": words.EXPRESSION_TEXT}
    shared = {"hooks": words.HOOKS, "again": words.AGAIN, "longest": limits.EXPRESSION_LENGTH}
    return {"terms": terms, "gallery": gallery, **shared}
