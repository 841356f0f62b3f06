"""The randomization test: which weights it changes and how, that the user's model does not change, and its verdicts."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d

import explainers
from explainers import BadOption, BadTarget, Randomization, UnsupportedModel, randomization_test, unit
from explainers.blocks.weights import weight_groups
from explainers.call.current import eval_view
from explainers.maps.resize import rank_correlation, ssim
from explainers.metrics.randomized_copy import RandomizedCopy
from tests.support.nets import Written, plain, random_images, residual, settle
from tests.support.traces import nothing_left


def changed(net: nn.Module, copy: nn.Module) -> set[str]:
    """The parameters in which a copy differs from the network."""
    own = dict(net.named_parameters())
    return {name.rpartition(".")[0] for name, each in copy.named_parameters() if not torch.equal(each, own[name])}


@pytest.mark.parametrize("order", ["cascade", "independent", "logit"])
def test_which_weights_are_randomized_at_each_step(order):
    net, images, seen = plain(), random_images(2), []

    def method(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        seen.append(changed(net, model))
        return x.abs().sum(1)

    result = randomization_test(net, images, method, order=order, seeds=2)

    alone = [{"head"}, {"conv2"}, {"conv1"}]
    steps = {"cascade": [{"head"}, {"head", "conv2"}, {"head", "conv2", "conv1"}], "independent": alone}
    expected = steps.get(order, alone[:1])
    assert seen == [set(), *expected, *expected]
    assert result.steps == ("head", "conv2", "conv1")[: len(expected)]
    assert torch.equal(result.signed, torch.ones(len(expected), 2, dtype=torch.float64)) and result.passes is False


def test_the_map_of_a_linear_model_is_its_new_weights():
    """d score / d x is the row of the class, so the correlations are those of the rows, before and after."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4, bias=False)).double().eval()
    images = random_images(2, 3, 8, 8)

    result = randomization_test(net, images, "saliency", target=[1, 3], seeds=1, seed=5, reduce="sum")

    copy = RandomizedCopy(eval_view(net))
    copy.randomize(["1"], seed=5)
    old, new = (each.view(4, 3, 8, 8)[[1, 3]].sum(1) for each in (net[1].weight, copy.network[1].weight))
    assert torch.equal(result.signed, rank_correlation(old, new)[None])
    assert torch.equal(result.magnitude, rank_correlation(old.abs(), new.abs())[None])
    torch.testing.assert_close(result.ssim, ssim(old.abs(), new.abs())[None])
    assert result.by_size and result.correlation is result.magnitude


def test_results_are_means_over_the_seeds_and_separate_for_each_image():
    net, images = residual(), random_images(3)

    result = randomization_test(net, images, "saliency", seeds=2, seed=7)

    singles = [randomization_test(net, images, "saliency", seeds=1, seed=7 + s) for s in range(2)]
    torch.testing.assert_close(result.magnitude, sum(each.magnitude for each in singles) / 2)
    assert not torch.equal(singles[0].magnitude, singles[1].magnitude)
    one = randomization_test(net, images[1:2], "saliency", seeds=2, seed=7)
    torch.testing.assert_close(one.magnitude, result[1].magnitude, rtol=1e-9, atol=1e-9)
    assert len(result[1]) == 1 and result[1].target == [result.target[1]]
    assert len([*result]) == 3 and len(result[0:2]) == 2 and result[-1].target == result.target[2:]
    with pytest.raises(IndexError):
        result[3]
    rows = result.to_rows()
    assert len(rows) == 3 * len(result.steps) and rows[-1]["magnitude"] == float(result.magnitude[-1, 2])


def test_class_and_layer_stay_those_of_the_trained_network():
    net, images, asked = plain(), random_images(3), []

    def method(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        asked.append((target.tolist(), model(x).argmax(1).tolist()))
        return torch.autograd.grad(model(x.requires_grad_()).sum(), x)[0]

    result = randomization_test(net, images, method)
    cams = [randomization_test(net, images, "grad_cam", layer=layer) for layer in (None, "relu2", net.relu2)]

    own = net(images).argmax(1).tolist()
    assert all(target == own for target, _ in asked) and any(top != own for _, top in asked)
    assert result.by_size and result.target == own
    assert [each.layer for each in cams] == ["relu2"] * 3
    assert torch.equal(cams[0].signed.nan_to_num(9), cams[2].signed.nan_to_num(9)) and not cams[0].by_size


def test_progress_can_stop_with_partial_results():
    net, images, seen = residual(), random_images(), []

    def two(partial: explainers.Partial) -> bool:
        seen.append((partial.done, partial.total))
        return partial.done < 2

    result = randomization_test(net, images, "saliency", progress=two)

    steps = len(result.steps)
    assert seen == [(1, 3 * steps), (2, 3 * steps)] and result.total == 3 * steps
    assert result.done == 2 and result.magnitude.isfinite().all(1).tolist() == [True] * 2 + [False] * (steps - 2)
    assert result.passes in (False, None) and "Stopped after 2 of" in str(result)
    short = randomization_test(net, images, "saliency", budget=1e-9, seed=1)
    assert short.done == 1 and "has not completed" in str(short) and "nan" not in str(short)


def test_a_long_method_reports_and_stops_within_a_step():
    net, images, seen = plain(), random_images(), []

    def stop(partial: explainers.Partial) -> bool:
        seen.append(partial.fraction)
        return partial.done < 1 or len(seen) < 40

    result = randomization_test(net, images, "occlusion", window=4, stride=2, batch_size=8, progress=stop)

    assert len(seen) == 40 and seen == sorted(seen) and any(0 < fraction < 1 / result.total for fraction in seen)
    assert 1 <= result.done < result.total


# Verdicts


def test_noise_passes_and_a_constant_map_has_no_verdict():
    net, images, generator = plain(), random_images(2, 3, 24, 32), torch.Generator().manual_seed(0)

    noise = randomization_test(net, images, lambda model, x, target: torch.randn(2, 24, 32, generator=generator))
    constant = randomization_test(net, images, lambda model, x, target: torch.ones(2, 24, 32))

    assert noise.passes is True and abs(noise.after_all_layers) < 0.1
    assert constant.passes is None and constant.signed.isnan().all() and (constant.blank == 1).all()
    assert "the map is constant" in str(constant)


def result(first: float, last: float, order: str = "cascade") -> Randomization:
    values = torch.tensor([[first], [last]], dtype=torch.float64)
    blank = values.isnan().double()
    figures = values, values, values, values.abs(), blank
    return Randomization(("head", "stem"), *figures, "m", None, [0], order, False, 2, 2)


def test_the_verdict_by_its_thresholds():
    assert result(0.79, 0.49).passes is True and result(0.81, 0.0).passes is False
    assert result(0.0, 0.51).passes is False and result(-0.9, 0.0).passes is False
    assert result(0.0, 0.51, "independent").passes is True and result(0.1, math.nan).passes is None
    assert result(0.9, math.nan).passes is False
    assert "least affected by stem (0.51)" in str(result(0.0, 0.51, "independent"))


# Refusals


class Bound(nn.Module):
    """A network whose forward runs its first module through an object, which a copy does not replace."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net, self.run = net, [SimpleNamespace(module=net[0])]

    def forward(self, x: Tensor) -> Tensor:
        return self.net[1:](self.run[0].module(x))


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(plain().float(), {nn.Linear}, torch.qint8)


def test_refusals_name_what_was_given_and_what_to_do():
    plainly, images = plain().float(), random_images().float()
    scripted, wrong = torch.jit.script(plain().float()), unit("conv1", 1)
    exported = torch.export.export(plain().float(), (images,)).module()
    cases = [
        (BadOption, "order='up'.*cascade", plainly, "saliency", {"order": "up"}),
        (BadOption, "seeds=0", plainly, "saliency", {"seeds": 0}),
        (BadOption, "Omit compare", plainly, "saliency", {"compare": True}),
        (BadOption, "does not return a map of the image, but channels", plainly, "channel_effects", {}),
        (BadOption, "method=3", plainly, 3, {}),
        (BadOption, r"returned \(3, 4\).*maps \[N, h, w\]", plainly, lambda *_: torch.ones(3, 4), {}),
        (BadOption, "forward= is not supported", plainly, "saliency", {"forward": plainly}),
        (BadTarget, "reads layer 'conv1'", plainly, "saliency", {"target": wrong}),
        (BadTarget, "Class 9 does not exist", plainly, "saliency", {"target": 9}),
        (UnsupportedModel, "The model is scripted", scripted, "saliency", {}),
        (UnsupportedModel, "exported", exported, "saliency", {}),
        (UnsupportedModel, "A part of the network is scripted", nn.Sequential(scripted), "saliency", {}),
        (UnsupportedModel, "packed weights cannot be randomized", quantized(), "occlusion", {}),
        (UnsupportedModel, "original's layer 'net.conv1'", Bound(plain().float()).eval(), "saliency", {}),
        (UnsupportedModel, r"'head'.*nn\.Parameter", HeadInList(plain=True).eval(), "saliency", {}),
        (BadOption, "no weights", nn.Sequential(nn.AvgPool2d(4), nn.Flatten()), "saliency", {}),
    ]
    for error, words, net, method, options in cases:
        with nothing_left(net, images), pytest.raises(error, match=words):
            randomization_test(net, images, method, **options)


def test_a_map_that_only_changes_its_sign_fails() -> None:
    """Its signed correlations, 1 and -1, have a mean near 0."""

    def turned(net: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        slope = torch.linspace(-1, 1, 192, dtype=x.dtype).view(1, 12, 16)
        return slope * net(x).sum(1).sign()[:, None, None]

    found = [randomization_test(plain(), random_images(2), turned, seeds=4, seed=10 * k) for k in range(4)]

    assert [each.passes for each in found] == [False] * 4
    assert any(each.turns and "Only the sign of the map changes" in str(each) for each in found)


def test_attributions_of_a_layer_are_tested_as_the_map_that_they_sum_to() -> None:
    def summed(net: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        return explainers.layer_integrated_gradients(net, x, target, layer="conv1", steps=8).sum(1)

    net, x = plain(), random_images(2)
    found = [
        randomization_test(net, x, method, layer="conv1", seeds=2, steps=8)
        for method in ("layer_integrated_gradients", explainers.METHODS["layer_integrated_gradients"])
    ]

    expected = randomization_test(net, x, summed, seeds=2)
    assert all(torch.allclose(each.signed, expected.signed, atol=1e-9) for each in found)
    with pytest.raises(BadOption, match="does not return a map"):
        randomization_test(net, x, "feature_maps", layer="conv1")


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


def ending() -> nn.Module:
    """Its last two layers are inside one skip connection, so they are one block."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        x = self.conv(x).relu().mean((2, 3))
        return x + self.last(self.first(x).relu())

    return Written(forward, conv=nn.Conv2d(3, 8, 3), first=nn.Linear(8, 8), last=nn.Linear(8, 8))


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
        (ending, ("last", "first", "conv")),
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


def test_a_shared_weight_is_sampled_once_for_all_its_layers():
    net = plain(classes=8)
    net.tied = nn.Linear(8, 8).double()
    net.tied.weight = net.head.weight
    copy = RandomizedCopy(eval_view(net))
    copy.randomize(["tied"], seed=0)
    drawn = copy.network.tied.weight
    copy.randomize(["head"], seed=0)
    assert copy.network.head.weight is copy.network.tied.weight is drawn and not torch.equal(drawn, net.head.weight)
