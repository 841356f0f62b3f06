"""The fused copy for long methods: equal up to rounding, never stale, the user's model unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers.network.fast.fused_copy import DRIFT, channels_last, fused_copy
from tests.support.nets import random_images, residual, settle


def network() -> nn.Module:
    return settle(residual()).float()


def images() -> Tensor:
    return random_images().float()


def copy_of(net: nn.Module, x: Tensor) -> explainers.network.fast.fused_copy.FusedCopy | None:
    with torch.no_grad():
        return fused_copy(net, net, x, net(x))


def test_batch_norms_are_fused_and_scores_unchanged():
    net, x = network(), images()
    made = copy_of(net, x)

    assert {name for name in made.fused if "bn" in name} == {
        name for name, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)
    }
    with torch.no_grad():
        torch.testing.assert_close(made.network(channels_last(x)), net(x), rtol=1e-5, atol=1e-5)


def test_a_convolution_with_two_consumers_is_not_fused():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.head((self.norm(y) + y).mean((2, 3)))

    net = settle(Shared())
    assert copy_of(net, images()).fused == frozenset()


@pytest.mark.parametrize("how", ["in place", "behind autograd's back", "another module"])
def test_changed_weights_renew_the_copy(how):
    """`.data` does not change the version counter, but the comparison of scores detects it."""
    net, x = network(), images()
    copy_of(net, x)
    with torch.no_grad():
        if how == "in place":
            net.layer1.bn1.weight.mul_(3)
        elif how == "another module":
            net.fc = settle(nn.Linear(6, 7), seed=5)
        else:
            net.layer1.bn1.weight.data.mul_(3)
        expected = net(x)
        made = copy_of(net, x)
        torch.testing.assert_close(made.network(channels_last(x)), expected, rtol=1e-5, atol=1e-5)


def test_a_nondeterministic_network_has_no_copy():
    class Odd(nn.Module):
        """Every forward pass returns different scores, so no copy can agree."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.calls = nn.Conv2d(3, 4, 3), [0]

        def forward(self, x: Tensor) -> Tensor:
            self.calls[0] += 1
            return self.conv(x).mean((2, 3)) * self.calls[0]

    assert copy_of(Odd(), images()) is None


def test_a_convolution_with_user_hooks_is_not_fused():
    net, x = network(), images()
    net.conv1.register_forward_hook(lambda module, given, output: output * 2)
    made = copy_of(net, x)

    assert "conv1" not in made.fused and "layer1.conv1" in made.fused
    with torch.no_grad():
        torch.testing.assert_close(made.network(channels_last(x)), net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), [("integrated_gradients", {"steps": 8}), ("occlusion", {"window": 4})])
def test_long_methods_agree_with_the_original_network(name, options):
    """Oracle: the same method in float64, which does not use a copy."""
    net, x = network(), images()
    method = explainers.METHODS[name]
    expected = method(residual_like(net), x.double(), [0, 1, 2], **options)

    actual = method(net, x, [0, 1, 2], **options)

    assert float((actual.double() - expected).norm() / expected.norm()) < DRIFT


def residual_like(net: nn.Module) -> nn.Module:
    twin = residual()
    twin.load_state_dict(net.state_dict())
    return twin.double()


@pytest.mark.parametrize(("name", "options"), [("integrated_gradients", {"steps": 8}), ("occlusion", {"window": 4})])
def test_bfloat16_differs_within_tolerance(name, options):
    net, x = network(), images()
    method = explainers.METHODS[name]
    exact = method(net, x, [0, 1, 2], **options)

    coarse = method(net, x, [0, 1, 2], precision="bf16", **options)

    drift = float((coarse - exact).norm() / exact.norm())
    assert coarse.dtype == torch.float32 and 0 < drift < 0.1


# precision="auto"


@pytest.mark.parametrize(("is_faster", "chosen"), [(True, "bf16"), (False, "float32")])
def test_auto_is_bfloat16_if_the_device_computes_it_faster(is_faster, chosen, monkeypatch):
    """Identity: the map is that of the precision chosen, and the resolved options say which."""
    monkeypatch.setattr("explainers.passes.scoring.computes_bf16", lambda device: is_faster)
    net, x = network(), images()
    for name, options in (("ss_cam", {"samples": 1, "layer": "layer2"}), ("sess", {"scales": 2, "layer": "layer2"})):
        found = explainers.explain(name, net, x, [0, 1, 2], precision="auto", **options)
        assert found.options["precision"] == chosen
        exact, coarse = (
            explainers.explain(name, net, x, [0, 1, 2], precision=each, **options) for each in ("float32", "bf16")
        )
        assert torch.equal(found.map, (coarse if chosen == "bf16" else exact).map)
        assert not torch.equal(exact.map, coarse.map) and exact.options["precision"] == "float32"


def test_auto_is_float32_without_a_copy(monkeypatch):
    monkeypatch.setattr("explainers.passes.scoring.computes_bf16", lambda device: True)
    net, x = network().double(), images().double()
    found = explainers.explain("ss_cam", net, x, 1, samples=1, precision="auto")
    assert found.options["precision"] == "float32"


def test_only_rank_preserving_methods_accept_auto():
    offered = {name for name, each in explainers.METHODS.items() if "auto" in _precisions(each)}
    assert offered == {"ss_cam", "sess"}
    with pytest.raises(explainers.BadOption, match="precision"):
        explainers.integrated_gradients(network(), images(), 1, precision="auto")
    defaults = {each.options["precision"].default for each in explainers.METHODS.values() if _precisions(each)}
    assert defaults == {"float32"}, "the precision only changes on request"


def _precisions(method):
    return method.options["precision"].choices if "precision" in method.options else ()
