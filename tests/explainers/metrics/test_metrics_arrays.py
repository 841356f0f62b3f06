"""`evaluate` takes maps as numpy arrays and lists, and says what is wrong with those that are not maps."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from explainers import BadOption, Evaluation, evaluate
from tests.support.nets import random_images, residual

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


def test_the_type_of_what_is_not_an_array_is_named():
    for maps, kind in ((set(), "a set"), (3.0, "a float"), (None, "None")):
        with pytest.raises(TypeError, match=f"maps is {kind}; give a tensor or numpy array"):
            values(maps)
