"""The contracts of methods also apply to metrics, for every metric of METRICS; a new one is covered automatically."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from explainers import METRICS, BadOption, Evaluation, evaluate
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
    assert len(found.reasons[name]) == 3
    assert [bool(reason) for reason in found.reasons[name]] == found.values[name].isnan().tolist()
    if METRICS[name].controls:
        assert list(found.controls[name]) == ["random", "edge", "center"]
        assert all(value.shape == (3,) for value in (*found.controls[name].values(), found.spread[name]))
    else:
        assert name not in found.controls and name not in found.comparisons
    assert (name in found.curves) == METRICS[name].curve
    assert len(found.to_rows()) == 3 and METRICS[name].title in str(found)


@pytest.mark.sample
@each
def test_a_batch_equals_its_images_one_by_one_with_any_chunks(name):
    model, images = residual(), random_images()
    together = ask(name, model, images)
    for n in range(3):
        alone = ask(name, model, images[n : n + 1], region=BOXES[n : n + 1], batch_size=2)
        for own, one in ((together.values, alone.values), (together.controls, alone.controls)):
            if name in own:
                pairs = own[name].items() if isinstance(own[name], dict) else [(None, own[name])]
                for control, value in pairs:
                    other = one[name] if control is None else one[name][control]
                    torch.testing.assert_close(value[n : n + 1], other, rtol=1e-7, atol=1e-9, equal_nan=True)


@pytest.mark.sample
@each
def test_there_are_no_side_effects_in_any_mode(name):
    model, images = residual().requires_grad_(False), random_images()
    expected = ask(name, model, images).values[name]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), nothing_left(model, images):
            found = ask(name, model, images)
        torch.testing.assert_close(found.values[name], expected, equal_nan=True)
        assert not found.values[name].requires_grad and not found.values[name].is_inference()
    model.train()
    with nothing_left(model, images):
        torch.testing.assert_close(ask(name, model, images).values[name], expected, equal_nan=True)


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


@pytest.mark.sample
@each
def test_half_precision_networks(name):
    model, images = residual().bfloat16(), random_images().bfloat16()
    found = ask(name, model, images)
    assert found.values[name].dtype == torch.float32
    expected = ask(name, model.float(), images.float()).values[name]
    assert found.values[name].isnan().tolist() == expected.isnan().tolist()


@pytest.mark.sample
@each
def test_the_same_seed_gives_the_same_numbers(name):
    model, images = residual(), random_images()
    before = torch.get_rng_state()
    first, second, other = (ask(name, model, images, seed=seed) for seed in (3, 3, 4))
    torch.testing.assert_close(first.values[name], second.values[name], rtol=0, atol=0, equal_nan=True)
    if METRICS[name].controls:
        spreads = [found.spread[name] for found in (first, second, other)]
        torch.testing.assert_close(spreads[0], spreads[1], rtol=0, atol=0, equal_nan=True)
        # Random maps that ignore the image have no change under noise, whatever the seed; some values are 0 or 1.
        either = name in ("average_increase", "pointing_game")
        assert not torch.equal(spreads[0], spreads[2]) or not bool(spreads[0].any()) or either
    assert torch.equal(torch.get_rng_state(), before)


def test_progress_covers_all_metrics_and_ends_at_one():
    seen = []
    found = evaluate(
        residual(), random_images(), "saliency", metrics=("deletion", "road"), steps=4, progress=seen.append
    )
    fractions = [partial.fraction for partial in seen]
    assert fractions == sorted(fractions) and fractions[-1] == pytest.approx(1.0)
    assert list(seen[-1].evaluation.values) == ["deletion"], "of the finished metrics"
    assert list(found.values) == ["deletion", "road"] and not found.values["road"].isnan().any()


def test_a_budget_returns_partial_results():
    model, images = residual(seconds=0.02), random_images()
    found = evaluate(model, images, "saliency", metrics=("deletion", "insertion"), budget=0.1, batch_size=2)
    assert found.values["insertion"].isnan().all() and found.seconds < 2
    assert set(found.reasons["insertion"]) == {"the time budget was exceeded"}
    assert "the time budget was exceeded" in str(found)
    assert {place.verdict for place in found.comparisons["insertion"].values()} == {"unknown"}
    rows = []
    model.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    evaluate(model, images, torch.rand(3, 12, 16), metrics=("deletion", "road", "infidelity"), budget=1e-3)
    assert sum(rows) == 3 + 1, "only the images are scored, after a profile of one row, and no metric starts"


@pytest.mark.slow
def test_32_threads_that_predict_meanwhile_see_no_change():
    model, images = residual(seconds=0.001), random_images()
    with torch.no_grad():
        expected = model(images)
    wrong, done, asked = [], threading.Event(), []

    def predict() -> None:
        while not done.is_set():
            with torch.no_grad():
                if not torch.equal(model(images), expected):
                    wrong.append(1)
            asked.append(1)

    threads = [threading.Thread(target=predict) for _ in range(32)]
    alone = evaluate(model, images, "input_x_gradient", metrics=("deletion", "road", "infidelity"), steps=4)
    with nothing_left(model, images):
        for thread in threads:
            thread.start()
        meanwhile = evaluate(model, images, "input_x_gradient", metrics=("deletion", "road", "infidelity"), steps=4)
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong and len(asked) >= 32
    for name in alone.values:
        torch.testing.assert_close(meanwhile.values[name], alone.values[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": "deletoin"}, "Unknown metric 'deletoin'. Did you mean 'deletion'"),
        ({"metrics": ()}, "Give names of METRICS"),
        ({"metrics": 3}, "Give names of METRICS"),
        ({"steps": 1}, "steps=1 is not valid"),
        ({"score": "odds"}, "score='odds' is not valid"),
        ({"baseline": "blurred"}, "baseline='blurred' is not valid"),
        ({"controls": 3}, "Give True or False"),
        ({"precision": "int8"}, "precision='int8' is not valid"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"budget": -1.0}, "budget=-1.0"),
        ({"progress": 3}, "Pass a function that takes a Partial"),
        ({"options": {"road": {}}}, "not among metrics"),
        ({"options": {"deletion": {"levels": 3}}}, "deletion has no option 'levels'. It has no options."),
        ({"options": 3}, "Give {metric: {option: value}}"),
        ({"metrics": "road", "options": {"road": {"level": 3}}}, "Did you mean 'levels'"),
        ({"metrics": "pointing_game"}, "Give region=boxes"),
        ({"metrics": "pointing_game", "region": torch.zeros(2, 4)}, "Give boxes [3, 4]"),
        ({"metrics": "pointing_game", "region": torch.zeros(3, 4) - 1}, "covers no pixel"),
        ({"metrics": "sensitivity_max", "maps": torch.rand(3, 4, 4)}, "runs the method again"),
        ({"maps": torch.rand(2, 4, 4)}, "The maps have shape (2, 4, 4) for 3 images"),
        ({"maps": torch.rand(4, 4)}, "for a single map m, give m[None]"),
        ({"maps": torch.ones(3, 4, 4).int()}, "Give floats"),
        ({"maps": torch.full((3, 4, 4), torch.nan)}, "The map of image 0 contains nan at row 0, column 0"),
        ({"maps": "grad_camm"}, "Unknown method 'grad_camm'"),
        ({"maps": lambda images: images.sum()}, "It must return maps [N, h, w]"),
    ],
)
def test_refusals_say_what_was_given_and_what_to_do(options, message):
    model, images = residual(), random_images()
    given = {"maps": torch.rand(3, 4, 4)} | options
    with pytest.raises(BadOption) as refusal, nothing_left(model, images):
        evaluate(model, images, **given)
    assert message in str(refusal.value)


def test_an_invalid_map_is_a_type_error():
    with pytest.raises(TypeError, match="maps is an int; give a tensor"):
        evaluate(residual(), random_images(), 3)
