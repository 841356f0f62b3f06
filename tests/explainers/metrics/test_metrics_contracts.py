"""The contracts of methods also apply to metrics, for every metric of METRICS; a new one is covered automatically."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import explainers
from explainers import METRICS, BadOption, Evaluation, Explanation, evaluate, explain
from tests.support.nets import Written, curved, random_images, residual
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


# Metrics without a value or with a partial one, and maps as arrays and lists


SLIGHT = {"sensitivity_max": {"radius": 1e-6, "samples": 1}}


def why(found: explainers.Evaluation) -> dict[str, str]:
    return {name: reasons[0] for name, reasons in found.reasons.items()}


def test_a_loaded_explanation_is_recomputed_if_the_file_has_its_arguments(tmp_path: Any) -> None:
    model, x = residual(), random_images(1)
    plainly, restricted = (explain("saliency", model, x, 1, **more) for more in ({}, {"through": ("layer2", [0])}))
    for name, each in (("plain", plainly), ("restricted", restricted)):
        each.save(str(tmp_path / f"{name}.npz"))

    again = Explanation.load(str(tmp_path / "plain.npz"))
    found = evaluate(model, x, again, metrics="sensitivity_max", controls=False, options=SLIGHT)
    assert float(found.values["sensitivity_max"]) < 1e-3
    with pytest.raises(BadOption, match="Give a function of the images"):
        evaluate(model, x, Explanation.load(str(tmp_path / "restricted.npz")), metrics="sensitivity_max")


def test_a_value_from_fewer_samples_is_reported() -> None:
    """A maximum over fewer samples is smaller, and would look better. The values are those of as many samples."""
    settings: dict[str, Any] = {"target": 0, "controls": False, "batch_size": 3}
    for metric in ("sensitivity_max", "noise_stability", "infidelity", "mu_fidelity"):
        found = evaluate(residual(), random_images(1), "saliency", metrics=metric, progress=lambda p: False, **settings)
        assert found.values[metric].isfinite().all() and not found.is_complete
        assert found.reasons[metric] == ["uses fewer samples than requested: the call was stopped"]
        if "fidelity" in metric:
            few = {metric: {"samples": 3}}
            three = evaluate(residual(), random_images(1), "saliency", metrics=metric, options=few, **settings)
            torch.testing.assert_close(found.values[metric], three.values[metric], rtol=1e-9, atol=0)


def test_a_long_method_ends_with_the_call() -> None:
    """An unfinished run of it is not counted."""
    calls: list[float] = []

    def stop(step: Any) -> bool:
        calls.append(step.fraction)
        return False

    model, x = residual(), random_images(1)
    stopped = evaluate(model, x, "rise", metrics="deletion", progress=stop, controls=False)
    assert len(calls) == 1 and 0 < calls[0] <= 0.5 and stopped.maps.shape == (1, 12, 16)
    rerun = evaluate(model, x, explain("rise", model, x, 0), metrics="sensitivity_max", progress=stop, controls=False)
    over = evaluate(model, x, "rise", metrics="deletion", budget=1e-9)
    for found, name, why in (
        (stopped, "deletion", "the call was stopped"),
        (rerun, "sensitivity_max", "the call was stopped"),
        (over, "deletion", "the time budget was exceeded"),
    ):
        assert found.values[name].isnan().all() and not found.is_complete and found.reasons[name] == [why]


def test_values_that_do_not_exist_are_excluded_or_have_a_reason() -> None:
    """A map that is 0 except in the column that a shift uncovers; equal sums; a score of -inf for a black image."""

    def column(images: Tensor) -> Tensor:
        heat = torch.zeros(len(images), 12, 16, dtype=images.dtype)
        heat[:, :, 0] = images[:, 0, :, 0]
        return heat

    infinite = Written(lambda _, x: torch.stack([x.flatten(1).sum(1).abs().log(), x.new_zeros(len(x))], 1))
    x, heat = random_images(1), torch.zeros(1, 12, 16)
    shifted = evaluate(curved(), x, column, metrics="shift_stability", controls=False)
    assert shifted.is_complete and shifted.values["shift_stability"].isfinite().all()
    heat[:, ::3, ::4] = 1
    equal = evaluate(curved(), x, heat, metrics="mu_fidelity", controls=False, options={"mu_fidelity": {"cells": 4}})
    assert "are the same for all replaced parts" in why(equal)["mu_fidelity"]
    black = evaluate(infinite, x, "saliency", target=0, baseline=0.0, score="logit", controls=False)
    assert black.is_complete and all("is not finite" in each for each in why(black).values())


MAPS = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0))
ARRAY = MAPS.numpy().copy()


def values(maps: Any) -> list[float]:
    found: Evaluation = evaluate(residual(), random_images(), maps, steps=3, metrics="deletion", controls=False)
    return found.values["deletion"].tolist()


def test_arrays_and_lists_give_the_same_values():
    read_only = ARRAY.copy()
    read_only.setflags(write=False)
    flipped = ARRAY[:, ::-1].copy()[:, ::-1]
    expected = pytest.approx(values(MAPS), rel=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for array in (ARRAY, ARRAY.astype("float64"), ARRAY[:, None], flipped, read_only, lambda images: ARRAY):
            assert values(array) == expected
        for items in (list(ARRAY), tuple(MAPS), [MAPS[0], ARRAY[1], MAPS[2].double()], ARRAY.tolist()):
            assert values(items) == expected
