"""Train a small network with gradient hooks and record its gradients."""

from __future__ import annotations

import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import explainers
from saliscope import limits
from saliscope.compute import engine
from saliscope.compute.jobs.runs import Run
from saliscope.compute.lab.presets import Training

WIDTH, POINTS, SHAPES, SIDE, BATCH, BINS = 16, 128, 384, 16, 64, 24


@dataclass(frozen=True)
class Curves:
    """The state of a run. Lists have one entry per recorded step and may contain NaN."""

    training: Training
    step: int
    seconds: float
    at: list[int]
    loss: list[float]
    norms: dict[str, list[float]]
    updates: dict[str, list[float]]
    histograms: dict[str, list[tuple[tuple[int, ...], float, float]]]
    findings: list[explainers.Finding]
    end: str = ""
    """Why it ended: "done", "stopped", "time", or "broken" (the loss is not finite); empty while running."""


def train(training: Training, run: Run) -> Iterator[Curves]:
    """Train the network; yield the state a few times per second, and the final state."""

    def work(report: Callable[[Any], bool]) -> Curves:
        return _Trainer(training, run).train(report)

    yield (yield from engine.stream(work, run))  # hooks only apply to passes in the same thread


class _Trainer:
    """One run: network, data, optimizer and log."""

    def __init__(self, training: Training, run: Run) -> None:
        self.training, self.run = training, run
        self.generator = torch.Generator().manual_seed(0)
        self.network = _network(training, self.generator)
        self.batches = _data(training, self.generator)
        kind = torch.optim.SGD if training.optimizer == "sgd" else torch.optim.Adam
        self.optimizer = kind(self.network.parameters(), lr=training.rate)
        self.step, self.start, self.shown, self.pause = 0, time.monotonic(), 0.0, 1 / limits.TRAINING_UPDATES

    def train(self, report: Callable[[Any], bool]) -> Curves:
        end = "done"
        with torch.enable_grad(), ExitStack() as stack:
            self._enter_hooks(stack)
            self.log = stack.enter_context(
                explainers.record_gradients(self.network, histograms=BINS, every=self.training.every)
            )
            while self.step < self.training.steps:
                if self.run.stopped():
                    end = "stopped" if self.run.cancelled else "time"
                    break
                if not math.isfinite(self._optimize()):
                    end = "broken"
                    break
                if time.monotonic() - self.shown > self.pause:
                    report(self._curves())
                    self.shown = time.monotonic()
        return self._curves(end)

    def _enter_hooks(self, stack: ExitStack) -> None:
        """Enter the hooks in the order of the form; gradients are recorded after the hooks.

        Noise comes before scaling and freezing, so a frozen layer has no noise.
        """
        training, network = self.training, self.network
        if training.clip_value is not None:
            stack.enter_context(explainers.clip_gradients(network, value=training.clip_value))
        if training.clip_norm is not None:
            stack.enter_context(explainers.clip_gradients(network, norm=training.clip_norm))
        if training.noise:
            stack.enter_context(explainers.add_gradient_noise(network, std=training.noise))
        if training.scale:
            stack.enter_context(explainers.scale_gradients(network, {f"{training.scale}.*": training.factor}))
        if training.freeze:
            stack.enter_context(explainers.freeze(network, f"{training.freeze}.*"))

    def _optimize(self) -> float:
        """Run one step of the optimizer and return its loss."""
        inputs, labels = next(self.batches)
        self.optimizer.zero_grad()
        loss = _loss(self.training, self.network(inputs), labels)
        loss.backward()
        value = loss.item()
        if self.step % self.training.every == 0:
            before = {name: p.detach().clone() for name, p in self.network.named_parameters()}
            self.optimizer.step()
            self.log.note(self.step, loss=value, updates=_ratios(self.training, self.network, before))
        else:
            self.optimizer.step()
        self.log.step()
        self.step += 1
        return value

    def _curves(self, end: str = "") -> Curves:
        rows, notes = self.log.rows, dict(self.log.notes)
        layers = self.training.layers
        at = sorted(notes)
        squares = {layer: dict.fromkeys(at, 0.0) for layer in layers}
        bins: dict[str, dict[int, Any]] = {layer: {} for layer in layers}
        for row in rows:
            layer, _, kind = row.name.rpartition(".")
            if row.step not in notes:
                continue
            squares[layer][row.step] += row.statistics["norm"] ** 2
            if kind == "weight" and row.histogram and row.edges:
                bins[layer][row.step] = (row.histogram, row.edges[0], row.edges[-1])
        empty = ((0,) * BINS, 0.0, 0.0)
        return Curves(
            self.training,
            self.step,
            time.monotonic() - self.start,
            at,
            [notes[step]["loss"] for step in at],
            {layer: [math.sqrt(by_step[step]) for step in at] for layer, by_step in squares.items()},
            {layer: [notes[step]["updates"][layer] for step in at] for layer in layers},
            {layer: [by_step.get(step, empty) for step in at] for layer, by_step in bins.items()},
            explainers.diagnose_training(self.log),
            end,
        )


def _ratios(training: Training, network: nn.Module, before: dict[str, Tensor]) -> dict[str, float]:
    """Return the norm of the update divided by the norm of the previous parameters, by layer."""
    ratios = {}
    parameters = dict(network.named_parameters())
    for layer in training.layers:
        names = [name for name in before if name.startswith(f"{layer}.")]
        moved = sum(float((parameters[name].detach() - before[name]).square().sum()) for name in names)
        size = sum(float(before[name].square().sum()) for name in names)
        ratios[layer] = math.sqrt(moved / size) if size else math.nan
    return ratios


def _loss(training: Training, output: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(output, labels) if training.task == "line" else F.cross_entropy(output, labels)


def _network(training: Training, generator: torch.Generator) -> nn.Module:
    """Return the network of the task with weights sampled from `generator`, so that runs are reproducible."""
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}[training.activation]
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    if training.task == "line":
        parts["line"] = nn.Linear(1, 1)
    elif training.task == "mlp":
        for k in range(training.depth):
            parts[f"hidden{k + 1}"] = nn.Linear(WIDTH if k else 2, WIDTH)
            parts[f"act{k + 1}"] = activation()
        parts["output"] = nn.Linear(WIDTH, 2)
    else:
        for k, (inputs, outputs) in enumerate(((1, 8), (8, 16), (16, 16))):
            parts[f"conv{k + 1}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
            parts[f"act{k + 1}"] = activation()
            parts[f"pool{k + 1}"] = nn.MaxPool2d(2)
        parts["flat"] = nn.Flatten()
        parts["output"] = nn.Linear(16 * (SIDE // 8) ** 2, 3)
    network = nn.Sequential(parts)
    with torch.no_grad():
        for p in network.parameters():
            fan_in = p[0].numel() if p.ndim > 1 else 0
            bound = math.sqrt((6.0 if training.activation == "relu" else 3.0) / fan_in) if fan_in else 0.0
            p.uniform_(-bound, bound, generator=generator)
    return network


def _data(training: Training, generator: torch.Generator) -> itertools.cycle[tuple[Tensor, Tensor]]:
    """Return an endless iterator over the batches (inputs, labels)."""
    if training.task == "line":
        x = torch.tensor([[1.0], [2.0], [3.0]])
        return itertools.cycle([(x, 2 * x)])
    if training.task == "mlp":
        return itertools.cycle([_spiral(generator)])
    inputs, labels = _shapes(generator)
    return itertools.cycle(list(zip(inputs.split(BATCH), labels.split(BATCH), strict=True)))


def _spiral(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points on the two arms of a spiral."""
    radius = torch.linspace(0.3, 1.0, POINTS).repeat(2)
    arm = torch.arange(2).repeat_interleave(POINTS)
    angle = 5.0 * radius + math.pi * arm
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return 2 * points + 0.04 * torch.randn(points.shape, generator=generator), arm


def _shapes(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy images [SHAPES, 1, SIDE, SIDE] of a square, a disc or a cross with random positions and sizes."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(SHAPES, 1, 1).uniform_(low, high, generator=generator)

    labels = torch.arange(SHAPES) % 3
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    size = uniform(2.5, 5.0)
    down, across = (rows - uniform(5, SIDE - 6)).abs(), (columns - uniform(5, SIDE - 6)).abs()
    largest = torch.maximum(down, across)
    square, disc = largest <= size, down**2 + across**2 <= (1.15 * size) ** 2
    cross = (torch.minimum(down, across) <= 1) & (largest <= size + 1)
    shapes = torch.stack([square, disc, cross])[labels, torch.arange(SHAPES)].float()
    noise = 0.2 * torch.randn(shapes.shape, generator=generator)
    return (shapes + noise - 0.25).unsqueeze(1), labels
