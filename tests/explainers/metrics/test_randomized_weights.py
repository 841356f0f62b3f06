"""The weights that the randomization test changes: in which steps, and their new values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

from explainers import randomization_test
from explainers.layers.blocks.weights import weight_groups
from explainers.network.eval_view import eval_view
from explainers.network.randomized_copy import RandomizedCopy
from tests.support.nets import plain, random_images, settle


class Backwards(nn.Module):
    """Registered against the running order; the score does not use one head, one never runs; a token comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(8, 5)
        self.side = nn.Linear(8, 5)
        self.norm2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(6, 8, 3, padding=1)
        self.norm1, self.conv1 = nn.BatchNorm2d(6), nn.Conv2d(3, 6, 3, padding=1)
        self.token = nn.Parameter(torch.randn(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.conv1(x + self.token)).relu()
        x = self.norm2(self.conv2(x)).relu()
        features = nn.functional.max_pool2d(x, 4).mean((2, 3))
        self.side(features)
        return self.head(features)


class Ending(nn.Module):
    """Its last two layers are inside one skip connection, so they are one block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu().mean((2, 3))
        return x + self.last(self.first(x).relu())


class HeadInList(nn.Module):
    """A convolution whose scores are a product with a parameter in a list, or with a plain tensor."""

    def __init__(self, plain: bool = False) -> None:
        super().__init__()
        weight = torch.randn(3, 4)
        self.head = [weight] if plain else nn.ParameterList([nn.Parameter(weight)])
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.conv(x).relu().mean((2, 3)) @ self.head[0].T
        return scores


def normed() -> nn.Module:
    layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.utils.parametrizations.weight_norm(nn.Linear(24, 5)))


@pytest.mark.parametrize(
    ("create", "steps"),
    [
        (Backwards, ("head", "conv2 to norm2", "conv1 to norm1")),
        (Ending, ("last", "first", "conv")),
        (normed, ("4", "0")),
        (HeadInList, ("head", "conv")),
    ],
)
def test_steps_go_from_the_last_layer_that_the_score_uses_to_the_first(create, steps):
    """The last layer is separate in any block, and a parametrized layer is one step."""
    torch.manual_seed(0)
    net, images = create().eval(), random_images(1).float()
    for order, expected in (("cascade", steps), ("logit", steps[:1])):
        assert randomization_test(net, images, "saliency", order=order, seeds=1).steps == expected


def test_many_blocks_become_few_groups_and_the_last_layer_stays_separate():
    convs = [nn.Conv2d(3 if k == 0 else 4, 4, 3, 1 + (k == 6), 1) for k in range(14)]
    net = nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()

    groups = weight_groups(net, torch.randn(1, 3, 32, 32), 6)

    assert len(groups) == 6 and groups[-1].name == "16"
    assert sorted(int(name) for group in groups for name in group.modules) == [*range(14), 16]
    assert "5" not in next(group for group in groups if "6" in group.modules).modules, "resolutions stay apart"
    groups = weight_groups(settle(Backwards()), random_images(1).float(), 12)
    assert [set(group.modules) for group in groups] == [{"", "never", "conv1", "norm1"}, {"conv2", "norm2"}, {"head"}]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, FrozenBatchNorm2d])
def test_new_weights_by_hand(norm):
    net = Backwards()
    net.norm2 = norm(8)
    net = settle(net)
    net.norm2.running_var.fill_(4.0)
    copy, again = RandomizedCopy(eval_view(net)), RandomizedCopy(eval_view(net))
    modules = dict(copy.network.named_modules())

    copy.randomize(["conv2", "norm2", ""], seed=3)

    weight, norm2 = modules["conv2"].weight.detach(), modules["norm2"]
    assert abs(float(weight.std()) / math.sqrt(2 / 54) - 1) < 0.1 and abs(float(weight.mean())) < 0.02
    assert not modules["conv2"].bias.any() and not torch.equal(copy.network.token, net.token)
    for tensor, value in ((norm2.weight, 1), (norm2.bias, 0), (norm2.running_mean, 0), (norm2.running_var, 1)):
        assert torch.equal(tensor, torch.full_like(tensor, value))
    assert torch.equal(modules["conv1"].weight, net.conv1.weight) and modules["conv1"] is not net.conv1
    again.randomize(["conv2"], seed=3)
    assert torch.equal(again.network.conv2.weight, weight), "regardless of the other sampled weights"
    again.restore()
    again.randomize(["conv2", "head", "side"], seed=4)
    assert not torch.equal(again.network.conv2.weight, weight)
    assert not torch.equal(again.network.head.weight, again.network.side.weight), "layers of one shape differ"
    copy.restore()
    own = net.state_dict()
    assert all(torch.equal(each, own[name]) for name, each in copy.network.state_dict().items())


def test_parameters_without_an_initialization_keep_their_mean_and_spread():
    """Kaiming initialization is for weights; a token has no fan-in. Buffers that the copy writes are its own."""
    net = plain()
    net.token = nn.Parameter(3 + 0.01 * torch.randn(40, 50, dtype=torch.float64))
    net.register_buffer("calls", torch.zeros(2, dtype=torch.float64))
    copy = RandomizedCopy(eval_view(net))

    copy.randomize([""], seed=0)
    copy.network.calls += 5

    token = copy.network.token.detach()
    assert not torch.equal(token, net.token) and not net.calls.any()
    assert abs(float(token.mean()) - 3) < 0.01 and 0.009 < float(token.std()) < 0.011
    copy.restore()
    assert torch.equal(copy.network.token, net.token) and not copy.network.calls.any()


def test_a_shared_weight_is_sampled_once_for_all_its_layers():
    net = plain()
    net.conv2.bias = nn.Parameter(torch.randn(8, dtype=torch.float64))
    net.head = nn.Linear(8, 8).double()
    net.add_module("tied", nn.Linear(8, 8).double())
    net.tied.weight = net.head.weight
    copy = RandomizedCopy(eval_view(net.eval()))

    copy.randomize(["tied"], seed=0)
    drawn = copy.network.tied.weight
    copy.randomize(["head"], seed=0)

    assert copy.network.head.weight is copy.network.tied.weight is drawn and net.head.weight is net.tied.weight
    assert not torch.equal(drawn, net.head.weight)


@pytest.mark.parametrize("new", [True, False])
def test_a_spectral_norm_divides_by_the_new_weights_own(new: bool) -> None:
    """Otherwise forty layers overflow."""
    norm = nn.utils.parametrizations.spectral_norm if new else nn.utils.spectral_norm
    torch.manual_seed(0)
    layers = [nn.Sequential(norm(nn.Conv2d(3 if k == 0 else 6, 6, 3, padding=1)), nn.ReLU()) for k in range(3)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 5))
    for _ in range(5):
        net(random_images(1).float())
    copy = RandomizedCopy(eval_view(net.eval()))
    convolution = copy.network[0][0]
    trained = convolution(torch.zeros(1, 3, 8, 8)), convolution.weight.detach().flatten(1)

    copy.randomize([name for name, _ in copy.network.named_modules() if name.startswith("0.0")], 7)
    with torch.no_grad():
        convolution(torch.zeros(1, 3, 8, 8))  # a hook sets the weight in the forward pass

    drawn = convolution.weight.detach().flatten(1)
    assert not torch.equal(drawn, trained[1])
    assert float(torch.linalg.matrix_norm(drawn, 2)) == pytest.approx(1, abs=1e-3)
