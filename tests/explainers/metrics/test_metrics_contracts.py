"""The contracts of methods also apply to metrics, for every metric of METRICS; a new one is covered automatically."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from explainers import METRICS, BadOption, Evaluation, evaluate, explain
from tests.support.nets import random_images, residual
from tests.support.traces import nothing_left

NAMES = list(METRICS)
each = pytest.mark.parametrize("name", NAMES)
SMALL = {"infidelity": {"samples": 6}, "mu_fidelity": {"samples": 6, "cells": 3}, "sensitivity_max": {"samples": 2}}
SMALL |= {name: {"samples": 2} for name in ("local_lipschitz", "noise_stability")} | {"shift_stability": {"pixels": 1}}
BOXES = torch.tensor([[2.0, 2.0, 9.0, 8.0], [0.0, 0.0, 5.0, 5.0], [8.0, 4.0, 16.0, 12.0]])


def ask(name: str, model, images: Tensor, maps: Any = "input_x_gradient", **options: Any) -> Evaluation:
    settings: dict[str, Any] = {"steps": 4, "region": BOXES[: len(images)]} | options
    return evaluate(model, images, maps, metrics=name, options={name: SMALL.get(name, {})}, **settings)


@each
def test_values_are_next_to_those_of_the_controls(name):
    images = random_images()
    found = ask(name, residual(), images)
    assert found.values[name].shape == (3,) and found.values[name].dtype == torch.float64
    assert [bool(reason) for reason in found.reasons[name]] == found.values[name].isnan().tolist()
    if METRICS[name].controls:
        assert list(found.controls[name]) == ["random", "edge", "center"]
        assert all(value.shape == (3,) for value in (*found.controls[name].values(), found.spread[name]))
    else:
        assert name not in found.controls and name not in found.comparisons
    assert (name in found.curves) == METRICS[name].curve
    assert len(found.to_rows()) == 3 and METRICS[name].title in str(found)
    half = ask(name, residual().bfloat16(), images.bfloat16())
    assert half.values[name].dtype == torch.float32 and half.values[name].isnan().tolist() == [
        bool(reason) for reason in half.reasons[name]
    ]


@pytest.mark.sample
@each
def test_a_batch_equals_its_images_one_by_one_with_any_chunks(name):
    model, images = residual(), random_images()
    together = ask(name, model, images)
    for n in range(3):
        alone = ask(name, model, images[n : n + 1], region=BOXES[n : n + 1], batch_size=2)
        pairs = [(together.values[name], alone.values[name])]
        pairs += [(each, alone.controls[name][control]) for control, each in together.controls.get(name, {}).items()]
        for own, one in pairs:
            torch.testing.assert_close(own[n : n + 1], one, rtol=1e-7, atol=1e-9, equal_nan=True)


@pytest.mark.sample
@each
def test_there_are_no_side_effects_in_any_mode_and_a_seed_gives_the_same_numbers(name):
    model, images = residual().requires_grad_(False), random_images()
    expected = ask(name, model, images)
    for mode, train in ((torch.inference_mode, False), (torch.no_grad, True)):
        model.train(train)
        with mode(), nothing_left(model, images):
            found = ask(name, model, images)
        torch.testing.assert_close(found.values[name], expected.values[name], equal_nan=True)
        assert not found.values[name].requires_grad and not found.values[name].is_inference()
        if METRICS[name].controls:
            torch.testing.assert_close(found.spread[name], expected.spread[name], equal_nan=True)
    # Random maps that ignore the image have no change under noise, whatever the seed; some values are 0 or 1.
    if METRICS[name].controls and expected.spread[name].any() and name not in ("average_increase", "pointing_game"):
        assert not torch.equal(ask(name, model, images, seed=4).spread[name], expected.spread[name])


@each
def test_progress_can_raise_without_side_effects_or_stop_with_partial_results(name):
    model, images = residual(), random_images()

    def fail(partial):
        raise KeyError("stop")

    seen = []
    with nothing_left(model, images):
        if METRICS[name].score or METRICS[name].reruns:
            with pytest.raises(KeyError):
                ask(name, model, images, progress=fail, batch_size=1)
        found = ask(name, model, images, progress=lambda partial: seen.append(partial) or False, batch_size=1)
    assert len(seen) <= 1 and found.values[name].shape == (3,)
    if METRICS[name].curve:
        assert bool(found.values[name].isnan().all()) and set(found.reasons[name]) == {"the call was stopped"}
        assert seen[0].total > seen[0].done > 0 and isinstance(seen[0].evaluation, Evaluation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "deletoin"}, "Unknown metric 'deletoin'. Did you mean 'deletion'"),
        ({"metrics": [METRICS["deletion"]]}, "Unknown metric Metric"),
        ({"steps": 1}, "steps=1"),
        ({"score": "odds"}, "score='odds'"),
        ({"baseline": "blurred"}, "baseline='blurred'"),
        ({"controls": 3}, "Give True or False"),
        ({"budget": "1"}, "budget='1'"),
        ({"progress": 3}, "progress=3"),
        ({"options": {"road": {}}}, "not among metrics"),
        ({"options": {"deletion": {"levels": 3}}}, "deletion has no option 'levels'. It has no options."),
        ({"options": 3}, "Give {metric: {option: value}}"),
        ({"metrics": "road", "options": {"road": {"level": 3}}}, "Did you mean 'levels'"),
        ({"metrics": "pointing_game"}, "Give region=boxes"),
        ({"metrics": "pointing_game", "region": torch.zeros(2, 4)}, "Give boxes [3, 4]"),
        ({"metrics": "pointing_game", "region": BOXES * torch.tensor([[1], [0], [1]]) - 1}, "image 1 covers no pixel"),
        ({"metrics": "pointing_game", "region": torch.full((3, 12, 16), torch.nan)}, "NaN"),
        ({"metrics": "sensitivity_max", "maps": torch.rand(3, 4, 4)}, "runs the method again"),
        ({"maps": explain("channel_effects", residual(), random_images())}, "one value per channel"),
    ],
)
def test_refusals_say_what_was_given_and_what_to_do(options, message):
    model, images = residual(), random_images()
    given = {"maps": torch.rand(3, 4, 4)} | options
    with pytest.raises(BadOption) as refusal, nothing_left(model, images):
        evaluate(model, images, **given)
    assert message in str(refusal.value)
