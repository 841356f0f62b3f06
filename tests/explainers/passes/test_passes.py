"""Cost of a call: the model is inspected once, one forward pass runs, and one rule handles other batch sizes."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from torch import nn

from explainers import BadTarget, LayerNotFound, explain, grad_cam, grad_cam_sweep, score_cam
from explainers.errors import is_out_of_memory
from explainers.passes.at_layer import retry_with_repeated_batch
from tests.support.nets import random_images, residual

MOST_FUNCTIONS = 140


def crossed(call) -> Counter[str]:
    """The functions of the library that a call enters, and how often; comprehensions count as their function."""
    functions: Counter[str] = Counter()

    def enter(frame, event, argument):
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event == "call" and "/explainers/" in path and not name.endswith(("comp>", "genexpr>", "<lambda>")):
            functions[f"{path.rpartition('/explainers/')[2]}: {name}"] += 1

    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions


@pytest.mark.parametrize("layer", ["layer2", None])
def test_explain_inspects_the_model_once_and_enters_few_functions(layer):
    """For the map, the runner-up's map and all statistics, the model is unwrapped, inspected and checked once."""
    net, images = residual(), random_images()
    explain("grad_cam", net, images, layer=layer)

    functions = crossed(lambda: explain("grad_cam", net, images, layer=layer))

    once = ("unwrap", "_inspect", "check_images", "always_channels_first", "replaced_outputs.<locals>.<lambda>")
    named = {name.rpartition(": ")[2]: count for name, count in functions.items()}
    assert [name for name in once if named.get(name, 0) > 1] == []
    assert named["_inspect"] == named["check_images"] == named["find_hook_point"] == 1
    assert len(functions) <= MOST_FUNCTIONS, "\n".join(sorted(functions))


def out_of_memory() -> torch.Tensor:
    """The CPU allocator's error for a petabyte."""
    return torch.empty(2**50, dtype=torch.uint8).fill_(1)


def test_out_of_memory_errors_are_recognized():
    with pytest.raises(RuntimeError) as error:
        out_of_memory()
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")) and is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shape '[1, 8]' is invalid for input of size 16"))
    assert not is_out_of_memory(ValueError("a label called out of memory"))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), None, LayerNotFound("no such layer")])
def test_rows_are_not_repeated_after_out_of_memory_or_our_errors(error):
    """The repeated batch would need even more memory, and our own errors would only occur a second time."""
    tried = []

    def one_row():
        if error is None:
            return out_of_memory()
        raise error

    with pytest.raises(RuntimeError if error is None else type(error)):
        retry_with_repeated_batch(one_row, lambda: tried.append(1))
    assert tried == []


@pytest.mark.parametrize("error", [RuntimeError("shape"), ValueError("rows"), IndexError("5"), BadTarget("4 for 1")])
def test_rows_are_repeated_if_the_network_needs_its_batch_size(error):
    def one_row():
        raise error

    assert retry_with_repeated_batch(one_row, lambda: 7) == 7


def test_partial_maps_are_rectified_as_the_last_one_is():
    net, images, seen = residual(), random_images(), []
    report = {"batch_size": 2, "progress": lambda partial: seen.append(partial.map)}

    final = score_cam(net, images, 1, layer="layer2", **report)
    raw = score_cam(net, images, 1, layer="layer2", relu=False, **report)

    whole, signed = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    torch.testing.assert_close(whole[-1], final, rtol=0, atol=0)
    torch.testing.assert_close(signed[-1], raw, rtol=0, atol=0)
    assert all(bool((map >= 0).all()) for map in whole) and raw.relu().equal(final)


def test_progress_runs_outside_of_the_call():
    """User code there, with the same model in another mode, is a separate call and leaves no findings."""
    net, images = residual(), random_images()
    expected, inside = grad_cam(net, images, 2, layer="layer1"), []

    def report(partial):
        net.train()
        inside.append(grad_cam(net, images, 2, layer="layer1"))
        net.eval()

    e = explain("score_cam", net, images, 1, layer="layer2", progress=report)

    assert e.layer == "layer2" and e.target == [1] * len(images)
    for map in inside:
        torch.testing.assert_close(map, expected, rtol=0, atol=0)


def test_a_network_that_works_in_place_does_not_change_the_images():
    """Two requests for the same images: the second must not see changes made by the first."""
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    images = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    before = images.clone()

    explain("grad_cam", net.eval(), images, 1, layer="1")

    assert torch.equal(images, before)


def test_a_caller_in_inference_mode_gets_ordinary_tensors_and_stays_in_it():
    net, images = residual(), random_images()
    expected = explain("saliency", net, images, 1)

    with torch.inference_mode():
        found = explain("saliency", net, images.clone(), 1)
        heat, maps = grad_cam(net, images, 1), grad_cam_sweep(net, images, 1)
        assert torch.is_inference_mode_enabled() and not torch.is_grad_enabled()

    assert torch.is_grad_enabled()
    assert not (found.map.is_inference() or found.raw.is_inference() or heat.is_inference())
    assert not any(each.is_inference() for each in maps.values())
    torch.testing.assert_close(found.map, expected.map)
    heat.requires_grad_()


def test_a_network_may_have_an_attribute_named_like_a_hook_table():
    """As in timm's backbones, where `feature_hooks` may be None."""
    net, images = residual(), random_images()
    expected = grad_cam(net, images, 1)
    net.feature_hooks, net.layer1.my_hooks = None, []

    torch.testing.assert_close(grad_cam(net.train(), images, 1), expected)
    assert net.training
