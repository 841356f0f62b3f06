"""`evaluate` with several maps: shared controls, one correction for all of them, the ranking, and the messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import explainers
from explainers import BadOption, Explanation, Recommendation, WrongType, evaluate, explain
from tests.support.nets import random_images, residual

MODEL, IMAGES = residual().float(), random_images(3, 3, 24, 32).float()
BOTH = ("deletion", "insertion")


def chance(seed: int, n: int = 3) -> Tensor:
    return torch.rand(n, 6, 8, generator=torch.Generator().manual_seed(seed))


def test_each_map_has_the_values_of_its_own_call():
    maps = {"Grad-CAM": explain("grad_cam", MODEL, IMAGES, 1), "mine": chance(0), "by name": "saliency"}

    found = evaluate(MODEL, IMAGES, maps, steps=4, target=1, metrics=(*BOTH, "sparseness"))

    assert isinstance(found, Recommendation) and {row.name for row in found.rows} == set(maps)
    for name, each in maps.items():
        single = evaluate(MODEL, IMAGES, each, steps=4, target=1, metrics=(*BOTH, "sparseness"))
        for metric in single.values:
            torch.testing.assert_close(found[name].evaluation.values[metric], single.values[metric])
            for control, values in single.controls[metric].items():
                torch.testing.assert_close(found[name].evaluation.controls[metric][control], values)


def test_maps_are_ranked_by_the_metrics_that_have_a_better_direction():
    maps = {name: chance(k) for k, name in enumerate("abcd")}
    found = evaluate(MODEL, IMAGES, maps, steps=4, target=1, metrics=("sparseness", *BOTH))
    assert set(found.winners) == set(BOTH) and set(found.agreement) == {BOTH} and found.best is found[0]
    assert all(f"\n{name}: " in str(found) for name in maps) and "sparseness" in str(found)
    with pytest.raises(BadOption, match="Unknown map 'aa'. Did you mean 'a'"):
        found["aa"]


def test_progress_covers_all_maps_and_stops_the_call():
    fractions: list[float] = []
    maps = {"a": chance(0), "b": chance(1)}
    evaluate(MODEL, IMAGES, maps, steps=4, progress=lambda step: fractions.append(step.fraction))
    assert fractions == sorted(fractions) and fractions[-1] == 1 and 0.5 in fractions

    found = evaluate(MODEL, IMAGES, maps, steps=4, progress=lambda step: step.fraction < 0.5)

    over = evaluate(MODEL, IMAGES, maps, steps=4, budget=1e-6)
    assert str(over).startswith("No map has a value. Deletion: the time budget was exceeded.")
    assert found["a"].evaluation.is_complete and not found["b"].evaluation.is_complete
    assert found.best is found["a"] and bool(found["b"].evaluation.values["deletion"].isnan().all())


@pytest.mark.parametrize(
    ("maps", "options", "message"),
    [
        ({}, {}, "maps={}"),
        ({1: chance(0)}, {}, "Give maps by name"),
        ({"a": chance(0), "b": chance(0, 2)}, {}, r"maps\['b'\]: The maps have shape \(2, 6, 8\) for 3 images"),
        ({"a": "grad_cm"}, {}, r"maps\['a'\]: Unknown method 'grad_cm'. Did you mean 'grad_cam'"),
        ({"a": {"b": chance(0)}}, {}, r"maps\['a'\]: maps is a dict"),
        ({"a": chance(0)}, {"metrics": "sparseness"}, "sparseness cannot rank maps"),
        ({"a": chance(0)}, {"metrics": "shift_stability"}, r"maps\['a'\]: shift_stability runs the method again"),
    ],
)
def test_a_refusal_names_the_map(maps: Any, options: dict[str, Any], message: str):
    with pytest.raises((BadOption, WrongType), match=message):
        evaluate(MODEL, IMAGES, maps, **options)


def test_explanations_of_different_targets_need_a_target():
    maps: dict[str, Explanation] = {str(k): explain("grad_cam", MODEL, IMAGES, k) for k in (1, 2)}
    with pytest.raises(BadOption, match=r"maps\['1'\] explains \[1, 1, 1\] and maps\['2'\] \[2, 2, 2\]. Give target="):
        evaluate(MODEL, IMAGES, maps)
    assert evaluate(MODEL, IMAGES, maps, target=2, steps=2).target == [2, 2, 2]
    assert evaluate(MODEL, IMAGES, {"1": maps["1"], "mine": chance(0)}, steps=2).target == [1, 1, 1]
    assert isinstance(evaluate(MODEL, IMAGES, maps["1"], steps=2), explainers.Evaluation)
