"""A KeyboardInterrupt at any instruction leaves no hook, no mode and no other state behind."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.checkpoint import CheckpointFunction

from explainers import capture, edit_gradients, edit_outputs, explain, grad_cam, list_layers, lrp, occlusion, saliency
from explainers.checks.fixtures import hook_counts
from explainers.errors import UnsupportedOperation
from explainers.findings import is_recording
from explainers.hooks.gradient_queue import queue_of_this_thread
from explainers.layers.profile import forget_profiles
from explainers.network.eval_view import eval_view
from tests.support.interrupts import interrupt
from tests.support.nets import random_images, residual


def layers_anew(net: nn.Module, x: torch.Tensor) -> None:
    forget_profiles(eval_view(net))
    list_layers(net, x)


def lrp_or_refusal(net: nn.Module, x: torch.Tensor) -> None:
    """Torch's own mode stack may fail in an interrupted `__exit__`, which LRP reports as its own error."""
    with contextlib.suppress(UnsupportedOperation):
        lrp(net, x, 1)


CALLS = {
    "saliency": lambda net, x: saliency(net, x, 1),
    "grad_cam": lambda net, x: grad_cam(net, x, 1, layer="layer2"),
    "explain": lambda net, x: explain("grad_cam", net, x, 1),
    "lrp": lrp_or_refusal,
    "list_layers": layers_anew,
    "occlusion in bfloat16": lambda net, x: occlusion(net, x, 1, window=8, stride=8, precision="bf16"),
}


def torch_state(net: nn.Module) -> list[Any]:
    return [
        hook_counts(net),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        _python_dispatch._is_in_torch_dispatch_mode,
        torch.is_autocast_enabled("cpu"),
        torch.get_rng_state().tolist(),
        "apply" in vars(CheckpointFunction),
        eval_view(net) is eval_view(net),  # inside a call
        is_recording(),
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupts inside `__del__`
@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, 13) for name in CALLS if name not in ("lrp", "list_layers")),
        *(pytest.param(name, 150, marks=pytest.mark.slow) for name in CALLS),
    ],
)
def test_the_callers_state_after_an_interrupt(name, count):
    net, x = residual().float(), random_images(1).float()
    call = CALLS[name]
    call(net, x)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            total = interrupt(lambda: call(net, x))
            for at in range(1, total + 1, max(1, total // count)):
                before = torch_state(net)
                interrupt(lambda: call(net, x), at)
                assert torch_state(net) == before, (at, mode)
            # Nothing changes later, when tracebacks and generators are freed.
            gc.collect()
            assert torch_state(net) == before, mode
    torch.testing.assert_close(saliency(net, x, 1), saliency(net, x, 1))


BLOCKS: dict[str, Callable[[nn.Module, nn.Parameter], AbstractContextManager[Any]]] = {
    "capture": lambda net, parameter: capture(net, ["layer1", "layer2"]),
    "edit_outputs": lambda net, parameter: edit_outputs(net, {"layer2": lambda output: output * 2}),
    "edit_gradients": lambda net, parameter: edit_gradients({parameter: lambda gradient: gradient * 2}),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BLOCKS)
def test_hooks_of_a_block_after_an_interrupt(name, step):
    net = residual()
    parameter = next(net.parameters())
    mine = parameter.register_hook(lambda gradient: None)
    files = ("/explainers/hooks/", "contextlib.py", "modules/module.py", "utils/hooks.py", "_tensor.py")

    def run() -> None:
        with BLOCKS[name](net, parameter):
            pass

    run()
    hooks = hook_counts(net)
    for at in range(1, interrupt(run, files=files) + 1, step):
        interrupt(run, at, files)
        assert hook_counts(net) == hooks, at
        assert list(parameter._backward_hooks) == [mine.id], at
        assert not queue_of_this_thread().edits, at
