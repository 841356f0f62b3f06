"""The gradient lab: an expression, a training run, and gradients for an image."""

from __future__ import annotations

from collections.abc import Iterator

from saliscope import limits
from saliscope.compute import model_cache
from saliscope.compute.jobs.runs import Run
from saliscope.compute.lab import engine as lab_engine
from saliscope.compute.lab import experiments, expressions, messages, presets
from saliscope.compute.lab import image as lab_image
from saliscope.compute.lab import training as lab_training
from saliscope.page.events import Ask, Show, busy, failed, on, run_job, shown, stop_on
from saliscope.page.lab import parts
from saliscope.page.lab import view as lab_view
from saliscope.page.wire import Updates


@on(parts.EXPRESSION, "submit")
def experiment(ask: Ask) -> Iterator[Updates]:
    """Run one experiment on an expression."""

    def steps(run: Run) -> Iterator[Updates]:
        try:
            plan = experiments.make_plan(experiments.parse_form(ask.data))
        except expressions.Refusal as refusal:
            yield {parts.EXPRESSION: lab_view.refusal(str(refusal), refusal.field)}
            return
        for step in model_cache.wait(run):
            yield {parts.EXPRESSION: {"waiting": step.message}}
        outcome = lab_engine.run(plan)
        if not run.cancelled:  # otherwise the visitor has started a newer experiment
            yield {parts.EXPRESSION: lab_view.outcome(outcome)}

    def show_error(message: str) -> Updates:
        return {parts.EXPRESSION: lab_view.refusal(message)}

    yield from run_job(ask.job("expression"), steps, show_error, place="lab")


@on(parts.TRAINING, "submit")
def train(ask: Ask) -> Iterator[Updates]:
    """Run a training and update its charts."""

    def steps(run: Run) -> Iterator[Updates]:
        training = presets.parse_form(ask.data)
        for step in model_cache.wait(run):
            yield {parts.TRAINING: {"state": "running", "line": step.message}}
        for curves in lab_training.train(training, run):
            yield {parts.TRAINING: lab_view.curves(curves)}

    def show_error(message: str) -> Updates:
        return {parts.TRAINING: {"state": "error", "line": message}}

    limit: float = limits.TRAINING_SECONDS
    yield from run_job(
        ask.job("training"), steps, show_error, seconds=limit, unknown=messages.RUN_BROKEN, place="training"
    )


stop_on(parts.TRAINING, "training")


@on(parts.DEPTH, "answered")
def measure(ask: Ask) -> Iterator[Updates]:
    """Show the gradient norm at every layer."""

    def steps(run: Run) -> Iterator[Updates]:
        show: Show = {lab_image.Depth: lambda step: {parts.DEPTH: lab_view.depth(step)}, **busy(parts.DEPTH)}
        return shown(lab_image.measure(ask.question(), run), show)

    yield from run_job(ask.job("depth"), steps, failed(parts.DEPTH))
