"""What all blocks with hooks guarantee: no side effects however they end, other threads, memory, wrapped models."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
import torch
from torch import nn

import explainers
from explainers import LayerNotFound, UnsupportedModel
from tests.support.nets import curved, random_images, residual
from tests.support.traces import Marker, graphs_alive, nothing_left

Block = Callable[[nn.Module], AbstractContextManager[Any]]

LAYERS: dict[str, Callable[[nn.Module, list[str]], AbstractContextManager[Any]]] = {
    "capture": lambda net, layers: explainers.capture(net, layers),
    "capture gradients": lambda net, layers: explainers.capture(net, layers, gradients=True),
    "edit_outputs": lambda net, layers: explainers.edit_outputs(net, dict.fromkeys(layers, lambda y: y * 2)),
    "edit_inputs": lambda net, layers: explainers.edit_inputs(net, dict.fromkeys(layers, lambda x: x * 2)),
    "edit_gradients": lambda net, layers: explainers.edit_gradients(
        {(net, layer): lambda g: g * 2 for layer in layers}
    ),
    "input_gradients": lambda net, layers: explainers.input_gradients(net, layers),
    "record activations": lambda net, layers: explainers.record_gradients(net, activations=layers, histograms=4),
}
"""Blocks on layers."""
BLOCKS: dict[str, Block] = {
    **{name: lambda net, make=make: make(net, ["layer1", "layer2"]) for name, make in LAYERS.items()},  # type: ignore[misc]
    "clip value": lambda net: explainers.clip_gradients(net, value=0.1),
    "clip norm": lambda net: explainers.clip_gradients(net, norm=0.1),
    "scale": lambda net: explainers.scale_gradients(net, {"*": 3}),
    "freeze": lambda net: explainers.freeze(net, "layer?.*"),
    "replace": lambda net: explainers.replace_gradient(next(net.parameters()), lambda g: g * 2),
    "noise": lambda net: explainers.add_gradient_noise(net.parameters(), std=0.1),
}
each_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)


def step(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The scores and gradients of a training step."""
    net.zero_grad()
    x = x.clone().requires_grad_()
    scores = net(x)
    scores[:, 1].sum().backward()
    assert x.grad is not None
    found = [scores.detach(), x.grad, *(p.grad.clone() for p in net.parameters() if p.grad is not None)]
    net.zero_grad()
    return found


def recorded(seen: Any) -> list[torch.Tensor]:
    """The tensors that a block has recorded, and the rows of a log."""
    tables = [getattr(seen, name, {}) for name in ("outputs", "inputs", "gradients", "grad_input", "grad_output")]
    rows = [torch.tensor([*row.statistics.values(), *(row.histogram or ())]) for row in getattr(seen, "rows", ())]
    return [tensor for table in tables for tensor in table.values()] + rows


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(map(torch.equal, one, two))


@each_block
def test_nothing_is_left_however_a_block_ends(block: Block) -> None:
    net, x, ended = residual(), random_images(), []
    expected = step(net, x)
    for end in ("nothing fails", "the forward fails", "the backward fails", "an interrupt"):

        def fail(_: object, end: str = end) -> None:
            raise RuntimeError(end)

        with nothing_left(net, x):
            with suppress(RuntimeError, KeyboardInterrupt), block(net):
                if end == "an interrupt":
                    raise KeyboardInterrupt
                with explainers.edit_outputs(net, {"fc": fail} if end == "the forward fails" else {}):
                    loss = net(x)[:, 1].sum()
                with explainers.edit_gradients({net.layer1.conv1.weight: fail} if end == "the backward fails" else {}):
                    loss.backward()
                ended.append(end)
            net.zero_grad()
        assert equal(step(net, x), expected), end
    assert ended == ["nothing fails"]


@each_block
def test_a_training_step_of_another_thread_is_not_affected(block: Block) -> None:
    net, x = residual(), random_images()
    expected, found = step(net, x), []
    with block(net) as seen:
        thread = threading.Thread(target=lambda: found.append(step(net, x)))
        thread.start()
        thread.join()
        assert not recorded(seen), "nothing of it is recorded"
    assert equal(found[0], expected)


@each_block
def test_neither_a_graph_nor_the_model_stays_alive(block: Block) -> None:
    net, x = residual(), random_images()
    net.pause2 = Marker()
    with block(net) as seen:
        step(net, x)
        net(x.clone().requires_grad_())  # a graph without a backward pass
    assert graphs_alive() == 0
    net(x)
    assert graphs_alive() == 0
    del seen
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


@each_block
def test_a_wrapped_model_is_unwrapped(block: Block) -> None:
    found = []
    for wrap in (lambda net: net, lambda net: torch.compile(net, backend="eager"), nn.DataParallel):
        net = residual()
        model: Any = wrap(net)
        model(random_images())  # compiled code does not see hooks that are registered later
        with nothing_left(net), block(model) as seen:
            found.append((step(model, random_images()), list(getattr(seen, "outputs", ()))))
    (plain, names), *others = found
    for wrapped, also_names in others:
        assert equal(plain, wrapped)
        assert names == also_names, "names have no prefix"


def test_an_unknown_layer_is_refused_and_leaves_no_hook() -> None:
    net = residual()
    for make in LAYERS.values():
        with nothing_left(net), pytest.raises(LayerNotFound, match="layre1.*'layer1'"), make(net, ["conv1", "layre1"]):
            raise AssertionError("never entered")


def test_models_whose_layers_never_run_hooks_are_refused() -> None:
    net, x = residual(), random_images()
    traced, exported = torch.jit.trace(net, x), torch.export.export(net, (x,)).module()
    for make in LAYERS.values():
        for model, kind in ((traced, "traced.*saliency"), (exported, "exported")):
            with pytest.raises(UnsupportedModel, match=kind), make(model, ["layer1"]):
                raise AssertionError("never entered")
    with pytest.raises(UnsupportedModel, match="scripted"), explainers.capture(torch.jit.script(curved()), "conv2"):
        raise AssertionError("never entered")
