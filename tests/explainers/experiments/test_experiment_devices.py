"""All experiments on a pretended accelerator, with and without float64: the numbers of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from tests.support.nets import random_images, residual, settle
from tests.support.pretended_device import WITH_FLOAT64, WITHOUT_FLOAT64, pretended_devices
from tests.support.token_nets import vit

CPU = torch.device("cpu")


def network(seed: int = 0) -> nn.Module:
    return settle(residual(), seed).float()


def images(seed: int = 0) -> Tensor:
    return random_images(2).float().roll(seed, -1)


def put(device: torch.device, model: nn.Module, *inputs: Tensor) -> tuple[Any, ...]:
    return model.to(device), *(each.to(device) for each in inputs)


def intervened(device: torch.device) -> Any:
    model, x, other = put(device, network(), images(), images(3))
    found = [
        explainers.intervene(model, x, explainers.default_layer(model, x), channels=[0, 2], value=value).after
        for value in ("mean", explainers.Scale(2), explainers.AddNoise(0.5), explainers.Swap(other))
    ]
    assert all(each.device == device for each in found)
    return [each.cpu() for each in found]


def patched(device: torch.device) -> Any:
    model, x, other = put(device, network(), images(), images(3))
    found = explainers.patch_effects(model, x, other, [2, 0])
    assert found.device == device
    return found.cpu()


def compared(device: torch.device) -> Any:
    model, other, x = network().to(device), network(1).to(device), images().to(device)
    found = explainers.compare_models(model, other, x)
    return [found.changed, *(torch.as_tensor(each).cpu() for each in (found.similarity, found.map_correlations))]


def erased(device: torch.device) -> Any:
    model, x = put(device, network(), images())
    found = explainers.smallest_region(model, x, explainers.saliency(model, x).norm(dim=1), goal="change")
    assert found.mask.device == device
    return [found.mask.cpu(), found.fraction.cpu(), found.passes]


def traced(device: torch.device) -> Any:
    model, x = put(device, network(), images()[:1])
    other, y = put(device, vit(2).float(), random_images(1, height=64, width=64).float())
    found = [
        explainers.trace_value(model, x, "layer1", channel=2, cell=(3, 3)),
        explainers.trace_attention(other, y, "encoder.layers.encoder_layer_1", head=1, query=2, key=3),
    ]
    return [[each.value, each.computed, *(step.after for step in each.steps)] for each in found]


FUNCTIONS = [intervened, patched, compared, erased, traced]


@pytest.mark.parametrize("device", [WITHOUT_FLOAT64, WITH_FLOAT64], ids=str)
@pytest.mark.parametrize("compute", FUNCTIONS)
def test_results_are_those_of_the_cpu(compute: Callable[[torch.device], Any], device: torch.device) -> None:
    expected = compute(CPU)
    with pretended_devices():
        found = compute(device)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True, check_dtype=False)
