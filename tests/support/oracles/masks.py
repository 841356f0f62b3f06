"""Oracles of the perturbation methods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from explainers.perturbation.rng import PerImageGenerators
from tests.support.nets import curved, random_images

from .oracle import Expected, Oracle, each_image


def occlusion_by_hand(
    net: nn.Module, x: Tensor, classes: list[int], window: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor:
    """Mean, over the windows that cover a pixel, of score lost / pixels covered; windows at the border are clipped."""
    n, _, *sizes = x.shape
    total, covers = torch.zeros(n, *sizes, dtype=x.dtype), torch.zeros(*sizes, dtype=x.dtype)
    with torch.no_grad():
        full = net(x)
        for corner in itertools.product(*map(starts, sizes, window, stride)):
            box = (..., *(slice(at, at + side) for at, side in zip(corner, window, strict=True)))
            hidden = x.clone()
            hidden[box] = 0
            lost = (full - net(hidden))[range(n), classes] / covers[box].numel()
            total[box] += lost.view(n, *[1] * len(sizes))
            covers[box] += 1
    return total / covers


def starts(size: int, window: int, stride: int) -> list[int]:
    """Window starts: on by `stride` until a window reaches the border."""
    found = [0]
    while found[-1] + window < size:
        found.append(found[-1] + stride)
    return found


def cells_of(height: int, width: int, rows: int, columns: int) -> Tensor:
    """Cell numbers of a grid whose cells have whole numbers of pixels."""
    return torch.tensor(
        [[y * rows // height * columns + x * columns // width for x in range(width)] for y in range(height)]
    )


def value_of(net: nn.Module, image: Tensor, c: int, labels: Tensor, here: tuple[int, ...]) -> float:
    """Score of an image in which only the cells `here` are present; the others are zero."""
    left = image * sum((labels == each for each in here), torch.zeros_like(labels)).to(image)
    with torch.no_grad():
        return float(net(left[None])[0, c])


def over_area(values: Tensor, labels: Tensor) -> Tensor:
    """A cell's value, divided among its pixels."""
    found = torch.zeros(labels.shape, dtype=torch.float64)
    for cell, value in enumerate(values.tolist()):
        found[labels == cell] = value / int((labels == cell).sum())
    return found


@each_image
def ablation_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Score lost without each of 3 x 4 cells."""
    labels = cells_of(12, 16, 3, 4)
    everything = tuple(range(12))
    full = value_of(net, image, c, labels, everything)
    lost = [full - value_of(net, image, c, labels, tuple(set(everything) - {k})) for k in everything]
    return over_area(torch.tensor(lost, dtype=torch.float64), labels)


def shapley_by_hand(values: Callable[[tuple[int, ...]], float], count: int) -> Tensor:
    """The definition: the mean gain over all orders, as a sum over the coalitions without the player."""
    known = {s: values(s) for size in range(count + 1) for s in itertools.combinations(range(count), size)}
    found = torch.zeros(count, dtype=torch.float64)
    for player in range(count):
        for s in known:
            if player not in s:
                weight = math.factorial(len(s)) * math.factorial(count - len(s) - 1) / math.factorial(count)
                found[player] += weight * (known[tuple(sorted((*s, player)))] - known[s])
    return found


@each_image
def shapley_map(net: nn.Module, image: Tensor, c: int, rows: int = 2, columns: int = 3) -> Tensor:
    """Exact Shapley values of 2 x 3 cells."""
    labels = cells_of(*image.shape[1:], rows, columns)
    exact = shapley_by_hand(partial(value_of, net, image, c, labels), rows * columns)
    return over_area(exact, labels)


@each_image
def _orders_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Mean marginal gains over three permutations: one drawn, its reverse, another drawn, from seed 3."""
    labels = cells_of(12, 16, 2, 3)
    generator = torch.Generator().manual_seed(3)
    first, second = (torch.randperm(6, generator=generator).tolist() for _ in range(2))
    gains = torch.zeros(6, dtype=torch.float64)
    for order in (first, first[::-1], second):
        for k, player in enumerate(order):
            with_it = value_of(net, image, c, labels, tuple(order[: k + 1]))
            gains[player] += (with_it - value_of(net, image, c, labels, tuple(order[:k]))) / 3
    return over_area(gains, labels)


@each_image
def _lime_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Least squares on all coalitions: rows scaled by the root of their weight, an intercept, and torch's lstsq."""
    labels, width = cells_of(12, 16, 2, 3), 0.4
    sets = [s for size in range(7) for s in itertools.combinations(range(6), size)] + [tuple(range(6))]
    z = torch.tensor([[float(k in s) for k in range(6)] for s in sets]).double()
    y = torch.tensor([value_of(net, image, c, labels, s) for s in sets]).double()
    # Cosine distance to the full coalition.
    cosine = torch.tensor([(len(s) / 6) ** 0.5 for s in sets]).double()
    root = torch.exp(-((1 - cosine) ** 2) / width**2).sqrt()[:, None]
    design = torch.cat([z, torch.ones(len(z), 1).double()], 1)
    return over_area(torch.linalg.lstsq(root * design, root * y[:, None]).solution[:6, 0], labels)


def enlarged_by_hand(coarse: Tensor, shift: tuple[float, float], height: int, width: int) -> Tensor:
    """One mask [c, c], bilinear between cell centers at c + 1 cells per side, cropped at an offset of `shift` cells."""
    cells = len(coarse)
    sides = []
    for size, start in ((height, shift[0]), (width, shift[1])):
        cell = math.ceil(size / cells)
        weights = torch.zeros(size, cells, dtype=torch.float64)
        for pixel in range(size):
            at = max((pixel + int(start * cell) + 0.5) * cells / ((cells + 1) * cell) - 0.5, 0)
            low = min(int(at), cells - 1)
            weights[pixel, low] += 1 - (at - low)
            weights[pixel, min(low + 1, cells - 1)] += at - low
        sides.append(weights)
    return sides[0] @ coarse.double() @ sides[1].T


def _numbers_by_hand(size: int, rows: int) -> list[Tensor]:
    """The first `rows` rows of balanced uniform numbers and two shifts each, from seed 3, block by block."""
    coarse, fine = torch.Generator().manual_seed(3 + 2**31), torch.Generator().manual_seed(3)
    side = next(2**k for k in range(20) if 2**k > size)
    found = []
    while len(found) < rows:
        columns = torch.randperm(side - 1, generator=coarse).tolist()[:size]
        turned = torch.rand(size, generator=coarse).tolist()
        for row in torch.randperm(side, generator=coarse).tolist():
            # Sylvester's matrix has -1 where row and column have an odd number of bits in common.
            odd = [bin(row & (column + 1)).count("1") % 2 for column in columns]
            upper = [bit != (number < 0.5) for bit, number in zip(odd, turned, strict=True)]
            found.append(upper)
    numbers = []
    for upper in found[:rows]:
        each = torch.rand(size + 2, generator=fine)
        each[:size] = (each[:size] + torch.tensor(upper)) / 2
        numbers.append(each)
    return numbers


@each_image
def rise_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """40 masks of 3 x 3 cells from seed 3: weighted mean of the scores at each pixel, less the mean of all."""
    masks = []
    for numbers in _numbers_by_hand(9, 40):
        masks.append(enlarged_by_hand((numbers[:9] < 0.6).view(3, 3), (float(numbers[9]), float(numbers[10])), 12, 16))
    with torch.no_grad():
        scores = [float(net((image * mask)[None])[0, c]) for mask in masks]
    weighted = sum(score * mask for score, mask in zip(scores, masks, strict=True))
    return weighted / sum(masks) - sum(scores) / 40


@each_image
def mc_rise_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """40 masks of 3 x 3 cells from seed 3, seen or in one of 5 colors: seen less colored, mean over the colors."""
    dark, light = image.flatten(1).min(1).values, image.flatten(1).max(1).values
    colors = [dark, light]
    for channel in range(3):
        colors.append(torch.stack([light[k] if k == channel else dark[k] for k in range(3)]))
    total, times = torch.zeros(6, 12, 16, dtype=torch.float64), torch.zeros(6, 12, 16, dtype=torch.float64)
    for numbers in _numbers_by_hand(18, 40):
        shift = (float(numbers[18]), float(numbers[19]))
        seen = (numbers[:9] < 0.6).view(3, 3)
        which = (numbers[9:18] * 5).long().view(3, 3)
        masks = [enlarged_by_hand(~seen & (which == k), shift, 12, 16) for k in range(5)]
        masks.append(enlarged_by_hand(seen, shift, 12, 16))
        painted = image * masks[5] + sum(colors[k][:, None, None] * masks[k] for k in range(5))
        with torch.no_grad():
            score = net(painted[None])[0, c]
        total += score * torch.stack(masks)
        times += torch.stack(masks)
    means = total / times
    return (means[5] - means[:5]).mean(0)


@each_image
def _sobol_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Jansen's estimator, one of four designs and one cell at a time; the variance is that of all masks."""
    labels, designs = cells_of(12, 16, 2, 2), 4

    def score(shown: Tensor) -> float:
        with torch.no_grad():
            return float(net((image * shown.double()[labels])[None])[0, c])

    everything, moved = [], torch.zeros(4, dtype=torch.float64)
    for point in torch.quasirandom.SobolEngine(8, scramble=True, seed=5).draw(designs):
        everything.append(whole := score(point[:4]))
        for cell in range(4):
            changed = point[:4].clone()
            changed[cell] = point[4 + cell]
            everything.append(score(changed))
            moved[cell] += (whole - everything[-1]) ** 2 / 2 / designs
    return (moved / torch.tensor(everything).double().var(unbiased=False))[labels]


@each_image
def hsic_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """trace(K H L H) / (s - 1)^2 with both matrices written out, over all 16 coalitions of 2 x 2 cells."""
    labels = cells_of(12, 16, 2, 2)
    coalitions = list(itertools.product((0, 1), repeat=4))
    center = torch.eye(16, dtype=torch.float64) - 1 / 16
    f = [value_of(net, image, c, labels, tuple(k for k in range(4) if here[k])) for here in coalitions]
    apart = sorted(abs(a - b) for a in f for b in f if a != b)
    width = apart[(len(apart) - 1) // 2]
    gram = torch.tensor([[math.exp(-((a - b) ** 2) / (2 * width**2)) for a in f] for b in f], dtype=torch.float64)
    values = []
    for k in range(4):
        kernel = torch.tensor([[0.5 - (a[k] - b[k]) ** 2 for a in coalitions] for b in coalitions]).double()
        values.append(torch.trace(kernel @ center @ gram @ center) / 15**2)
    return torch.stack(values)[labels]


@each_image
def vit_cx_by_hand(net: nn.Module, image: Tensor, c: int, limit: float = 0.3, sigma: float = 0.1) -> Tensor:
    """Masks, clusters and impacts of ViT-CX one by one, for the layer `act2` of `curved`, in the order of the authors.

    Their clusters are those of scikit-learn with precomputed distances and complete linkage.
    """
    cut = [name for name, _ in net.named_children()].index("act2") + 1
    with torch.no_grad():
        channels = net[:cut](image[None])
        large = torch.nn.functional.interpolate(channels, image.shape[1:], mode="bilinear")[0].flatten(1)
    masks = [(row - row.min()) / (row.max() - row.min()) for row in large]
    clusters = [[k] for k in range(len(masks))]

    def gap(a: list[int], b: list[int]) -> float:
        return max(1 - float(masks[i] @ masks[j] / (masks[i].norm() * masks[j].norm())) for i in a for j in b)

    while len(clusters) > 1:
        d, a, b = min((gap(a, b), a, b) for a, b in itertools.combinations(clusters, 2))
        if d >= limit:
            break
        clusters = sorted([each for each in clusters if each not in (a, b)] + [sorted(a + b)])
    summed = [torch.stack([masks[k] for k in cluster]).sum(0) for cluster in clusters]
    summed = [((m - m.min()) / (m.max() - m.min())).view(image.shape[1:]) for m in summed]
    generator, span = PerImageGenerators(1, 0), image.max() - image.min()
    total, impacts = torch.zeros_like(image[0]), []
    with torch.no_grad():
        for mask in summed:
            noise = generator.normal_noise(0, 1, *image.shape)[0].double() * sigma * span * (1 - mask)
            scores = net(torch.stack([image * mask + noise, image + noise, image]))[:, c]
            impacts.append(scores[0] - scores[1] + scores[2])
            total += impacts[-1] * mask / torch.stack(summed).sum(0)
    # The authors' map has another constant; this one has a mean impact of 0.
    return (total - torch.stack(impacts).mean()) / len(summed)


@each_image
def _search_by_hand(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Four steps of the search for 30% of the image, mask and gradients by autograd, one image at a time.

    It starts at the best of 5 x 5 discs, whose parameters lie half a disc of the smooth mask further inside.
    """
    height, width, reach = *image.shape[1:], 3
    count = round(0.3 * height * width)
    at = (
        torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1).flatten(0, 1).double()
    )
    pixels = [(y, z) for y in range(-reach, height + reach) for z in range(-reach, width + reach)]
    near = torch.cdist(torch.tensor(pixels).double(), at, compute_mode="donot_use_mm_for_euclid_dist")
    square = (torch.tensor(pixels).double()[:, None] - at).abs().amax(-1) <= reach + 1
    disc = torch.exp(-2 * (near / reach - 0.5).clamp(min=0) ** 2) * square
    inside = torch.tensor([0 <= y < height and 0 <= z < width for y, z in pixels])
    # A pixel's window is 9 x 9; positions outside the image are 0 but count in the soft maximum.
    nothing = 81 - square.sum(1)

    def smooth(p: Tensor) -> Tensor:
        seen = p * disc
        weights = torch.exp(20 * seen) * square
        return (seen * weights).sum(1) / (weights.sum(1) + nothing)

    wanted = torch.cat([torch.zeros(len(pixels) - count), torch.ones(count)]).double()

    def part(values: Tensor) -> Tensor:
        """The pixels to keep, with the highest values."""
        order = values.flatten().sort(descending=True, stable=True).indices[:count]
        return torch.zeros(height * width).double().index_fill(0, order, 1.0)

    def kept(mask: Tensor) -> float:
        return float(net((image * mask.view(height, width))[None])[0, c].detach())

    centers = [((i + 0.5) * height / 5, (j + 0.5) * width / 5) for i in range(5) for j in range(5)]
    apart = [((at[:, 0] + 0.5 - y) ** 2 + (at[:, 1] + 0.5 - z) ** 2).sqrt() for y, z in centers]
    best = max(apart, key=lambda away: kept(part(-away)))
    radius = max(best[part(-best) > 0].max() - reach / 2, best.min())
    p, velocity = (best <= radius).double(), 0
    for step in range(4):
        p.requires_grad_()
        m = smooth(p)
        score = net((image * m[inside].view(height, width))[None])[0, c]
        (climb,) = torch.autograd.grad(score, p, retain_graph=True)
        (away,) = torch.autograd.grad(((m.sort(stable=True).values - wanted) ** 2).mean() / 2, p)
        velocity = 0.9 * velocity + 0.1 * (climb / climb.abs().sum() - 4 * 16 ** (step / 4) * away)
        p = (p.detach() + 0.5 * height * width / 4 * velocity).clamp(0, 1)
    searched, disc = smooth(p)[inside].detach(), part(-best)
    return (disc if kept(disc) > kept(part(searched)) else searched).view(height, width)


def _tiny() -> Tensor:
    """The search improves on the best disc for the first image only."""
    return random_images(height=5, width=8)


def _of_masks(truth: str, expected: Expected) -> Oracle:
    options = {"samples": 40, "cells": 3, "p": 0.6, "seed": 3}
    return Oracle(truth, curved, expected, options=options, rtol=1e-6, atol=1e-8)


ORACLES: dict[str, Oracle] = {
    "occlusion": Oracle(
        "window by window, clipped at the border",
        curved,
        lambda net, x, c: occlusion_by_hand(net, x, c, (5, 4), (4, 3)),
        options={"window": (5, 4), "stride": (4, 3)},
    ),
    "feature_ablation": Oracle("a loop over single cells", curved, ablation_by_hand, options={"masks": (3, 4)}),
    "rise": _of_masks("the same masks drawn and enlarged by hand", rise_by_hand),
    "d_rise": _of_masks("RISE by hand: what differs is the target", rise_by_hand),
    "mc_rise": _of_masks("the same colored masks sampled by hand", mc_rise_by_hand),
    "lime": Oracle(
        "weighted least squares on all coalitions",
        curved,
        _lime_by_hand,
        options={"masks": (2, 3), "samples": 2**6, "kernel_width": 0.4, "ridge": 0.0},
        rtol=1e-6,
        atol=1e-9,
    ),
    "kernel_shap": Oracle("Shapley's definition over all coalitions", curved, shapley_map, options={"masks": (2, 3)}),
    "shapley_sampling": Oracle(
        "gains along the same orders by hand",
        curved,
        _orders_by_hand,
        options={"masks": (2, 3), "samples": 3, "seed": 3},
    ),
    "extremal_perturbation": Oracle(
        "the same search with autograd, pixel by pixel",
        curved,
        _search_by_hand,
        images=_tiny,
        options={"steps": 4, "area": 0.3, "baseline": "zeros"},
        rtol=1e-6,
        atol=1e-8,
    ),
    "vit_cx": Oracle(
        "the authors' code retyped in float64, with clusters by scikit-learn's definition",
        curved,
        vit_cx_by_hand,
        options={"sigma": 0.1, "distance": 0.3},
        layer="act2",
    ),
    "sobol": Oracle(
        "Jansen's estimator on the same points",
        curved,
        _sobol_by_hand,
        options={"cells": 2, "samples": 4, "seed": 5},
        rtol=1e-6,
        atol=1e-9,
    ),
    "hsic": Oracle("trace(K H L H) with the matrices written out", curved, hsic_by_hand, options={"cells": 2}),
}
