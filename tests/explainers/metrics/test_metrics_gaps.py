"""Maps as arrays and lists, metrics without a value or with a partial one, and invalid arguments."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import explainers
from explainers import BadOption, Evaluation, Explanation, evaluate, explain
from tests.support.nets import Written, curved, random_images, residual

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


# One score


# Maps


# Stopped calls


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


# No value


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


@pytest.mark.parametrize(
    ("maps", "message"),
    [
        (ARRAY[0], "maps is a numpy array of shape (6, 8). Give maps [N, h, w]"),
        (MAPS[0], "for a single map m, give m[None]"),
        (ARRAY[:2], "The maps have shape (2, 6, 8) for 3 images. Give one map per image: [3, h, w]"),
        ((255 * ARRAY).astype("uint8"), "maps is a numpy array of uint8. Give floats: maps.astype('float32')"),
        (ARRAY.astype(complex), "The maps are complex"),
        (np.where(ARRAY > -1, np.nan, ARRAY), "The map of image 0 contains nan at row 0, column 0"),
        (np.ma.masked_array(ARRAY, ARRAY > 0.5), "maps is a masked array. Give values"),
        ([], "maps is a list with no elements. Give a list of arrays"),
        (["grad_cam"] * 3, "maps is a list with an element of type str"),
        ([ARRAY[0], ARRAY[1, :3], ARRAY[2]], "maps is a list of arrays of shapes (6, 8) and (3, 8)"),
        ([MAPS[0].to_sparse()] * 3, "maps is a list with a sparse tensor"),
        (lambda images: ARRAY[0], "The function given as maps returned a result of shape (6, 8)"),
    ],
)
def test_other_arrays_are_refused(maps, message):
    with pytest.raises(BadOption) as refusal:
        values(maps)
    assert message in str(refusal.value)
