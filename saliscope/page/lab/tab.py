"""The Gradient lab tab: an expression, a training run, and gradients for an image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import gradio as gr

from saliscope import limits
from saliscope.compute import model_cache
from saliscope.compute.answers import Waiting
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.runs import Run
from saliscope.compute.lab import engine as lab_engine
from saliscope.compute.lab import experiments, expressions, messages
from saliscope.compute.lab import image as lab_image
from saliscope.compute.lab import training as lab_training
from saliscope.compute.request import from_form
from saliscope.page.components import view
from saliscope.page.components.components import canvas
from saliscope.page.lab import view as lab_view
from saliscope.page.shared.tab import UNQUEUED, Tab, event_data, queue_options, run_job


class Lab(Tab):
    """Three parts in separate tabs."""

    title, id = messages.LAB, "lab"
    in_menu = True

    def build(self) -> None:
        """Create the layout of the tab."""
        with gr.Tabs(elem_id="hl-lab"):
            with gr.Tab(messages.EXPRESSION, id="expression"):
                self.expression = canvas("lab/expression", "hl-expression", **_form())
            with gr.Tab(messages.TRAINING, id="training"):
                self.training = canvas("lab/training", "hl-training", **_training_form())
            with gr.Tab(messages.IMAGE, id="image"):
                self.watcher = self.page.watch_visibility("hl-depth-seen")
                self.depth = canvas("lab/depth", "hl-depth", terms=messages.DEPTH_FORM)

    def wire(self) -> None:
        """Connect the events: forms send experiments and runs; the image part updates when its tab is shown."""
        # Merged events would carry the data of the previous event.
        shared: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "multiple"}
        self.expression.submit(self.experiment, None, self.expression, **queue_options("lab", **shared))
        self.training.submit(self.train, None, self.training, **queue_options("training", **shared))
        self.training.select(self.stop, None, None, trigger_mode="multiple", **UNQUEUED)
        self.watcher.focus(self.measure, self.page.panel.inputs, self.depth, **queue_options("model", **shared))

    def experiment(self, event: gr.EventData, request: gr.Request) -> Iterator[dict[str, Any]]:
        """Run one experiment on an expression."""

        def steps(run: Run) -> Iterator[dict[str, Any]]:
            try:
                plan = experiments.make_plan(experiments.parse_form(event_data(event)))
            except expressions.Refusal as refusal:
                yield lab_view.refusal(str(refusal), view.number(), refusal.field)
                return
            for step in model_cache.wait(run):
                yield lab_view.waiting(step.message, view.number())
            outcome = lab_engine.run(plan)
            if not run.cancelled:  # otherwise the user has started a newer experiment
                yield lab_view.outcome(outcome, view.number())

        yield from run_job(f"{request.session_hash}/expression", steps, _show_error, place="lab")

    def train(self, event: gr.EventData, request: gr.Request) -> Iterator[dict[str, Any]]:
        """Run a training and update its charts."""

        def steps(run: Run) -> Iterator[dict[str, Any]]:
            training = lab_training.parse_form(event_data(event))
            for step in model_cache.wait(run):
                yield lab_view.training_line("running", step.message, view.number())
            for curves in lab_training.train(training, run):
                yield lab_view.curves(curves, view.number())

        def show_error(message: str) -> dict[str, Any]:
            return lab_view.training_line("error", message, view.number())

        name, limit = f"{request.session_hash}/training", limits.TRAINING_SECONDS
        yield from run_job(name, steps, show_error, seconds=limit, unknown=messages.RUN_BROKEN, place="training")

    def stop(self, request: gr.Request) -> None:
        """Stop the run of this user; its own handler shows the curves so far."""
        runs.stop(f"{request.session_hash}/training")

    def measure(self, request: gr.Request, *form: Any) -> Iterator[dict[str, Any]]:
        """Show the gradient norm at every layer."""

        def steps(run: Run) -> Iterator[dict[str, Any]]:
            for step in lab_image.measure(from_form(*form), run):
                if isinstance(step, lab_image.Depth):
                    yield lab_view.depth(step, view.number())
                elif isinstance(step, Waiting):
                    yield lab_view.waiting(step.message, view.number())

        yield from run_job(f"{request.session_hash}/depth", steps, _show_error)


def _show_error(message: str) -> dict[str, Any]:
    return lab_view.refusal(message, view.number())


def _training_form() -> dict[str, Any]:
    """Return the properties of training.js."""
    presets = [
        {"id": name, "title": messages.PRESETS[name], "settings": asdict(preset)}
        for name, preset in lab_training.PRESETS.items()
    ]
    return {
        "terms": messages.TRAINING_FORM | {"text": messages.TRAINING_TEXT},
        "presets": presets,
        "tasks": messages.TASKS,
        "activations": messages.ACTIVATIONS,
        "optimizers": messages.OPTIMIZERS,
        "ranges": lab_training.RANGES,
        "whole": lab_training.WHOLE,
        "sentences": lab_training.range_messages(),
        "layers": {"line": ["line"], "cnn": list(lab_training.CONV)},
    }


def _form() -> dict[str, Any]:
    """Return the properties of expression.js."""
    gallery = [
        {
            "id": name,
            "title": messages.EXPERIMENTS[name][0],
            "says": messages.EXPERIMENTS[name][1],
            "settings": asdict(experiment),
        }
        for name, experiment in experiments.GALLERY.items()
    ]
    terms = messages.FORM | {"text": messages.EXPRESSION_TEXT}
    amounts = {hook: [*ends, messages.amount_range(hook, *ends)] for hook, ends in experiments.AMOUNTS.items()}
    shared = {"hooks": messages.HOOKS, "amounts": amounts, "again": messages.AGAIN, "longest": limits.EXPRESSION_LENGTH}
    return {"terms": terms, "gallery": gallery, **shared}
