"""The fused copy for long methods: equal up to rounding, never stale; bfloat16, and compilation by torch."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from explainers import METHODS, BadOption, capture, explain
from tests.support.kinds import Ends
from tests.support.nets import random_images, rel, residual, settle

IMAGES = random_images().float()
CLASSES = [0, 1, 2]


@pytest.fixture
def network() -> nn.Module:
    return residual().float()


CHANGES: dict[str, Callable[[Any], object]] = {
    "none": lambda net: None,
    "hook": lambda net: net.conv1.register_forward_hook(lambda module, given, output: output * 2),
    "weights": lambda net: net.layer1.bn1.weight.detach().mul_(3),
    "layer": lambda net: setattr(net, "fc", settle(nn.Linear(6, 7), seed=5)),
    "data": lambda net: net.layer1.bn1.weight.data.mul_(3),  # it does not change the version counter
}


@pytest.mark.parametrize("change", CHANGES)
def test_long_methods_agree_with_the_original_network(network: nn.Module, change: str) -> None:
    """Oracle: the same method in float64, which does not use a copy. An earlier call has made a copy."""
    for name, options in (("integrated_gradients", {"steps": 8}), ("occlusion", {"window": 4})):
        METHODS[name](network, IMAGES, CLASSES, **options)
        CHANGES[change](network)
        expected = METHODS[name](copy.deepcopy(network).double(), IMAGES.double(), CLASSES, **options)
        exact = METHODS[name](network, IMAGES, CLASSES, **options)
        coarse = METHODS[name](network, IMAGES, CLASSES, precision="bf16", **options)
        assert rel(exact, expected) < 1e-4
        assert coarse.dtype == torch.float32 and 0 < rel(coarse, exact) < 0.1


class Limited(nn.Module):
    """A network with limits of its values that the image itself does not reach."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv, self.head, self.top, self.tops = nn.Conv2d(3, 6, 3, 2), nn.Linear(6, classes), 1e9, torch.ones(6)
        self.head.weight.data.mul_(1e-4)
        self.head.bias.data.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(x).relu().clamp(max=self.top).minimum(1e9 * self.tops[:, None, None]).mean((2, 3)))


def limit(net: Limited) -> float:
    return float(net.conv(IMAGES[:1]).max())


def clamped(top: float) -> Callable[..., torch.Tensor]:
    return lambda module, given, output: output.clamp(max=top)


LATER: dict[str, Callable[[Limited], object]] = {
    "attribute": lambda net: setattr(net, "top", limit(net)),
    "tensor": lambda net: setattr(net, "tops", net.tops * limit(net) * 1e-9),
    "hook": lambda net: net.conv.register_forward_hook(clamped(limit(net))),
    "data": lambda net: net.conv.weight.data.neg_(),
}


@pytest.mark.parametrize("change", LATER)
def test_an_earlier_copy_is_not_used_if_only_changed_images_show_the_change(change: str) -> None:
    """Oracle: a new network, of which no copy is kept."""
    torch.manual_seed(0)
    net, options = Limited(1).eval(), {"window": 4, "baseline": 5.0}
    METHODS["occlusion"](net, IMAGES[:1], 0, **options)
    LATER[change](net)
    expected = METHODS["occlusion"](copy.deepcopy(net), IMAGES[:1], 0, **options)
    assert rel(METHODS["occlusion"](net, IMAGES[:1], 0, **options), expected) < 1e-5


def test_a_hook_that_was_removed_does_not_run(network: nn.Module) -> None:
    seen: list[int] = []
    handle = network.conv1.register_forward_hook(lambda *_: seen.append(1))  # type: ignore[union-attr, operator]
    METHODS["occlusion"](network, IMAGES, CLASSES, window=4)
    assert seen
    handle.remove()
    seen.clear()
    METHODS["occlusion"](network, IMAGES, CLASSES, window=4)
    assert not seen


def test_hooks_of_another_thread_are_not_copied(network: nn.Module) -> None:
    other, inside, leave = copy.deepcopy(network), threading.Event(), threading.Event()
    expected = METHODS["occlusion"](other, IMAGES, CLASSES, window=4)

    def record() -> None:
        with capture(network, ["conv1", "layer1"]):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=record)
    thread.start()
    inside.wait(30)
    found = METHODS["occlusion"](network, IMAGES, CLASSES, window=4)
    leave.set()
    thread.join()
    assert torch.equal(found, expected)
    assert torch.equal(METHODS["occlusion"](network, IMAGES, CLASSES, window=4), expected)


# precision="auto"


@pytest.mark.parametrize(("is_faster", "chosen"), [(True, "bf16"), (False, "float32")])
def test_auto_is_bfloat16_if_the_device_computes_it_faster(network, is_faster, chosen, monkeypatch) -> None:
    """Identity: the map is that of the precision chosen, and the resolved options say which."""
    monkeypatch.setattr("explainers.call.scores.computes_bf16", lambda device: is_faster)
    for name, options in (("ss_cam", {"samples": 1, "layer": "layer2"}), ("sess", {"scales": 2, "layer": "layer2"})):
        found, exact, coarse = (
            explain(name, network, IMAGES, CLASSES, precision=each, **options) for each in ("auto", "float32", "bf16")
        )
        assert found.options["precision"] == chosen and exact.options["precision"] == "float32"
        assert torch.equal(found.map, (coarse if is_faster else exact).map) and not torch.equal(exact.map, coarse.map)
    wide = explain("ss_cam", network.double(), IMAGES.double(), 1, samples=1, precision="auto")
    assert wide.options["precision"] == "float32", "there is no copy in float64"


def test_an_operation_without_bfloat16_falls_back_or_is_refused(monkeypatch) -> None:
    """`index_add_` refuses tensors of two types."""
    net = Ends(lambda net, maps: net.head(torch.zeros(maps.shape).index_add_(1, torch.arange(8), maps).mean((2, 3))))
    monkeypatch.setattr("explainers.call.scores.computes_bf16", lambda device: True)
    found, expected = (METHODS["sess"](net, IMAGES, 1, scales=2, precision=each) for each in ("auto", "float32"))
    assert rel(found, expected) < 1e-6
    with pytest.raises(BadOption, match="does not run in bfloat16.*index_add_"):
        METHODS["rise"](net, IMAGES, 1, samples=4, precision="bf16")


# compile=True


class Compiler:
    """A replacement of `torch.compile` that records networks and shapes of batches and multiplies the output."""

    def __init__(self, factor: float = 1.0) -> None:
        self.networks, self.shapes, self.factor = list[nn.Module](), set[tuple[int, ...]](), factor

    def __call__(self, network: nn.Module, **options: Any) -> Any:
        self.networks.append(network)
        return lambda batch: (self.shapes.add(tuple(batch.shape)), self.factor * network(batch))[1]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rise", {"samples": 50, "batch_size": 32}),
        ("occlusion", {"batch_size": 32}),
        ("score_cam", {"layer": "layer2"}),
    ],
)
def test_a_compiled_copy_gives_the_same_map_with_one_compilation(network, monkeypatch, name, options) -> None:
    """Smaller batches are padded, so that torch does not compile again."""
    monkeypatch.setattr(torch, "compile", compiler := Compiler())
    expected = explain(name, network, IMAGES, **options)
    assert not compiler.networks
    for _ in range(2):
        found = explain(name, network, IMAGES, compile=True, **options)
        torch.testing.assert_close(found.map, expected.map, rtol=1e-4, atol=1e-6)
    assert len(compiler.networks) == len(compiler.shapes) == 1
    norms = [module for module in compiler.networks[0].modules() if isinstance(module, nn.BatchNorm2d)]
    assert not norms, "each is a part of the convolution before it"


def test_compilation_with_other_scores_or_without_effect_is_refused(network, monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", Compiler(1.1))
    for name, net, images, words in (
        ("rise", network, IMAGES, "differ from those of the network by more than rounding. Omit compile=True"),
        ("grad_cam", network, IMAGES, "compile=True has no effect"),
        ("rise", residual(), IMAGES.double(), "needs a network in float32 with a 2-d convolution"),
    ):
        with pytest.raises(BadOption, match=words):
            explain(name, net, images, compile=True, **({"samples": 20} if name == "rise" else {}))
