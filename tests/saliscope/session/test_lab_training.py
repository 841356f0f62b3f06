"""Training runs and gradient norms of the gradient lab: limits, gradient edits, responses and invalid forms."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn

import explainers
from saliscope import limits
from saliscope.errors import Refused
from saliscope.page.lab import view as lab_view
from saliscope.session.jobs import runs
from saliscope.session.lab import engine as lab_engine
from saliscope.session.lab import image as lab_image
from saliscope.session.lab import messages as lab_messages
from saliscope.session.lab import training as lab_training
from saliscope.session.lab.training import PRESETS, Curves, Training

SHORT = Training("mlp", 0.3, 12, depth=2)


def trained(training: Training, seconds: float = 20.0) -> Curves:
    with runs.start(None, seconds) as run:
        *_, last = lab_training.train(training, run)  # type: ignore[arg-type]
        return last


def test_linear_regression_equals_gradient_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: gradient descent on mean (w x + b - 2x)^2, written out."""
    start, record = list[float](), explainers.record_gradients

    def record_from(network: nn.Module, **options: Any) -> Any:
        start.extend(float(each.detach()) for each in network.parameters())
        return record(network, **options)

    monkeypatch.setattr(explainers, "record_gradients", record_from)
    found = trained(replace(PRESETS["line"], steps=20))
    (w, b), x = start, torch.tensor([1.0, 2.0, 3.0])
    for step in range(20):
        error = w * x + b - 2 * x
        slope, offset = float((2 * error * x).mean()), float((2 * error).mean())
        assert found.loss[step] == pytest.approx(float((error**2).mean()), rel=1e-4)
        assert found.norms["line"][step] == pytest.approx(math.hypot(slope, offset), rel=1e-4)
        moved = 0.01 * math.hypot(slope, offset) / math.hypot(w, b)
        assert found.updates["line"][step] == pytest.approx(moved, rel=1e-3)
        w, b = w - 0.01 * slope, b - 0.01 * offset


def test_gradient_edits_act_on_the_recorded_norms() -> None:
    plain = trained(SHORT)
    clipped = trained(replace(SHORT, clip_norm=0.05))
    scaled = trained(replace(SHORT, scale="output", factor=0.5))
    frozen = trained(replace(SHORT, freeze="hidden1"))
    noisy = trained(replace(SHORT, freeze="hidden1", scale="hidden2", factor=0.5, noise=0.1))
    cut = trained(replace(SHORT, clip_value=1e-3))

    total = [math.sqrt(sum(curve[k] ** 2 for curve in clipped.norms.values())) for k in range(12)]
    assert max(total) <= 0.05 * 1.0001 and sum(curve[0] for curve in plain.norms.values()) > 0.05
    assert scaled.norms["output"][0] == pytest.approx(0.5 * plain.norms["output"][0], rel=1e-4)
    assert scaled.norms["hidden1"][0] == pytest.approx(plain.norms["hidden1"][0], rel=1e-4)
    assert frozen.norms["hidden1"] == [0.0] * 12 and frozen.updates["hidden1"] == [0.0] * 12
    assert noisy.norms["hidden1"] == [0.0] * 12, "noise is added before freezing, in the order of the form"
    assert noisy.updates["hidden1"] == [0.0] * 12 and noisy.norms["output"][0] > 0.2
    assert noisy.norms["hidden2"] == pytest.approx([0.8] * 12, rel=0.3), "half the noise of 0.1 on 16 · 17 numbers"
    assert max(high for _, _, high in cut.histograms["output"]) <= 1e-3 * 1.0001


def test_every_task_learns_and_presets_show_their_phenomenon() -> None:
    """Forms and answers are small JSON."""
    assert list(PRESETS) == list(lab_messages.PRESETS)
    runs_of = {name: trained(replace(preset, steps=min(preset.steps, 60))) for name, preset in PRESETS.items()}
    runs_of |= {name: trained(PRESETS[name]) for name in ("exploding", "clipped", "vanishing")}
    for name, found in runs_of.items():
        assert lab_training.parse_form(json.loads(json.dumps(asdict(PRESETS[name])))) == PRESETS[name]
        assert len(json.dumps(lab_view.curves(found, 3), allow_nan=False)) < 500_000
        assert len(found.at) <= limits.TRAINING_POINTS
        assert all(len(curve) == len(found.at) for group in (found.norms, found.updates) for curve in group.values())
    for task in lab_training.TASKS:
        found = runs_of[task]
        assert found.end == "done" and found.step == 60 and found.loss[-1] < 0.8 * found.loss[0]
    assert trained(SHORT).loss == trained(SHORT).loss, "a run is reproducible"
    codes = {name: [each.code for each in found.findings] for name, found in runs_of.items()}
    assert "exploding" in codes["exploding"] and runs_of["exploding"].end == "broken"
    assert codes["clipped"] == [] and runs_of["clipped"].loss[-1] < 1.0
    assert "vanishing" in codes["vanishing"]


def test_a_layer_that_is_frozen_or_scaled_by_0_is_not_reported_as_dead() -> None:
    """The first layer of the preset does not change, and the gradients of the other layers contain the noise."""
    for task in ("mlp", "cnn"):
        for edit in ({"freeze": "output"}, {"scale": "output", "factor": 0.0}):
            (finding,) = trained(replace(SHORT, task=task, rate=0.05, **edit)).findings  # type: ignore[arg-type]
            assert finding.code == "frozen" and "'output.weight'" in finding.sentence
    preset = PRESETS["frozen"]
    found, quiet = trained(preset), trained(replace(preset, noise=None))
    assert lab_messages.PRESETS["frozen"] == "First layer frozen, noise on the others"
    assert set(found.updates["hidden1"]) == set(found.norms["hidden1"]) == {0.0}
    assert found.norms["output"] != quiet.norms["output"] and min(found.norms["hidden2"]) > 0
    assert found.loss[-1] < found.loss[0]
    for run in (found, quiet):
        (finding,) = run.findings
        assert finding.code == "frozen" and "ReLU" not in finding.sentence and "'hidden1.weight'" in finding.sentence


def test_a_stopped_run_keeps_its_curves_and_time_is_limited() -> None:
    long = replace(SHORT, task="cnn", steps=500)
    with runs.start("somebody/training", 20.0) as run:
        going = lab_training.train(long, run)  # type: ignore[arg-type]
        next(going)
        runs.stop("somebody/training")
        *_, found = going
    assert found.end == "stopped" and 0 < found.step < 500 and len(found.loss) == len(found.at) > 0
    assert trained(long, 0.2).end == "time"


def test_invalid_forms_are_refused() -> None:
    for name, values in {
        "steps": (10**9, 0, "10", True, math.nan, 10.5, None),
        "rate": (-1, math.inf, None),
        "task": ("resnet50", ["mlp"], None),
        "freeze": ("conv1", "*", {"a": 1}),
        "depth": (2.5, 100),
        "factor": (None,),
        "clip_value": (-5,),
        "clip_norm": (0,),
        "noise": (-1, [1]),
        "activation": ("__class__",),
        "optimizer": ("lbfgs",),
        "scale": ("<img src=x onerror=alert(1)>",),
    }.items():
        for value in values:
            with pytest.raises(Refused) as refusal:
                lab_training.parse_form({name: value})
                pytest.fail(f"{name}={value} is accepted")
            assert str(refusal.value).endswith(".") and len(str(refusal.value)) < 200


# Gradient norms of an image


def test_layer_norms_equal_autograd() -> None:
    """Oracle: gradients of the activations from autograd. Layers where the gradient vanishes are named."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten())
    network, images = network.append(nn.Linear(4 * 16, 5)), torch.rand(1, 3, 8, 8)
    a = network[0](images)
    b = a.relu()
    c = network[2](b)
    d = c.relu()
    grads = torch.autograd.grad(network[5](d.flatten(1))[0, 2], (a, b, c, d))
    found = lab_engine.layer_norms(network, images, 2, ["0", "1", "2", "3"])
    for name, gradient in zip("0123", grads, strict=True):
        assert float(found[name][0]) == pytest.approx(float(gradient.norm()), rel=1e-5)
        assert float(found[name][1]) == pytest.approx(float((gradient == 0).float().mean()))
    assert all(each.grad is None for each in network.parameters())

    nn.init.constant_(network[2].bias, -1e3)  # type: ignore[arg-type]
    layers = explainers.list_layers(network, images, spatial=True)
    found = lab_engine.layer_norms(network, images, 2, [layer.name for layer in layers])
    norms, zeros = zip(*(found[layer.name].tolist() for layer in layers), strict=True)
    depth = lab_image.Depth(None, "tench", layers, list(norms), list(zeros))
    assert depth.vanished == ["0", "1", "2"]
    message = lab_messages.depth_verdict(depth.vanished, ("3", 1.0, "0", 0.0))
    assert message.startswith("The gradient vanishes at 0, 1, 2, so class-activation maps there are not meaningful.")
    assert lab_image.Depth(None, "tench", layers, [1.0, math.nan, 1e-9, 2.0], [0.0] * 4).vanished == ["1", "2"]
