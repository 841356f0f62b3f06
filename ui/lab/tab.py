"""The gradient lab: one expression, a network in training, a picture; layout and wiring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import gradio as gr

from ui import limits
from ui.engine import model_cache, packing, runs
from ui.engine.messages import Waiting
from ui.engine.request import from_form
from ui.engine.runs import Run
from ui.lab import engine as lab_engine
from ui.lab import experiments, expressions, words
from ui.lab import packing as lab_packing
from ui.lab import picture as lab_picture
from ui.lab import training as lab_training
from ui.tabs.components import canvas
from ui.tabs.tab import AT_ONCE, Tab, event_data, job, queued


class Lab(Tab):
    """Three parts, each a tab of its own."""

    title, id = words.LAB, "lab"

    def build(self) -> None:
        """Lay the tab out."""
        with gr.Tabs(elem_id="hl-lab"):
            with gr.Tab(words.EXPRESSION, id="expression"):
                self.expression = canvas("lab/expression", "hl-expression", **_form())
            with gr.Tab(words.TRAINING, id="training"):
                self.training = canvas("lab/training", "hl-training", **_training_form())
            with gr.Tab(words.PICTURE, id="picture"):
                self.seen = self.page.seen_in_tab("hl-depth-seen")
                self.depth = canvas("lab/depth", "hl-depth", terms=words.DEPTH_FORM)

    def wire(self) -> None:
        """Experiments and runs are asked for by their forms' scripts; a picture when it is seen with other settings."""
        # A repeated event would bring the data of the one before, so events are not merged.
        shared: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "multiple"}
        self.expression.submit(self.experiment, None, self.expression, **queued("lab", **shared))
        self.training.submit(self.trained, None, self.training, **queued("training", **shared))
        self.training.select(self.stopped, None, None, trigger_mode="multiple", **AT_ONCE)
        self.seen.focus(self.measured, self.page.panel.inputs, self.depth, **queued("model", **shared))

    def experiment(self, event: gr.EventData, request: gr.Request) -> Iterator[dict[str, Any]]:
        """One experiment on an expression."""

        def steps(run: Run) -> Iterator[dict[str, Any]]:
            try:
                plan = experiments.planned(experiments.received(event_data(event)))
            except expressions.Refusal as refusal:
                yield lab_packing.refusal(str(refusal), packing.number(), refusal.field)
                return
            for step in model_cache.wait(run):
                yield lab_packing.waiting(step.sentence, packing.number())
            outcome = lab_engine.run(plan)
            if not run.cancelled:  # else a newer experiment of this visitor is under way
                yield lab_packing.outcome(outcome, packing.number())

        yield from job(f"{request.session_hash}/expression", steps, _refused)

    def trained(self, event: gr.EventData, request: gr.Request) -> Iterator[dict[str, Any]]:
        """A run, its charts as it goes."""

        def steps(run: Run) -> Iterator[dict[str, Any]]:
            training = lab_training.received(event_data(event))
            for step in model_cache.wait(run):
                yield lab_packing.training_line("running", step.sentence, packing.number())
            for curves in lab_training.train(training, run):
                yield lab_packing.curves(curves, packing.number())

        def refused(sentence: str) -> dict[str, Any]:
            return lab_packing.training_line("error", sentence, packing.number())

        name, limit = f"{request.session_hash}/training", limits.TRAINING_SECONDS
        yield from job(name, steps, refused, seconds=limit, unknown=words.RUN_BROKEN)

    def stopped(self, request: gr.Request) -> None:
        """End the visitor's run; its own handler shows the curves so far."""
        runs.stop(f"{request.session_hash}/training")

    def measured(self, request: gr.Request, *form: Any) -> Iterator[dict[str, Any]]:
        """The gradient at every layer."""

        def steps(run: Run) -> Iterator[dict[str, Any]]:
            for step in lab_picture.measure(from_form(*form), run):
                if isinstance(step, lab_picture.Depth):
                    yield lab_packing.depth(step, packing.number())
                elif isinstance(step, Waiting):
                    yield lab_packing.waiting(step.sentence, packing.number())

        yield from job(f"{request.session_hash}/depth", steps, _refused)


def _refused(sentence: str) -> dict[str, Any]:
    return lab_packing.refusal(sentence, packing.number())


def _training_form() -> dict[str, Any]:
    """The properties of training.js."""
    presets = [
        {"id": name, "title": words.PRESETS[name], "settings": asdict(preset)}
        for name, preset in lab_training.PRESETS.items()
    ]
    return {
        "terms": words.TRAINING_FORM | {"text": words.TRAINING_TEXT},
        "presets": presets,
        "tasks": words.TASKS,
        "activations": words.ACTIVATIONS,
        "optimisers": words.OPTIMISERS,
        "ranges": lab_training.RANGES,
        "whole": lab_training.WHOLE,
        "sentences": lab_training.sentences(),
        "layers": {"line": ["line"], "cnn": list(lab_training.CONV)},
    }


def _form() -> dict[str, Any]:
    """The properties of expression.js."""
    gallery = [
        {
            "id": name,
            "title": words.EXPERIMENTS[name][0],
            "says": words.EXPERIMENTS[name][1],
            "settings": asdict(experiment),
        }
        for name, experiment in experiments.GALLERY.items()
    ]
    terms = words.FORM | {"text": words.EXPRESSION_TEXT}
    amounts = {hook: [*ends, words.amount_range(hook, *ends)] for hook, ends in experiments.AMOUNTS.items()}
    shared = {"hooks": words.HOOKS, "amounts": amounts, "again": words.AGAIN, "longest": limits.EXPRESSION_LENGTH}
    return {"terms": terms, "gallery": gallery, **shared}
