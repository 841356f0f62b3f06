"""The fused copy for long methods: equal up to rounding, never stale; bfloat16, and compilation by torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from explainers import METHODS, BadOption, explain
from explainers.call.current import one_call
from explainers.call.fused_copy import DRIFT, FusedCopy, channels_last, fused_copy
from tests.support.nets import Written, random_images, rel, residual, settle

IMAGES = random_images().float()
CLASSES = [0, 1, 2]
LONG = (("integrated_gradients", {"steps": 8}), ("occlusion", {"window": 4}))


@pytest.fixture
def network() -> nn.Module:
    return residual().float()


def copy_of(net: nn.Module) -> FusedCopy | None:
    """The copy, whose scores are those of the network."""
    with one_call(net) as view:
        scores = net(IMAGES)
        made = fused_copy(view, IMAGES, scores)
        if made is not None:
            torch.testing.assert_close(made.network(channels_last(IMAGES)), net(IMAGES), rtol=1e-5, atol=1e-5)
    return made


def test_only_batch_norms_whose_convolution_nothing_else_reads_are_fused(network: nn.Module) -> None:
    norms = {name for name, module in network.named_modules() if isinstance(module, nn.BatchNorm2d)}
    assert {name for name in copy_of(network).fused if "bn" in name} == norms
    two_consumers = Written(
        lambda self, x: (self.norm(y := self.conv(x)) + y).mean((2, 3)), conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4)
    )
    assert copy_of(settle(two_consumers)).fused == frozenset()
    network.conv1.register_forward_hook(lambda module, given, output: output * 2)
    assert "conv1" not in copy_of(network).fused and "layer1.conv1" in copy_of(network).fused


def test_changed_weights_renew_the_copy(network: nn.Module) -> None:
    """`.data` does not change the version counter, but the comparison of scores detects it."""
    copy_of(network)
    for change in (
        lambda: network.layer1.bn1.weight.mul_(3),
        lambda: setattr(network, "fc", settle(nn.Linear(6, 7), seed=5)),
        lambda: network.layer1.bn1.weight.data.mul_(3),
    ):
        with torch.no_grad():
            change()
        assert copy_of(network) is not None


def test_a_network_with_other_scores_in_each_pass_has_no_copy() -> None:
    assert copy_of(Written(lambda self, x: self.net(x) * torch.rand(()), net=residual().float())) is None


@pytest.mark.parametrize(("name", "options"), LONG)
def test_long_methods_agree_with_the_original_network(network: nn.Module, name: str, options: dict[str, Any]) -> None:
    """Oracle: the same method in float64, which does not use a copy."""
    twin = residual()
    twin.load_state_dict(network.state_dict())
    expected = METHODS[name](twin.double(), IMAGES.double(), CLASSES, **options)
    exact = METHODS[name](network, IMAGES, CLASSES, **options)
    coarse = METHODS[name](network, IMAGES, CLASSES, precision="bf16", **options)
    assert rel(exact, expected) < DRIFT
    assert coarse.dtype == torch.float32 and 0 < rel(coarse, exact) < 0.1


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


def test_compilation_with_other_scores_or_without_effect_is_refused(network, monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", Compiler(1.1))
    for name, net, images, words in (
        ("rise", network, IMAGES, "differ from those of the network by more than rounding. Omit compile=True"),
        ("grad_cam", network, IMAGES, "compile=True has no effect"),
        ("rise", residual(), IMAGES.double(), "needs a network in float32 with a 2-d convolution"),
    ):
        with pytest.raises(BadOption, match=words):
            explain(name, net, images, compile=True, **({"samples": 20} if name == "rise" else {}))


@pytest.mark.slow
def test_the_compiler_of_torch(network: nn.Module) -> None:
    expected = explain("rise", network, IMAGES, samples=50)
    try:
        found = explain("rise", network, IMAGES, compile=True, samples=50)
    except BadOption as error:
        assert "torch cannot compile the network" in str(error)
        pytest.skip("no C++ compiler")
    torch.testing.assert_close(found.map, expected.map, rtol=1e-4, atol=1e-6)
    assert not any(module._compiled_call_impl for module in network.modules()), "the user's modules are not compiled"
