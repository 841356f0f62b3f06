"""Oracles of the methods with modified backward rules."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.nets import plain

from .cams import zhou
from .oracle import Oracle, each_image


def rule_by_hand(net: nn.Module, x: Tensor, classes: list[int], gate: bool) -> Tensor:
    """Backwards through `plain`: only positive gradients pass a ReLU, and with `gate` only where it was open."""
    with torch.no_grad():
        z1 = net.conv1(x)
        z2 = net.conv2(z1.relu())
        g = (net.head.weight[classes] / z2[0, 0].numel())[:, :, None, None].expand_as(z2)
        g = g.clamp(min=0) * ((z2 > 0) if gate else 1)
        g = F.conv_transpose2d(g, net.conv2.weight, stride=2, padding=1, output_padding=1)
        g = g.clamp(min=0) * ((z1 > 0) if gate else 1)
        return F.conv_transpose2d(g, net.conv1.weight, padding=1)


def _guided_cam(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    cam = zhou(net, x, classes)
    # Nearest neighbor from (6, 8) to (12, 16): every cell becomes a 2x2 square.
    return cam.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None] * rule_by_hand(net, x, classes, gate=True)


def matrix(layer: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """An affine layer for inputs of `shape` as W [out, in] and b [out], found by trying every unit vector."""
    size = torch.Size(shape).numel()
    with torch.no_grad():
        b = layer(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
        return layer(torch.eye(size, dtype=torch.float64).view(size, *shape)).flatten(1).T - b[:, None], b


def shared(rule: str, w: Tensor, b: Tensor, x: Tensor, r: Tensor, **given: float) -> Tensor:
    """One LRP rule for one input x [in] and relevance r [out], from the matrix of contributions z_ij [out, in]."""
    z = w * x
    up, down = z.clamp(min=0), z.clamp(max=0)
    if rule == "epsilon":
        parts, whole = z, z.sum(1) + b
        whole = whole + torch.where(whole < 0, -1.0, 1.0).to(whole) * given.get("epsilon", 0.0)
    elif rule == "gamma":
        favoured = torch.where((z.sum(1) + b > 0)[:, None], up, down)
        bias = torch.where(z.sum(1) + b > 0, b.clamp(min=0), b.clamp(max=0))
        gamma = given.get("gamma", 0.25)
        parts = z + gamma * favoured
        whole = parts.sum(1) + b + gamma * bias
    elif rule == "z_plus":
        parts, whole = up, up.sum(1) + b.clamp(min=0)
    elif rule == "excitation":
        parts, whole = up, up.sum(1)
    elif rule == "alpha_beta":
        alpha = given.get("alpha", 2.0)
        for_ = shared("z_plus", w, b, x, r)
        return alpha * for_ + (1 - alpha) * shared("z_plus", -w, -b, x, r)
    elif rule == "z_box":
        low, high = given.get("low", x.min()), given.get("high", x.max())
        parts = z - low * w.clamp(min=0) - high * w.clamp(max=0)
        whole = parts.sum(1)
    else:
        parts = w**2 if rule == "w_square" else (w != 0).double()
        whole = parts.sum(1)
    return (torch.where(whole == 0, 0, r / torch.where(whole == 0, 1, whole))[:, None] * parts).sum(0)


@each_image
def relevance_by_hand(
    net: nn.Module, image: Tensor, c: int, rules: tuple[str, str, str], start: float | None = None, **given: float
) -> Tensor:
    """Backwards through `plain`, one image at a time, with a rule for conv1, conv2 and head; the pool is a mean."""
    excites = rules[0] == "excitation"
    with torch.no_grad():
        first, second = matrix(net.conv1, (3, 12, 16)), matrix(net.conv2, (6, 12, 16))
        pool, nothing = matrix(net.pool, (8, 6, 8))
        a0 = image.flatten()
        a1 = (first[0] @ a0 + first[1]).relu()
        a2 = (second[0] @ a1 + second[1]).relu()
        a3 = pool @ a2
        scores = net.head.weight @ a3 + net.head.bias
        r = torch.zeros_like(scores)
        r[c] = scores[c] if start is None else start
        r = shared(rules[2], net.head.weight, net.head.bias, a3, r, **given)
        r = shared("excitation" if excites else "epsilon", pool, nothing, a2, r, epsilon=0.0)
        r = shared(rules[1], *second, a1, r, **given)
        return shared(rules[0], *first, a0, r, **given).view_as(image)


def multipliers_by_hand(net: nn.Module, x: Tensor, classes: list[int], baseline: Tensor) -> Tensor:
    """DeepLIFT through `plain`: transposed convolutions, and the ratio of changes at both ReLUs."""
    with torch.no_grad():
        z1, z1_before = net.conv1(x), net.conv1(baseline)
        z2, z2_before = net.conv2(z1.relu()), net.conv2(z1_before.relu())
        g = (net.head.weight[classes] / z2[0, 0].numel())[:, :, None, None].expand_as(z2)
        g = g * (z2.relu() - z2_before.relu()) / (z2 - z2_before)
        g = F.conv_transpose2d(g, net.conv2.weight, stride=2, padding=1, output_padding=1)
        g = g * (z1.relu() - z1_before.relu()) / (z1 - z1_before)
        return F.conv_transpose2d(g, net.conv1.weight, padding=1) * (x - baseline)


def baselines(count: int = 3) -> Tensor:
    """[count, 3, 12, 16], no two alike."""
    generator = torch.Generator().manual_seed(11)
    return torch.randn(count, 3, 12, 16, generator=generator, dtype=torch.float64)


def _mean_over_baselines(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    return sum(multipliers_by_hand(net, x, classes, each[None].expand_as(x)) for each in baselines()) / 3


ORACLES: dict[str, Oracle] = {
    "guided_backprop": Oracle(
        "Springenberg et al. 2015 as transposed convolutions", plain, partial(rule_by_hand, gate=True)
    ),
    "deconvnet": Oracle("Zeiler and Fergus 2014 as transposed convolutions", plain, partial(rule_by_hand, gate=False)),
    "guided_grad_cam": Oracle(
        "product of the two closed forms", plain, _guided_cam, layer="relu2", options={"interpolate": "nearest"}
    ),
    "excitation_backprop": Oracle(
        "marginal winning probabilities from dense matrices, one image at a time",
        plain,
        lambda net, x, c: relevance_by_hand(net, x, c, ("excitation",) * 3, start=1.0),
    ),
    "lrp": Oracle(
        "z-plus twice and epsilon as dense matrices, one image at a time",
        plain,
        lambda net, x, c: relevance_by_hand(net, x, c, ("z_plus", "z_plus", "epsilon")),
    ),
    "deep_lift": Oracle(
        "ratios of changes at both ReLUs, transposed convolutions between them",
        plain,
        lambda net, x, c: multipliers_by_hand(net, x, c, torch.zeros_like(x)),
        # Both quotients lose precision where a ReLU's input hardly differs from the baseline's.
        rtol=1e-7,
    ),
    "deep_lift_shap": Oracle(
        "mean of the closed form over three baselines",
        plain,
        _mean_over_baselines,
        options={"baseline": baselines()},
        rtol=1e-7,
    ),
}


def _contrast(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """The relevance of the class minus that of the head with negated weights."""
    turned = plain()
    turned.head.weight.data.neg_()
    both = (relevance_by_hand(each, x, classes, ("excitation",) * 3, start=1.0) for each in (net, turned))
    return torch.sub(*both)


VARIANTS: dict[str, Oracle] = {
    "excitation_backprop of a contrast": Oracle("two closed forms", plain, _contrast, options={"contrast": True})
}
