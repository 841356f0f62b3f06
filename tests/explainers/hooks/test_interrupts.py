"""A call that is interrupted, in the network, in a backward pass or by its progress function, leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch
from torch.utils.checkpoint import CheckpointFunction

from explainers import explain, grad_cam, integrated_gradients, list_layers, lrp, occlusion, saliency
from explainers.call.current import eval_view
from explainers.checks.fixtures import hook_counts
from explainers.findings import is_recording
from tests.support.nets import random_images, residual

CALLS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "saliency": lambda net, x: saliency(net, x, 1),
    "grad_cam": lambda net, x: grad_cam(net, x, 1, layer="layer2"),
    "explain": lambda net, x: explain("grad_cam", net, x, 1),
    "lrp": lambda net, x: lrp(net, x, 1),
    "list_layers": lambda net, x: list_layers(net, x),
    "integrated_gradients": lambda net, x: integrated_gradients(net, x, 1, steps=3),
    "occlusion in bfloat16": lambda net, x: occlusion(net, x, 1, window=8, stride=8, precision="bf16"),
}


class Interrupts(nn.Module):
    """Raise KeyboardInterrupt in forward pass `at`, or in the backward pass of it."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__.update(passes=0, at=0, backward=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.__dict__["passes"] += 1
        if self.passes != self.at:
            return x
        if self.backward and x.requires_grad:
            x = x.clone()
            x.register_hook(interrupt)
        elif not self.backward:
            interrupt()
        return x


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


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


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", CALLS)
def test_the_callers_state_after_an_interrupt(name, mode):
    call, x, interrupted = CALLS[name], random_images(1).float(), 0
    for backward in (False, True):
        for at in (1, 2, 3, 5):
            net = residual().float()
            net.layer2.stop = stop = Interrupts()
            net.layer2.register_forward_hook(lambda module, inputs, output: module.stop(output))
            stop.__dict__.update(at=at, backward=backward)
            with mode():
                before = torch_state(net)
                try:
                    call(net, x)
                except KeyboardInterrupt:
                    interrupted += 1
                assert torch_state(net) == before, (at, backward)
            stop.__dict__.update(at=0)
            torch.testing.assert_close(saliency(net, x, 1), saliency(net, x, 1))
    assert interrupted


def test_the_callers_state_after_an_interrupt_by_the_progress_function():
    net, x = residual().float(), random_images(1).float()
    before = torch_state(net)
    with pytest.raises(KeyboardInterrupt):
        occlusion(net, x, 1, window=8, stride=8, progress=interrupt)
    assert torch_state(net) == before
