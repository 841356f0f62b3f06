"""Every method passes `check_explainer`; what only built-in methods promise: registry, units, options, partial maps.

The checks also cover, for every method, what other libraries do wrong: state that is changed or kept, targets, batches,
modes, precisions, wrappers, seeds, strides and threads. The broken explainers of test_checks.py repeat these faults.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.checkpoint import CheckpointFunction

import explainers
from explainers import METHODS, check_explainer, explain, grad_cam, occlusion, saliency
from explainers.call.current import eval_view
from explainers.checks.fixtures import failing
from explainers.findings import is_recording
from tests.support.calls import CLASSY, LONG, MAPS, NAMES, STOCHASTIC, call, small
from tests.support.nets import random_images, residual
from tests.support.traces import Marker, graphs_alive, nothing_left, tensors_alive

SAMPLE = {
    (method.family, method.long): name
    for name, method in reversed(METHODS.items())
    if name not in ("deep_feature_factorization", "deep_lift_shap", "smooth_grad_cam_pp")  # they take longest
}.values()
"""One method of each family and kind; `--slow` checks all methods."""
FEW = {"samples": 3, "steps": 3, "window": 8, "stride": 8}


@pytest.mark.parametrize("name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_every_method_passes_the_contract(name: str) -> None:
    few = {key: value for key, value in FEW.items() if key in METHODS[name].options}
    report = check_explainer(METHODS[name], **few)
    assert report, report
    skipped = {check.name for check in report.checks if check.passed is None}
    assert ("progress_and_stop" not in skipped) == ("batch_size" not in skipped) == METHODS[name].long
    assert ("layers" not in skipped) == METHODS[name].takes_layer


# The registry


def test_registry_entries_are_complete() -> None:
    for name, method in METHODS.items():
        assert method.name == name and all((method.title, method.summary, method.family)), name
        assert method.returns in ("grid", "pixels", "heat", "channels", "features"), name
        assert name in explainers.__all__ and getattr(explainers, name) is method.function, name
        for key, option in method.options.items():
            assert option.name == key and option.kind in ("int", "float", "bool", "choice", "text"), (name, key)
            option.check(option.default) if option.default is not None else None
        parameters, text = inspect.signature(method.function).parameters, inspect.getdoc(method.function) or ""
        assert parameters["forward"].default is None and parameters["through"].default is None, name
        assert all(part in text for part in ("Returns", "Source", "Errors", "`forward`", "`through`")), name


# Values


@pytest.mark.sample
@pytest.mark.parametrize("name", CLASSY)
def test_p19_values_are_in_the_targets_units(name: str) -> None:
    """A thousand times the head's weights give a thousand times the map (a million times for a product of two)."""
    net, images = residual(), random_images()
    first = call(name, net, images, 2)
    net.fc.weight.data *= 1000
    net.fc.bias.data *= 1000
    second = call(name, net, images, 2)
    if METHODS[name].scale_free:
        assert second.isfinite().all(), METHODS[name].scale_free
    elif name in ("grad_cam_pp", "smooth_grad_cam_pp", "shapley_cam", "sess"):
        assert second.max() > 2 * first.max(), "never scaled to a fixed range"
    else:
        squares = ("guided_grad_cam", "smooth_grad_squared", "var_grad")
        torch.testing.assert_close(second, first * (1e6 if name in squares else 1e3), rtol=1e-7, atol=1e-9)


@pytest.mark.sample
@pytest.mark.parametrize("name", MAPS)
def test_signed_methods_have_both_signs(name: str) -> None:
    """`signed` describes the default call: a final ReLU leaves one sign."""
    result = call(name, residual(), random_images(8))
    assert bool((result < 0).any()) == METHODS[name].signed


@pytest.mark.sample
@pytest.mark.parametrize("name", NAMES)
def test_p73_values_have_the_precision_of_float64(name: str) -> None:
    wide = call(name, residual(), random_images(), [2, 0, 5])
    drawn = name == "random_control"  # its values are drawn in float32, and nothing is computed from them
    assert wide.dtype == torch.float64 and (drawn or not torch.equal(wide, wide.float().double()))
    net, images = residual().bfloat16(), random_images().bfloat16()
    rounded = call(name, net, images, [2, 0, 5])
    assert rounded.dtype == torch.float32
    if name not in STOCHASTIC:
        found, full = [rounded], call(name, net.float(), images.float(), [2, 0, 5])
        for dtype in () if name == "extremal_perturbation" else (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype):
                found.append(call(name, net, images.float(), [2, 0, 5]))
        assert all(each.dtype == torch.float32 for each in found)
        for each in found:
            if name == "token_pca":  # rounding may turn the sign of a component, which is chosen
                each, full = each.abs(), full.abs()
            cosine = torch.nn.functional.cosine_similarity(each.flatten(), full.flatten(), dim=0)
            assert cosine > 0.97, "only the arithmetic differs: the weights and images are the same"


def test_the_default_dtype_does_not_change_the_result() -> None:
    expected = explainers.smooth_grad(residual(), random_images(), 1, samples=3)
    net, images = residual(), random_images()
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(explainers.smooth_grad(net, images, 1, samples=3), expected)
    finally:
        torch.set_default_dtype(torch.float32)


# Options that only built-in methods have


def test_options_outside_their_range_are_refused_by_name() -> None:
    net, images = residual(), random_images()
    for name in NAMES:
        for option in METHODS[name].options.values():
            below: Any = "x" if option.low is None else option.low - 1
            wrong = {"int": [below, 1.5, "many"], "float": [below, float("nan"), "much"], "bool": ["yes", 2]}
            for value in wrong.get(option.kind, ["no such choice"] if option.kind == "choice" else []):
                with pytest.raises((explainers.BadOption, TypeError), match=option.name):
                    METHODS[name](net, images, **(small(name) | {option.name: value}))


@pytest.mark.sample
@pytest.mark.parametrize("name", LONG)
def test_progress_carries_the_map_so_far(name: str) -> None:
    seen: list[explainers.Partial] = []
    net, images = residual(), random_images(1)
    result = call(name, net, images, 2, batch_size=2, progress=seen.append)
    assert len(seen) > 1 and seen[-1].fraction == 1 and all(0 < each.done <= each.total for each in seen)
    maps = [each.map for each in seen if each.map is not None]
    assert maps and all(each.shape == maps[-1].shape and not each.requires_grad for each in maps)
    assert METHODS[name].signed or all(bool((each >= 0).all()) for each in maps), "rectified as the last one"
    if METHODS[name].returns in ("pixels", "features"):
        result = explain(name, net, images, 2, **small(name)).map
    torch.testing.assert_close(maps[-1].flatten().double(), result.flatten().double())


# State and memory


def test_p14_two_models_at_once_share_no_state() -> None:
    nets, images = [residual(), residual(classes=4)], random_images(2)
    for net in nets:  # threads interleave as on a real network
        net.pause1.register_forward_hook(lambda *_: time.sleep(0.002))
    expected = [explainers.ablation_cam(net, images, 1) for net in nets]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda k: explainers.ablation_cam(nets[k % 2], images, 1), range(12)))
    assert all(torch.equal(each, expected[k % 2]) for k, each in enumerate(found))


RULED = {"deep_lift", "deep_lift_shap", "lrp", "attn_lrp", "cp_lrp"} | {
    "excitation_backprop", "guided_backprop", "deconvnet", "guided_grad_cam",
}  # fmt: skip
"""They have a rule for each operation and refuse unknown ones, as the marker is."""


def test_p03_p04_p05_no_graph_or_tensor_is_kept() -> None:
    """Neither after a call, nor by ordinary forward passes after it."""
    net, images = residual(), random_images()
    net.pause2 = Marker()
    for name in set(NAMES) - RULED:
        call(name, net, images)
    before = tensors_alive()
    for name in ("grad_cam", "rise", "full_grad", "eigen_cam"):
        call(name, net, images)
    net(images)
    with torch.no_grad():
        for _ in range(100):
            net(images[:, :, :4, :4])
    assert tensors_alive() == before and graphs_alive() == 0


def test_p04_gradient_free_methods_build_no_graph() -> None:
    class Watch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_grad_enabled() and not x.requires_grad
            return x

    net, images = residual(), random_images()
    net.pause2 = Watch()
    for name in ("occlusion", "ablation_cam", "channel_effects", "feature_maps"):
        call(name, net, images)


# Interrupts


CALLS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "saliency": lambda net, x: saliency(net, x, 1),
    "grad_cam": lambda net, x: grad_cam(net, x, 1, layer="layer2"),
    "explain": lambda net, x: explain("grad_cam", net, x, 1),
    "lrp": lambda net, x: explainers.lrp(net, x, 1),
    "list_layers": lambda net, x: explainers.list_layers(net, x),
    "integrated_gradients": lambda net, x: explainers.integrated_gradients(net, x, 1, steps=3),
    "occlusion in bfloat16": lambda net, x: occlusion(net, x, 1, window=8, stride=8, precision="bf16"),
}


def state_of_calls(net: nn.Module) -> list[object]:
    """What the library and torch know about calls in progress, besides what `nothing_left` compares."""
    return [
        torch._C._len_torch_dispatch_stack(),
        _python_dispatch._is_in_torch_dispatch_mode,
        "apply" in vars(CheckpointFunction),
        eval_view(net) is eval_view(net),  # inside a call
        is_recording(),
    ]


@pytest.mark.parametrize("name", CALLS)
def test_the_callers_state_after_an_interrupt(name: str) -> None:
    x, interrupted = random_images(1).float(), 0
    modes, expected = (torch.no_grad, torch.enable_grad, torch.inference_mode), saliency(residual().float(), x, 1)
    for mode, backward, passes in product(modes, (False, True), (0, 1, 3)):
        net = residual().float()
        before = state_of_calls(net)
        with mode(), failing(net, "layer2", KeyboardInterrupt(), passes, backward) as fault:
            with nothing_left(net, x), suppress(KeyboardInterrupt):
                CALLS[name](net, x)
        assert state_of_calls(net) == before, (mode, passes, backward)
        interrupted += fault.raised
        torch.testing.assert_close(saliency(net, x, 1), expected)
    assert interrupted
