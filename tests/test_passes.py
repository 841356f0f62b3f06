"""What one call costs and shares: one look at the model, one forward pass, one rule for batches that do not fit."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from nets import pictures, residual
from torch import nn

from explainers import BadTarget, LayerNotFound, explain, grad_cam, grad_cam_sweep, score_cam
from explainers.errors import is_out_of_memory
from explainers.passes.at_layer import or_with_rows_repeated

MOST_FUNCTIONS = 60


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
    """The map, the runner-up's map and all figures: the model is unwrapped, inspected and checked a single time."""
    net, images = residual(), pictures()
    explain("grad_cam", net, images, layer=layer)

    functions = crossed(lambda: explain("grad_cam", net, images, layer=layer))

    once = ("unwrap", "_inspect", "check_images", "always_channels_first", "replaced_outputs.<locals>.<lambda>")
    named = {name.rpartition(": ")[2]: count for name, count in functions.items()}
    assert [name for name in once if named.get(name, 0) > 1] == []
    assert named["_inspect"] == named["check_images"] == named["find_hook_point"] == 1
    assert len(functions) <= MOST_FUNCTIONS, "\n".join(sorted(functions))


def out_of_memory() -> torch.Tensor:
    """What the CPU's allocator says of a petabyte."""
    return torch.empty(2**50, dtype=torch.uint8).fill_(1)


def test_running_out_of_memory_is_recognised():
    with pytest.raises(RuntimeError) as error:
        out_of_memory()
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")) and is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shape '[1, 8]' is invalid for input of size 16"))
    assert not is_out_of_memory(ValueError("a label called out of memory"))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), None, LayerNotFound("no such layer")])
def test_rows_are_not_repeated_where_memory_ran_out_or_we_refuse(error):
    """The repeated batch would need even more memory; and a refusal would only be found a second time."""
    tried = []

    def one_row():
        if error is None:
            return out_of_memory()
        raise error

    with pytest.raises(RuntimeError if error is None else type(error)):
        or_with_rows_repeated(one_row, lambda: tried.append(1))
    assert tried == []


@pytest.mark.parametrize("error", [RuntimeError("shape"), ValueError("rows"), IndexError("5"), BadTarget("4 for 1")])
def test_rows_are_repeated_where_the_network_takes_no_other_batch_size(error):
    def one_row():
        raise error

    assert or_with_rows_repeated(one_row, lambda: 7) == 7


def test_partial_maps_are_rectified_as_the_last_one_is():
    net, images, seen = residual(), pictures(), []
    report = {"batch_size": 2, "progress": lambda partial: seen.append(partial.map)}

    final = score_cam(net, images, 1, layer="layer2", **report)
    raw = score_cam(net, images, 1, layer="layer2", relu=False, **report)

    whole, signed = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    torch.testing.assert_close(whole[-1], final, rtol=0, atol=0)
    torch.testing.assert_close(signed[-1], raw, rtol=0, atol=0)
    assert all(bool((map >= 0).all()) for map in whole) and raw.relu().equal(final)


def test_progress_runs_outside_of_the_call():
    """What the caller does there, with the same model in another mode, is a call of its own and leaves no note."""
    net, images = residual(), pictures()
    expected, inside = grad_cam(net, images, 2, layer="layer1"), []

    def report(partial):
        net.train()
        inside.append(grad_cam(net, images, 2, layer="layer1"))
        net.eval()

    e = explain("score_cam", net, images, 1, layer="layer2", progress=report)

    assert e.layer == "layer2" and e.target == [1] * len(images)
    for map in inside:
        torch.testing.assert_close(map, expected, rtol=0, atol=0)


def test_a_network_that_works_in_place_leaves_the_images_alone():
    """Two questions about the same images: the second must not see what the first did to them."""
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    images = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    before = images.clone()

    explain("grad_cam", net.eval(), images, 1, layer="1")

    assert torch.equal(images, before)


def test_a_caller_in_inference_mode_gets_ordinary_tensors_and_stays_in_it():
    net, images = residual(), pictures()
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


def test_a_network_in_training_mode_may_have_an_attribute_called_like_a_table_of_hooks():
    """As timm's backbones: `feature_hooks` is None where there are none."""
    net, images = residual(), pictures()
    expected = grad_cam(net, images, 1)
    net.feature_hooks, net.layer1.my_hooks = None, []

    torch.testing.assert_close(grad_cam(net.train(), images, 1), expected)
    assert net.training
