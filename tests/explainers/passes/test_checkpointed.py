"""Networks with checkpointed segments, besides the maps that `test_kinds.py` compares: layers, attention, threads.

`torch.utils.checkpoint` runs a segment without a graph, or without the hooks and rules of the pass; see
`explainers/hooks/checkpoints.py`.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

from explainers import (
    capture,
    edit_gradients,
    edit_inputs,
    edit_outputs,
    grad_cam,
    input_gradients,
    saliency,
)
from tests.support.calls import call
from tests.support.nets import random_images, settle
from tests.support.oracles.attention import two_blocks, wide_images

pytestmark = pytest.mark.sample


class Segments(nn.Module):
    """Three convolutional segments and a classifier; `reentrant` None runs them without checkpointing."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.segments = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, 8, 3, stride, 1), nn.BatchNorm2d(8), nn.ReLU())
            for a, stride in ((3, 2), (8, 1), (8, 1))
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for segment in self.segments:
            x = segment(x) if self.reentrant is None else checkpoint(segment, x, use_reentrant=self.reentrant)
        return self.head(x.mean((2, 3)))


class Tokens(nn.Module):
    """The transformer of the attention oracles in a single segment."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant, self.inner = reentrant, two_blocks()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if self.reentrant is None else checkpoint(self.inner, x, use_reentrant=self.reentrant)


def network(kind: type[nn.Module], reentrant: bool | None) -> nn.Module:
    return settle(kind(reentrant).double())


@pytest.mark.parametrize("reentrant", [False, True])
def test_attention_is_that_of_the_network_without_checkpoints(reentrant):
    """Identity: a checkpoint changes when activations are computed, never their values."""
    x = wide_images()
    for name in ("attention_rollout", "transformer_attribution", "attn_lrp"):
        expected, found = (call(name, network(Tokens, each), x, 1) for each in (None, reentrant))
        assert expected.any()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_layer_inside_a_segment_and_a_model_in_training_mode(reentrant):
    x, layer = random_images(1), "segments.1.0"
    expected = grad_cam(network(Segments, None), x, 1, layer=layer, relu=False)

    found = grad_cam(network(Segments, reentrant).train(), x, 1, layer=layer, relu=False)

    assert expected.any()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def own(net: nn.Module, x: Tensor) -> tuple[int, Tensor]:
    """How often a training step runs the first convolution, and the gradient of its weight."""
    ran = []
    hook = net.segments[0][0].register_forward_hook(lambda *_: ran.append(1))
    net(x).sum().backward()
    hook.remove()
    return len(ran), net.segments[0][0].weight.grad


@pytest.mark.parametrize("reentrant", [False, True])
def test_another_thread_trains_with_its_checkpoints_meanwhile(reentrant):
    """Its segments run twice, as in torch, although a call is in progress; then torch's functions are restored."""
    before = vars(checkpoints).copy(), checkpoints.CheckpointFunction.apply
    x, result = random_images(2).requires_grad_(), []

    class Busy(Segments):
        def forward(self, x: Tensor) -> Tensor:
            if threading.current_thread() is threading.main_thread():
                thread = threading.Thread(target=lambda: result.append(own(network(Segments, reentrant), count)))
                thread.start()
                thread.join()
            return super().forward(x)

    count = x
    saliency(settle(Busy(reentrant).double()), x.detach(), 1)

    runs, gradient = result[0]
    expected = own(network(Segments, None), x)[1]
    assert runs == 2
    torch.testing.assert_close(gradient, expected)
    assert "apply" not in vars(checkpoints.CheckpointFunction) and before[0] == vars(checkpoints)
    assert own(network(Segments, reentrant), x)[0] == 2


def test_torch_keeps_its_functions_after_a_failure():
    class Broken(Segments):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        saliency(Broken(True).double().eval(), random_images(1), 1)
    assert "apply" not in vars(checkpoints.CheckpointFunction)
    assert own(network(Segments, False), random_images(1))[0] == 2


def double(tensor: Tensor) -> Tensor:
    return 2 * tensor + 0.1


BLOCKS = {
    "edit_outputs": lambda net, layer: edit_outputs(net, {layer: double}),
    "edit_inputs": lambda net, layer: edit_inputs(net, {layer: double}),
    "edit_gradients": lambda net, layer: edit_gradients({(net, layer): double}),
    "capture": lambda net, layer: capture(net, layer, gradients=True),
    "input_gradients": lambda net, layer: input_gradients(net, layer),
}


@pytest.mark.parametrize("is_inside", [True, False], ids=["backward inside", "backward after"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("layer", ["segments.1", "segments.1.0"])
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_act_on_scores_and_gradients_as_without_checkpoints(block, layer, reentrant, is_inside):
    """A segment that runs again in a backward pass after the block would run without the edits."""

    def result(reentrant: bool | None) -> list[Tensor]:
        net, x = network(Segments, reentrant), random_images(2).requires_grad_()
        with BLOCKS[block](net, layer) as seen:
            scores = net(x)
            if is_inside:
                scores[:, 1].sum().backward()
        if not is_inside:
            scores[:, 1].sum().backward()
        found = [scores, x.grad, *(each.grad for each in net.parameters())]
        if block == "capture":
            found += [seen[layer], seen.inputs[layer], *seen.gradients.values()]
        if block == "input_gradients":
            found += [*seen.grad_input.values(), *seen.grad_output.values()]
        return found

    for found, expected in zip(result(reentrant), result(None), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
