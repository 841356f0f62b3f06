"""LRP and excitation backprop: rules by hand, conservation, limits, merged batch norm, and refusals."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explainers import METHODS, BadOption, UnsupportedOperation, deep_lift, excitation_backprop, explain, lrp, unit
from explainers.rules.lrp_rules import COMPOSITES, RULES
from tests.support.nets import Activated, ClassToken, Reused, Written, plain, random_images, rel, residual, settle
from tests.support.oracles.rules import matrix, relevance_by_hand, shared

CLASSES = [2, 0, 5]


def without_bias(net: nn.Module) -> nn.Module:
    """The network with zeros for all biases, positions, extra tokens and running means."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if any(word in name for word in ("bias", "positions", "token")):
                parameter.zero_()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.zero_()
    return net


def scores(net, x, classes=CLASSES):
    return net(x)[range(len(x)), classes].detach()


def input_x_gradient(net, x, classes=CLASSES):
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(leaf)[range(len(x)), classes].sum(), leaf)
    return (leaf * gradient).detach()


def sums(relevance):
    return relevance.flatten(1).sum(1)


# Rules


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_by_hand_in_every_layer(rule):
    """Oracle: the rule's table of parts, from dense matrices."""
    net, x = plain(), random_images(2)
    options = {"epsilon": 0.05, "gamma": 0.7, "alpha": 1.5, "low": -4.0, "high": 5.0}
    by_hand = {name: value for name, value in options.items() if not (rule == "z_box" and name == "epsilon")}
    expected = relevance_by_hand(net, x, [2, 0], (rule,) * 3, **by_hand)

    actual = lrp(net, x, [2, 0], rule=rule, **options)

    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    others = [lrp(net, x, [2, 0], rule=other, **options) for other in RULES if other != rule]
    assert min(rel(actual, other) for other in others) > 1e-2, "each rule must be told from the others"


BY_HAND = [
    ({"composite": "epsilon_plus_flat"}, ("flat", "z_plus", "epsilon")),
    ({"composite": "epsilon_plus"}, ("z_plus", "z_plus", "epsilon")),
    ({"composite": "epsilon_gamma_box"}, ("z_box", "gamma", "epsilon")),
    ({"composite": "alpha2_beta1_flat"}, ("flat", "alpha_beta", "epsilon")),
    ({"rule": {"conv1": "w_square"}}, ("w_square", "z_plus", "epsilon")),
    ({"rule": {"conv*": "gamma"}}, ("gamma", "gamma", "epsilon")),
    ({"rule": {"Conv2d": "alpha_beta", "Linear": "z_plus"}}, ("alpha_beta", "alpha_beta", "z_plus")),
    ({"rule": {"conv2": "epsilon", "Conv2d": "gamma", "*": "flat"}}, ("gamma", "epsilon", "flat")),
]


def test_composites_and_rules_by_name_and_kind_by_hand():
    """The first pattern that matches counts, then the composite."""
    assert {options.get("composite") for options, _ in BY_HAND} >= set(COMPOSITES)
    net, x = plain(), random_images(1)
    for options, rules in BY_HAND:
        expected = relevance_by_hand(net, x, [2], rules)
        torch.testing.assert_close(lrp(net, x, [2], **options), expected, rtol=1e-9, atol=1e-12, msg=str(options))


def test_wrong_rules_are_refused_with_a_message():
    for message, options in {
        "zplus.*z_plus": {"rule": "zplus"},
        "gama.*conv1.*gamma": {"rule": {"conv1": "gama"}},
        "'conv3'.*Did you mean 'conv": {"rule": {"conv3": "gamma"}},
        r"low has shape \(5,\).*\[3, 1, 1\]": {"low": torch.zeros(5)},
        "high='white'": {"high": "white"},
        "epsilon_plusflat": {"composite": "epsilon_plusflat"},
    }.items():
        with pytest.raises(BadOption, match=message):
            lrp(plain(), random_images(1), **options)


def test_z_box_takes_bounds_of_each_channel():
    net, x = plain(), random_images(2)
    low, high = x.amin((0, 2, 3)).view(3, 1, 1), x.amax((0, 2, 3)).view(3, 1, 1)
    found = lrp(net, x, [2, 0], composite="epsilon_gamma_box", low=low, high=high)
    alone = lrp(net, x[:1], [2], composite="epsilon_gamma_box", low=low[None], high=high[None])
    torch.testing.assert_close(found[:1], alone, rtol=1e-10, atol=1e-14)
    assert rel(found, lrp(net, x, [2, 0], composite="epsilon_gamma_box")) > 1e-3


# Conservation and limits


@pytest.mark.parametrize("build", [plain, residual, lambda: settle(Reused(7).double())])
def test_p64_lrp_tends_to_input_times_gradient(build):
    """Identity: on a bias-free ReLU net LRP-epsilon is input x gradient for epsilon to 0, value by value.

    Of a residual network, captum's sum is 5.4e10 for a logit of 0.19.
    """
    net, x = without_bias(build()), random_images()
    expected = input_x_gradient(net, x)
    distances = [rel(lrp(net, x, CLASSES, rule="epsilon", epsilon=e), expected) for e in (1.0, 1e-2, 1e-4, 1e-6, 0.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.1 and distances[-2] < 1e-3 and distances[-1] < 1e-12


# Batch norm


@pytest.mark.parametrize("rule", RULES)
def test_p68_batch_norm_is_merged_on_both_sides(rule):
    """Oracle: the two neighbors as one affine map, as a dense matrix. zennit needs a canonizer of the architecture."""
    before = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)]
    behind = [nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.AvgPool2d((6, 7)), nn.Flatten()]
    net = settle(nn.Sequential(*before, *behind, nn.BatchNorm1d(6), nn.Linear(6, 7)).double())
    x = random_images(1, 3, 8, 9)
    net[8].weight.data.add_(1)
    for norm in (net[1], net[3], net[8]):
        norm.weight.data[::2].neg_()
    net[8].running_mean.add_(0.3)
    maps = [matrix(net[:2], (3, 8, 9)), matrix(net[3:5], (4, 8, 9)), matrix(net[6:8], (6, 6, 7)), matrix(net[8:], (6,))]
    with torch.no_grad():
        a = [x.flatten()]
        for i, (w, b) in enumerate(maps):
            z = w @ a[-1] + b
            a.append(z.relu() if i < 2 else z)
        r = torch.zeros_like(a[-1])
        r[2] = a[-1][2]
        for i in (3, 2, 1, 0):
            w, b = maps[i]
            r = shared("epsilon" if i == 2 else rule, w, b, a[i], r, **({"epsilon": 0.0} if i == 2 else {}))

    actual = lrp(net, x, 2, rule=rule)

    torch.testing.assert_close(actual.flatten(), r, rtol=1e-9, atol=1e-12)


# Equivalent forms of one network


def two_branches(join):
    """Two branches, joined by a function, without biases."""
    parts = {"conv1": nn.Conv2d(3, 4, 3, padding=1, bias=False), "conv2": nn.Conv2d(3, 4, 1, bias=False)}
    parts |= {"conv3": nn.Conv2d(4, 4, 1, bias=False), "fc": nn.Linear(4, 7, bias=False)}
    forward = lambda net, x: net.fc(net.conv3(join(net.conv1(x), net.conv2(x)).relu()).relu().mean((2, 3)))  # noqa: E731
    return settle(Written(forward, **parts).double())


def in_place(a, b):
    a += b
    return a


def of_an_alias(a, b):
    """The in-place operations change `kept` too."""
    kept = a
    a.relu_()
    a += 1.5 * kept
    return a * 2 + kept.amax((2, 3), keepdim=True) + b


def written_out(a, b):
    a = a.relu()
    return 5 * a + 2.5 * a.amax((2, 3), keepdim=True) + b


JOINS = {
    "in place": in_place,
    "add": torch.add,
    "add_": lambda a, b: a.add_(b),
    "stack": lambda a, b: torch.stack([a, b]).sum(0),
    "difference": lambda a, b: a - (-b),
    "concatenation": lambda a, b: torch.cat([a[:, :2], b[:, :2]], 1) + torch.cat([b, a], 1)[:, 2:6],
}


def test_piecewise_linear_joins_are_input_times_gradient():
    x = random_images()
    for name, join in JOINS.items():
        net = two_branches(join)
        found = lrp(net, x, CLASSES, rule="epsilon", epsilon=0.0)
        torch.testing.assert_close(found, input_x_gradient(net, x), rtol=1e-9, atol=1e-13, msg=name)


def test_equal_joins_have_equal_maps():
    x = random_images()
    for name in ("in place", "add", "add_", "stack", "difference"):
        expected, found = (excitation_backprop(two_branches(join), x, CLASSES) for join in (in_place, JOINS[name]))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13, msg=name)
    for method in ("lrp", "excitation_backprop", "deep_lift"):
        expected, found = (METHODS[method](two_branches(join), x, CLASSES) for join in (written_out, of_an_alias))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)


AVERAGES = [
    lambda x: x.mean((2, 3)),
    lambda x: x.flatten(2).sum(-1) / (x.shape[2] * x.shape[3]),
    lambda x: nn.AdaptiveAvgPool2d(1)(x).flatten(1),
    lambda x: F.avg_pool2d(x, x.shape[2:]).squeeze(3).squeeze(2),
    lambda x: x.mean(3).mean(2),
]


def test_p65_p66_every_form_of_mean_and_relu_distributes_alike():
    """captum's sum is correct for `x.mean((2, 3))`, and its distribution 222 times off; 0.27 for functional ReLUs."""
    x, layers = random_images(), {"conv": nn.Conv2d(3, 6, 3, bias=False), "fc": nn.Linear(6, 7, bias=False)}
    nets = [Written(lambda net, x, mean=mean: net.fc(mean(net.conv(x).relu())), **layers) for mean in AVERAGES]
    nets += [Activated(act) for act in (F.relu, lambda x: x.relu_(), lambda x: x.clamp(min=0))]
    for k, net in enumerate(nets):
        without_bias(settle(net.double()))
        found = lrp(net, x, CLASSES, rule="epsilon", epsilon=0.0)
        assert rel(found, input_x_gradient(net, x)) < 1e-9, k


# Operations without a rule


class WithOperation(nn.Module):
    """A network with a layer that applies the function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.conv, self.strange, self.fc = nn.Conv2d(3, 4, 3), Operation(function), nn.Linear(4, 7)

    def forward(self, x):
        return self.fc(self.strange(self.conv(x)).mean((2, 3)))


class Operation(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        object.__setattr__(self, "function", function)

    def forward(self, x):
        return self.function(x)


def test_operations_without_a_rule_are_refused_naming_operation_and_layer():
    refused = {
        "exp": torch.exp,
        "sin": torch.sin,
        "softmax": lambda x: x.softmax(1),
        "cumsum": lambda x: x.cumsum(1),
        "division": lambda x: 1 / (1 + x.abs()),
    }
    for word, function in refused.items():
        for method in (lrp, excitation_backprop):
            with pytest.raises(UnsupportedOperation, match=f"{word}.*'strange'"):
                method(settle(WithOperation(function).double()), random_images(), CLASSES)


def test_excitation_backprop_refuses_operations_that_break_its_assumption():
    images, wide = random_images(), random_images(1, 3, 32, 128)
    activated = {act.__name__: Activated(act) for act in (torch.tanh, F.elu, F.leaky_relu)}
    for word, net in {**activated, "layer_norm|attention": ClassToken()}.items():
        with pytest.raises(UnsupportedOperation, match=word):
            excitation_backprop(settle(net.double()), wide if "norm" in word else images, 2)


def test_traced_modules_are_refused():
    net, x = plain(), random_images(1)
    part = nn.Sequential(net[:4], torch.jit.trace(net[4:], torch.rand(1, 8, 6, 8, dtype=torch.float64))).eval()
    for name in ("lrp", "excitation_backprop", "deep_lift"):
        for hidden, word in ((torch.jit.trace(net, x), "traced"), (part, "part")):
            assert word in METHODS[name].applies(hidden)
            with pytest.raises(ValueError, match=word):
                METHODS[name](hidden, x, 1)


# Excitation backprop


def test_residual_sums_go_to_the_positive_summand():
    """All probability of a positive plus a negative summand goes to the positive one."""

    added = Operation(lambda x: (x[:, :1] + x[:, 1:]).relu().mean((2, 3)))
    net = nn.Sequential(added, nn.Linear(1, 2, bias=False)).double()
    net[1].weight.data.fill_(1.0)
    x = torch.tensor([3.0, -1.0, 1.0, 1.0], dtype=torch.float64).view(2, 2, 1, 1)
    expected = torch.tensor([1.0, 0.0, 0.5, 0.5], dtype=torch.float64).view(2, 2, 1, 1)
    assert torch.equal(excitation_backprop(net, x, 0), expected)
    by_value = torch.tensor([3.0, -1.0, 1.0, 1.0], dtype=torch.float64).view(2, 2, 1, 1)
    torch.testing.assert_close(lrp(net, x, 0), by_value, rtol=1e-12, atol=1e-12)


def test_lost_probability_is_reported():
    net = plain()
    net.conv2.weight.data[:4] = -net.conv2.weight.data[:4].abs()
    net.conv2.bias.data[:4] = 50.0
    found = explain("excitation_backprop", net, random_images(), CLASSES)
    assert (found.raw.flatten(1).sum(1) < 0.99).all()
    assert all("lost" in [finding.code for finding in each] for each in found.findings)


# Units and channels


def test_relevance_of_units_and_through_channels():
    """A unit's relevance sums to its activation; the class's relevance is the sum of that through each channel."""
    net, x = without_bias(residual()), random_images()
    a = net.layer1(net.relu(net.bn1(net.conv1(x))))[:, 2].mean((1, 2)).detach()
    for method in (partial(lrp, rule="epsilon", epsilon=0.0), deep_lift):
        torch.testing.assert_close(sums(method(net, x, unit("layer1", channel=2))), a, rtol=1e-9, atol=1e-12)
        parts = [method(net, x, CLASSES, through=("layer1", [k])) for k in range(6)]
        torch.testing.assert_close(sum(parts), method(net, x, CLASSES), rtol=1e-8, atol=1e-12)
