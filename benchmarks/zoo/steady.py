"""The check of side effects: calls repeat, images do not affect each other, and training mode changes nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import explainers
from benchmarks.zoo.checks import check, expect
from benchmarks.zoo.subject import Subject


@check
def steady(subject: Subject) -> str:
    """Check that gradients are the same in two calls, one by one and in training mode."""
    model, images, tolerance = subject.in_float64()
    state = torch.random.get_rng_state()
    first, again = _gradient(subject, model, images), _gradient(subject, model, images)
    expect(torch.equal(torch.random.get_rng_state(), state), "the global random generator has moved")
    _expect_same(again, first, 0.0, "two calls")
    alone = torch.cat([_gradient(subject, model, images[n : n + 1]) for n in range(len(images))])
    _expect_same(alone, first, max(tolerance, subject.network.rounding), "one by one")
    return _in_training_mode(subject, model, images, first)


def _in_training_mode(subject: Subject, model: nn.Module, images: Tensor, expected: Tensor) -> str:
    """Compare a call in training mode, which may be refused."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    modes = [module.training for module in model.modules()]
    model.train()
    try:
        found = _gradient(subject, model, images)
        words = "the same in training mode"
    except explainers.UnsupportedModel as error:
        found, words = expected, f"training mode is refused: {error}"
    finally:
        changed = [module for module in model.modules() if not module.training]
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
    expect(not changed, "the mode of a module has changed")
    for name, tensor in model.state_dict().items():
        expect(name not in before or torch.equal(tensor, before[name]), f"{name} has changed")
    _expect_same(found, expected, 1e-3, "training mode")
    return words


def _gradient(subject: Subject, model: nn.Module, images: Tensor) -> Tensor:
    return explainers.saliency(model, images, subject.target, **subject.options_for(model))


def _expect_same(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    gap = float((found - expected).abs().max()) / max(float(expected.abs().max()), 1e-30)
    expect(gap <= tolerance, f"{what}: off by {gap:.2g} of the largest value")
