"""Networks with checkpointed segments, besides the maps that `test_kinds.py` compares: layers, attention, threads.

`torch.utils.checkpoint` runs a segment without a graph, or without the hooks and rules of the pass; see
`explainers/hooks/checkpoints.py`.
"""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

from explainers import ExplainerError, saliency
from tests.explainers.hooks.test_blocks import LAYERS, recorded
from tests.support.calls import call
from tests.support.nets import random_images, settle
from tests.support.oracles.attention import two_blocks, wide_images

KINDS = pytest.mark.parametrize("reentrant", [False, True])


class Segments(nn.Module):
    """Checkpointed segments and a classifier; `reentrant` None runs them without checkpointing."""

    def __init__(self, reentrant: bool | None, segments: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.segments = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, 8, 3, stride, 1), nn.BatchNorm2d(8), nn.ReLU())
            for a, stride in ((3, 2), (8, 1), (8, 1))
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        if segments is not None:
            self.segments, self.head = nn.ModuleList(segments), nn.Identity()
        settle(self.double())

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments:
            x = segment(x) if self.reentrant is None else checkpoint(segment, x, use_reentrant=self.reentrant)
        return self.head(x)


@KINDS
def test_maps_and_attention_are_those_of_the_network_without_checkpoints(reentrant: bool) -> None:
    """Identity: a checkpoint changes when activations are computed, never their values."""
    tokens = lambda kind: Segments(kind, [two_blocks()])  # noqa: E731
    inside = {"layer": "segments.1.0", "relu": False}
    for name, make, x, options in (
        ("attention_rollout", tokens, wide_images(), {}),
        ("transformer_attribution", tokens, wide_images(), {}),
        ("attn_lrp", tokens, wide_images(), {}),
        ("grad_cam", lambda kind: Segments(kind).train(kind is not None), random_images(1), inside),
    ):
        expected, found = (call(name, make(each), x, 1, **options) for each in (None, reentrant))
        assert expected.any(), name
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


class OnlyWithGradients(Segments):
    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments:
            x = checkpoint(segment, x, use_reentrant=self.reentrant) if torch.is_grad_enabled() else segment(x)
        return self.head(x)


@KINDS
def test_checkpoints_that_earlier_calls_have_not_run(reentrant: bool) -> None:
    """Calls without gradients, and a call that fails, say nothing about a call with them."""
    net, x, inside = OnlyWithGradients(reentrant), random_images(1), {"layer": "segments.1.0"}
    for _ in range(2):
        call("occlusion", net, x, 1, window=8, stride=8)
    with pytest.raises(ExplainerError):
        saliency(net, x, 99)
    for name, options in (("saliency", {}), ("lrp", {}), ("grad_cam", inside)):
        expected = call(name, Segments(None), x, 1, **options)
        torch.testing.assert_close(call(name, net, x, 1, **options), expected, rtol=1e-9, atol=1e-12)


def training_step(reentrant: bool | None, x: Tensor) -> tuple[int, Tensor]:
    """How often a training step runs the first convolution, and the gradient of its weight."""
    net, ran = Segments(reentrant), []
    first: Any = net.segments[0][0]
    first.register_forward_hook(lambda *_: ran.append(1))
    net(x).sum().backward()
    return len(ran), first.weight.grad


@KINDS
def test_another_thread_trains_with_its_checkpoints_meanwhile(reentrant: bool) -> None:
    """Its segments run twice, as in torch, although a call is in progress; then torch's functions are restored."""
    before, x, found = vars(checkpoints).copy(), random_images(2).requires_grad_(), []

    class Busy(Segments):
        def forward(self, images: Tensor) -> Tensor:
            if threading.current_thread() is threading.main_thread():
                thread = threading.Thread(target=lambda: found.append(training_step(reentrant, x)))
                thread.start()
                thread.join()
            return super().forward(images)

    saliency(Busy(reentrant), x.detach(), 1)

    runs, gradient = found[0]
    assert runs == 2 == training_step(reentrant, x)[0]
    torch.testing.assert_close(gradient, training_step(None, x)[1])
    assert "apply" not in vars(checkpoints.CheckpointFunction) and before == vars(checkpoints)


@pytest.mark.parametrize("block", LAYERS)
def test_blocks_act_on_scores_and_gradients_as_without_checkpoints(block: str) -> None:
    """A segment that runs again in a backward pass after the block would run without the edits."""

    def result(reentrant: bool | None, layer: str, is_inside: bool) -> list[Tensor]:
        net, x = Segments(reentrant), random_images(2).requires_grad_()
        with LAYERS[block](net, [layer]) as seen:
            scores = net(x)
            if is_inside:
                scores[:, 1].sum().backward()
        if not is_inside:
            scores[:, 1].sum().backward()
        return [scores, x.grad, *(each.grad for each in net.parameters()), *recorded(seen)]

    for layer, is_inside in product(("segments.1", "segments.1.0"), (True, False)):
        expected = result(None, layer, is_inside)
        for reentrant in (False, True):
            torch.testing.assert_close(result(reentrant, layer, is_inside), expected, rtol=1e-9, atol=1e-12)
