"""Oracles of the class-activation maps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers.perturbation.rng import PerImageGenerators
from tests.support.nets import act_grad, cam_by_hand, curved, plain, residual

from .features import drops_by_hand, through
from .oracle import Expected, Oracle, each_image


def zhou(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a = net[:4](x).detach()
    cam = torch.einsum("nk,nkhw->nhw", net.head.weight[classes], a)
    return (cam / a[0, 0].numel()).relu().detach()


def _plus_plus(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Equation 19; cells without a gradient weigh nothing."""
    a, g, _ = act_grad(net, net.act2, x, classes)
    below = 2 * g**2 + a.sum((2, 3), keepdim=True) * g**3
    weights = torch.where(below == 0, 0, g**2 / below * g.relu()).sum((2, 3))
    return torch.einsum("nk,nkhw->nhw", weights, a).relu()


def _hires(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    return torch.stack([sum(a[n, k] * g[n, k] for k in range(a.shape[1])) for n in range(len(a))])


def _layer_cam(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    return sum(torch.where(g[:, k] > 0, g[:, k], 0) * a[:, k] for k in range(a.shape[1])).relu()


def _xgrad(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    weights = (g * a).sum((2, 3)) / a.sum((2, 3))
    return torch.einsum("nk,nkhw->nhw", weights, a).relu()


def _ablation(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    drops, a = drops_by_hand(net, net.layer2, x, classes)
    return torch.einsum("nk,nkhw->nhw", drops, a).relu()


def gradient_at(net: nn.Module, layer: nn.Module, x: Tensor, score: Callable[[Tensor], Tensor], size: float = 1.0):
    """(size × A, d score / d(size × A)), with a leaf tensor as the layer's output."""
    a, scores = through(net, layer, x, lambda output: (size * output).detach().requires_grad_())
    return a.detach(), torch.autograd.grad(score(scores).sum(), a)[0]


def _cam(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a = net[:4](x).detach()
    return sum(net.head.weight[classes, k].detach().view(-1, 1, 1) * a[:, k] for k in range(a.shape[1]))


def _element_wise(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    return sum((a[:, k] * g[:, k]).clamp(min=0) for k in range(a.shape[1]))


@each_image
def smooth_plus_plus(net: nn.Module, image: Tensor, c: int, of_last: str = "") -> Tensor:
    """Three copies of each image, one after the other; means of G, G^2 and G^3, and the clean activations.

    `of_last`, "activation" or "gradient", is what torchcam takes from the last noisy copy instead.
    """
    a = act_grad(net, net.act2, image[None], [c])[0][0]
    generator = PerImageGenerators(1, 3)
    grads = []
    for _ in range(3):
        noise = generator.normal_noise(0, 1, *image.shape)[0].double()
        noisy = image + 0.2 * (image.max() - image.min()) * noise
        last, g, _ = act_grad(net, net.act2, noisy[None], [c])
        grads.append(g[0])
    m1, m2, m3 = (sum(g**p for g in grads) / 3 for p in (1, 2, 3))
    alpha = m2 / (2 * m2 + a.sum((1, 2), keepdim=True) * m3)
    weights = (alpha * (grads[-1] if of_last == "gradient" else m1).relu()).sum((1, 2))
    return torch.einsum("k,khw->hw", weights, last[0] if of_last == "activation" else a).relu()


def component(planes: Tensor) -> Tensor:
    """First principal component by the covariance of the channels, without a sign rule."""
    cells = planes.flatten(1).T
    cells = cells - cells.mean(0)
    direction = torch.linalg.eigh(cells.T @ cells).eigenvectors[:, -1]
    return (cells @ direction).view(planes.shape[1:])


def with_sign_of(found: Tensor, guide: Tensor) -> Tensor:
    """The sign for which it correlates positively with the guide."""
    return found * torch.corrcoef(torch.stack([found.flatten(), guide.flatten()]))[0, 1].sign()


def _eigen(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    return torch.stack([with_sign_of(component(a), a.sum(0)) for a in net[:4](x).detach()])


def _eigen_grad(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    return torch.stack([with_sign_of(component(each), each.sum(0)) for each in a * g])


def _seg_eigen(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g, _ = act_grad(net, net.act2, x, classes)
    found = [component(each) for each in g.abs() * a]
    return torch.stack([-m if m.min().abs() > m.max().abs() else m for m in found])


def kernel_component(planes: Tensor, kernel: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Kernel PCA entry by entry and by power iteration (Schölkopf et al. 1998), without a sign rule."""
    cells = planes.flatten(1).T
    cells = cells - cells.mean(0)
    matrix = torch.stack([torch.stack([kernel(a, b) for b in cells]) for a in cells])
    center = torch.eye(len(cells), dtype=matrix.dtype) - 1 / len(cells)
    matrix = center @ matrix @ center
    vector = matrix[:, 0]
    for _ in range(3000):
        vector = matrix @ vector
        vector = vector / vector.norm()
    return (vector * (vector @ matrix @ vector).sqrt()).view(planes.shape[1:])


def _kernel(net: nn.Module, x: Tensor, classes: list[int], width: float | None = None) -> Tensor:
    """With `width`, the RBF kernel."""

    def kernel(p: Tensor, q: Tensor) -> Tensor:
        return torch.tanh(p @ q / len(p) + 1) if width is None else torch.exp(-width * ((p - q) ** 2).sum())

    return torch.stack([with_sign_of(kernel_component(each, kernel), each.sum(0)) for each in net[:4](x).detach()])


@each_image
def _fem(net: nn.Module, image: Tensor, c: int) -> Tensor:
    total = 0.0
    for plane in net[:4](image[None])[0].detach():
        deviation = ((plane - plane.mean()) ** 2).mean().sqrt()
        strong = [float(value > plane.mean() + 2 * deviation) for value in plane.flatten()]
        total = total + sum(strong) / len(strong) * plane
    return total


@each_image
def _fem_of_cells(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """The paper's form: the mean of each channel where it exceeds its mean by 1.5 deviations."""
    planes = net[:4](image[None])[0].detach()
    return sum(plane.mean() * (plane > plane.mean() + 1.5 * plane.std(correction=0)) for plane in planes)


def second_order(
    net: nn.Module, layer: nn.Module, x: Tensor, score: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """(A, dy/dA - H A / 2), the Hessian-vector product by central differences of gradients at (1 ± s) A."""
    step = 1e-4
    a, g = gradient_at(net, layer, x, score)
    more, less = (gradient_at(net, layer, x, score, 1 + s)[1] for s in (step, -step))
    return a, g - (more - less) / (4 * step)


def rest(classes: list[int]) -> Callable[[Tensor], Tensor]:
    """Logit plus log-probability."""
    return lambda scores: 2 * scores[range(len(classes)), classes] - scores.exp().sum(1).log()


def _shapley(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    a, g = second_order(net, net.act2, x, rest(classes))
    return torch.einsum("nk,nkhw->nhw", g.mean((2, 3)), a).relu()


@each_image
def _finer(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Image by image: minus 0.6 times the mean of the three nearest logits."""
    scores = net(image[None])[0].tolist()
    others = sorted((k for k in range(len(scores)) if k != c), key=lambda k: abs(scores[k] - scores[c]))[:3]
    a, own, _ = act_grad(net, net.act2, image[None], [c])
    g = own - 0.2 * sum(act_grad(net, net.act2, image[None], [k])[1] for k in others)
    return (g.mean((2, 3), keepdim=True) * a).sum(1)[0].relu()


def _full_grad(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """`plain` written out: magnitudes of image x gradient and of both layers' bias x gradient."""
    leaf = x.clone().requires_grad_()
    first = net.conv1(leaf)
    second = net.conv2(first.relu())
    scores = net.head(second.relu().mean((2, 3)))
    grads = torch.autograd.grad(scores[range(len(x)), classes].sum(), [leaf, first, second])
    parts = [x, *(net.get_submodule(name).bias.detach().view(1, -1, 1, 1) for name in ("conv1", "conv2"))]
    maps = [(part * g).abs().sum(1, keepdim=True) for part, g in zip(parts, grads, strict=True)]
    return sum(F.interpolate(m, x.shape[2:], mode="bilinear", align_corners=False)[:, 0] for m in maps)


@each_image
def mask_weighted_cam(
    net: nn.Module,
    image: Tensor,
    c: int,
    vary: Callable[[Tensor], list[Tensor]],
    increase: bool = False,
    leader: Tensor | None = None,
) -> Tensor:
    """Weights: softmax over the channels of `layer2` of the mean score of the image times each of `vary(mask)`.

    With `increase`, the weights are the scores minus that of a blank image. `leader` has the channel of each mask.
    """
    a = act_grad(net, net.layer2, image[None], [c])[0][0]
    scores = []
    for plane in a if leader is None else a[leader]:
        mask = F.interpolate(plane[None, None], image.shape[1:], mode="bilinear", align_corners=False)[0, 0]
        mask = (mask - mask.min()) / (mask.max() - mask.min() if plane.any() else 1)
        found = [net((image * factor)[None])[0, c].detach() for factor in vary(mask)]
        scores.append(sum(found) / len(found))
    weights = torch.stack(scores)
    weights = weights - net(0 * image[None])[0, c].detach() if increase else weights.softmax(0)
    return sum(w * plane for w, plane in zip(weights, a, strict=True))


def _score(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    return mask_weighted_cam(net, x, classes, lambda mask: [mask])


def _integrated(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    return mask_weighted_cam(net, x, classes, lambda mask: [mask * i / 5 for i in range(1, 6)])


@each_image
def _smoothed(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Noise in the order of the method: every channel's first copy, then every channel's second."""
    generator = PerImageGenerators(1, 3)
    count = len(act_grad(net, net.layer2, image[None], [c])[0][0])
    drawn = [generator.normal_noise(0, 1, *image.shape[1:])[0].double() for _ in range(2 * count)]
    copies = iter(zip(drawn[:count], drawn[count:], strict=True))

    def vary(mask: Tensor) -> list[Tensor]:
        return [mask + 0.5 * noise for noise in next(copies)]

    return mask_weighted_cam(net, image[None], [c], vary)[0]


def _refined(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Product of two layers' Grad-CAMs, each divided by its maximum, then resized."""
    shown = []
    for layer in (net.layer1, net.layer2):
        a, g, _ = act_grad(net, layer, x, classes)
        m = (g.mean((2, 3), keepdim=True) * a).sum(1, keepdim=True).relu()
        shown.append(F.interpolate(m / m.amax((2, 3), keepdim=True), x.shape[2:], mode="bilinear"))
    return (shown[0] * shown[1])[:, 0]


@each_image
def _sess(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Two sizes, 12 x 16 and 18 x 24: one window, then the four corners."""
    large = F.interpolate(image[None], (18, 24), mode="bilinear", align_corners=False)[0]
    places = [(image, 0, 0), *((large, y, z) for y in (0, 6) for z in (0, 8))]
    rows = []
    for whole, y, z in places:
        a, g, scores = act_grad(net, net.layer2, whole[None, :, y : y + 12, z : z + 16], [c])
        small = (g.mean((2, 3), keepdim=True) * a).sum(1, keepdim=True).relu()
        canvas = torch.zeros(1, 1, *whole.shape[1:], dtype=image.dtype)
        canvas[..., y : y + 12, z : z + 16] = F.interpolate(small, (12, 16), mode="bilinear", align_corners=False)
        back = F.interpolate(canvas, (12, 16), mode="bilinear", align_corners=False)[0, 0]
        rows.append((scores.softmax(1)[0, c], back))
    highest = max(p for p, _ in rows)
    counts = sum((back > 0).double() for _, back in rows)
    total = sum(p / highest * back for p, back in rows)
    return torch.where(counts > 0, total / counts, 0)


@each_image
def _one_factor(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """The best nonnegative rank-1 factor is the first singular vector, which has one sign (Perron-Frobenius)."""
    a = net[:4](image[None])[0].detach()
    u, s, _ = torch.linalg.svd(a.flatten(1).T)
    return (u[:, 0] * s[0]).abs().view(1, *a.shape[1:])


def _of_curved(truth: str, expected: Expected, **more: Any) -> Oracle:
    """At the last grid of `curved`, whose gradients differ by cell."""
    return Oracle(truth, curved, expected, layer="act2", **more)


def _of_plain(truth: str, expected: Expected, **more: Any) -> Oracle:
    """At the last grid of `plain`, before a pooled linear head."""
    return Oracle(truth, plain, expected, layer="relu2", **more)


def _of_residual(truth: str, expected: Expected, **more: Any) -> Oracle:
    return Oracle(truth, residual, expected, **{"layer": "layer2"} | more)


_NOISE = {"samples": 3, "sigma": 0.2, "seed": 3}

ORACLES: dict[str, Oracle] = {
    "grad_cam": _of_plain("Zhou et al. 2016: CAM / (h w) under a pooled linear head", zhou),
    "grad_cam_pp": _of_curved("equation 19, cell by cell", _plus_plus),
    "hires_cam": _of_curved("sum of gradient x activation, channel by channel", _hires),
    "layer_cam": _of_curved("positive gradients x activation, channel by channel", _layer_cam),
    "xgrad_cam": _of_curved("weights of axiom-based Grad-CAM by hand", _xgrad),
    "ablation_cam": _of_residual("a loop over single channels", _ablation),
    "cam": _of_plain("the head's weights times the activations", _cam),
    "element_wise_grad_cam": _of_curved("positive products, channel by channel", _element_wise),
    "smooth_grad_cam_pp": _of_curved(
        "Grad-CAM++ of mean powers of the gradients, the same noise sampled by hand", smooth_plus_plus, options=_NOISE
    ),
    "eigen_cam": _of_plain("eigenvectors of the channels' covariance", _eigen),
    "eigen_grad_cam": _of_curved("eigenvectors of the covariance of gradient x activation", _eigen_grad),
    "seg_eigen_cam": _of_curved("eigenvectors of the covariance of |gradient| x activation, equation 13", _seg_eigen),
    "kpca_cam": _of_plain("kernel PCA entry by entry and by power iteration", _kernel, rtol=1e-7),
    "fem": _of_plain("strong cells counted one by one", _fem),
    "shapley_cam": _of_curved("the Hessian term from differences of gradients", _shapley, rtol=1e-6, atol=1e-9),
    "finer_cam": _of_curved("gradients of class and references one by one", _finer),
    "full_grad": Oracle("the network written out, part by part", plain, _full_grad),
    "score_cam": _of_residual("one masked image at a time", _score, options={"relu": False}),
    "ss_cam": _of_residual(
        "one noisy mask at a time, the same noise sampled by hand",
        _smoothed,
        options={"samples": 2, "sigma": 0.5, "seed": 3},
    ),
    "is_cam": _of_residual("one masked image at a time, i / N bright", _integrated, options={"steps": 5}),
    "refine_cam": _of_residual(
        "product of two layers' maps by hand",
        _refined,
        layer=None,
        options={"layers": ["layer2", "layer1"], "inner": "grad_cam"},
    ),
    "sess": _of_residual("five windows one by one", _sess, options={"scales": 2, "growth": 0.5}),
    "deep_feature_factorization": _of_plain(
        "the first singular vector, which for one factor is the best fit",
        _one_factor,
        options={"components": 1},
        rtol=1e-3,
        atol=1e-4,
    ),
}

VARIANTS: dict[str, Oracle] = {
    "grad_cam at a position-dependent head": _of_curved(
        "gradients by hand", lambda net, x, c: cam_by_hand(net, net.act2, x, c), options={"relu": False}
    ),
    "kpca_cam of RBF": _of_plain("entry by entry", partial(_kernel, width=1 / 8), options={"kernel": "rbf"}, rtol=1e-6),
    "kpca_cam of width 0.3": _of_plain(
        "entry by entry", partial(_kernel, width=0.3), options={"kernel": "rbf", "gamma": 0.3}, rtol=1e-6
    ),
    "fem of cells": _of_plain("by definition", _fem_of_cells, options={"threshold": 1.5, "form": "cells"}),
}
