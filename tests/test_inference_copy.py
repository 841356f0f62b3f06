"""The private copy of long methods: right to rounding, never stale, never in the user's way."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from nets import pictures, residual, settle
from torch import Tensor, nn

import explainers
from explainers.inference_copy import DRIFT, channels_last, inference_copy


def network() -> nn.Module:
    return settle(residual()).float()


def images() -> Tensor:
    return pictures().float()


def copy_of(net: nn.Module, x: Tensor) -> explainers.inference_copy.InferenceCopy | None:
    with torch.no_grad():
        return inference_copy(net, net, x, net(x))


def test_batch_norms_are_folded_and_the_scores_stay():
    net, x = network(), images()
    made = copy_of(net, x)

    assert {name for name in made.folded if "bn" in name} == {
        name for name, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)
    }
    with torch.no_grad():
        torch.testing.assert_close(made.network(channels_last(x)), net(x), rtol=1e-5, atol=1e-5)


def test_a_convolution_that_is_read_twice_keeps_its_norm():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return self.head((self.norm(y) + y).mean((2, 3)))

    net = settle(Shared())
    assert copy_of(net, images()).folded == frozenset()


def test_a_norm_whose_input_is_not_a_convolutions_stays():
    net = settle(
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        )
    )
    assert copy_of(net, images()).folded == frozenset()


@pytest.mark.parametrize("how", ["in place", "behind autograd's back", "another module"])
def test_changed_weights_are_seen(how):
    """`.data` changes no version counter: then the comparison of the scores finds out."""
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


def test_the_copy_is_kept_and_forgotten_with_the_model():
    net, x = network(), images()
    made = copy_of(net, x)
    assert copy_of(net, x) is made
    gone = weakref.ref(made.network)
    del net, made
    gc.collect()

    assert gone() is None


def test_a_network_that_cannot_be_copied_runs_itself():
    class Odd(nn.Module):
        """Its second forward says something else, so no copy agrees with it."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.calls = nn.Conv2d(3, 4, 3), [0]

        def forward(self, x: Tensor) -> Tensor:
            self.calls[0] += 1
            return self.conv(x).mean((2, 3)) * self.calls[0]

    assert copy_of(Odd(), images()) is None


def test_users_hooks_on_a_convolution_keep_it_as_it_is():
    net, x = network(), images()
    net.conv1.register_forward_hook(lambda module, given, output: output * 2)
    made = copy_of(net, x)

    assert "conv1" not in made.folded and "layer1.conv1" in made.folded
    with torch.no_grad():
        torch.testing.assert_close(made.network(channels_last(x)), net(x), rtol=1e-5, atol=1e-5)


def test_the_users_modules_are_not_touched():
    net, x = network(), images()
    before = {name: (id(t), t.clone(), t.stride()) for name, t in net.state_dict(keep_vars=True).items()}
    kinds = [type(m) for m in net.modules()]
    copy_of(net, x)

    for name, tensor in net.state_dict(keep_vars=True).items():
        assert id(tensor) == before[name][0] and torch.equal(tensor, before[name][1])
        assert tensor.stride() == before[name][2]
    assert [type(m) for m in net.modules()] == kinds


@pytest.mark.parametrize(("name", "options"), [("integrated_gradients", {"steps": 8}), ("occlusion", {"window": 4})])
def test_long_methods_give_what_the_network_itself_gives(name, options):
    """Oracle: the same method in float64, where no copy is made."""
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
def test_bfloat16_is_near_and_not_the_same(name, options):
    net, x = network(), images()
    method = explainers.METHODS[name]
    exact = method(net, x, [0, 1, 2], **options)

    coarse = method(net, x, [0, 1, 2], precision="bf16", **options)

    drift = float((coarse - exact).norm() / exact.norm())
    assert coarse.dtype == torch.float32 and 0 < drift < 0.1
