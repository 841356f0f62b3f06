"""Oracles of the input-gradient methods, the path integrals and the controls."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy
import torch
from torch import Tensor, nn

from explainers.perturbation.rng import PerImageGenerators
from tests.support.nets import Cubic, act_grad, curved, random_images, settle

from .oracle import Oracle, each_image


@each_image
def differences(net: nn.Module, image: Tensor, c: int, step: float = 1e-5) -> Tensor:
    """d score / d pixel by central differences, one pixel at a time."""
    moves = step * torch.eye(image.numel(), dtype=image.dtype).view(-1, *image.shape)
    with torch.no_grad():
        return ((net(image + moves) - net(image - moves))[:, c] / (2 * step)).view(image.shape)


def gradient(net: Callable[[Tensor], Tensor], x: Tensor, c: int) -> Tensor:
    """d score c / d x for one image [C, H, W]."""
    leaf = x.detach().clone().requires_grad_()
    return torch.autograd.grad(net(leaf[None])[0, c], leaf)[0]


@each_image
def noisy_gradients(
    net: nn.Module, image: Tensor, c: int, samples: int = 4, sigma: float = 0.2, seed: int = 3
) -> Tensor:
    """Gradients [N, samples, C, H, W] at noisy images, every image with its own generator."""
    generator = PerImageGenerators(1, seed)
    noise = [generator.normal_noise(0, 1, *image.shape)[0].double() for _ in range(samples)]
    span = image.max() - image.min()
    return torch.stack([gradient(net, image + sigma * span * each, c) for each in noise])


def filtered(pixels: Tensor, cutoff: float) -> Tensor:
    """The Fourier components of an image up to the cutoff, summed one by one."""
    height, width = pixels.shape[-2:]
    side = min(height, width)
    y, z = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    result = torch.zeros_like(pixels)
    for k in range(-(height // 2), (height + 1) // 2):
        for m in range(-(width // 2), (width + 1) // 2):
            if math.hypot(k * side / height, m * side / width) <= cutoff:
                phase = 2 * math.pi * (k * y / height + m * z / width)
                cos, sin = phase.cos(), phase.sin()
                real, imaginary = (pixels * cos).sum((-2, -1)), (pixels * sin).sum((-2, -1))
                result += (real[..., None, None] * cos + imaginary[..., None, None] * sin) / (height * width)
    return result


def _low_waves(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    sizes = [gradient(net, image, c).abs().amax(0) for image, c in zip(x, classes, strict=True)]
    return filtered(torch.stack(sizes), 3.0).abs()


def legendre(steps: int) -> list[tuple[float, float]]:
    """NumPy's points and weights of Gauss-Legendre quadrature, on [0, 1]."""
    points, weights = numpy.polynomial.legendre.leggauss(steps)
    return [((p + 1) / 2, w / 2) for p, w in zip(points.tolist(), weights.tolist(), strict=True)]


def straight_integral(net: Callable[[Tensor], Tensor], x: Tensor, c: int, start: Tensor, steps: int = 40) -> Tensor:
    """Integrated gradients of one image, point by point."""
    return sum(w * gradient(net, start + t * (x - start), c) * (x - start) for t, w in legendre(steps))


def blurred(image: Tensor, deviation: float) -> Tensor:
    """The heat equation on the grid with mirrored borders, by the exponential of the matrix of second differences."""

    def heat(size: int) -> Tensor:
        second = -2 * torch.eye(size, dtype=torch.float64)
        for i in range(size):
            for j in (i - 1, i + 1):
                second[i, min(max(j, 0), size - 1)] += 1
        return torch.linalg.matrix_exp(deviation**2 / 2 * second)

    return heat(image.shape[-2]) @ image @ heat(image.shape[-1]).T


@each_image
def _blur_path(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Points along the deviations 2 to 0, dγ/dt by central differences of the blur."""
    total = torch.zeros_like(image)
    for t, w in legendre(24):
        speed = (blurred(image, 2 * (1 - t - 1e-5)) - blurred(image, 2 * (1 - t + 1e-5))) / 2e-5
        total += w * gradient(net, blurred(image, 2 * (1 - t)), c) * speed
    return total


@each_image
def guided_path(net: nn.Module, x: Tensor, c: int, moves: int, fraction: float, anchors: int) -> Tensor:
    """Guided integrated gradients of one image from zero, segment by segment, value by value."""
    total = torch.zeros_like(x)
    for segment in range(anchors + 1):
        begin, end = x * segment / (anchors + 1), x * (segment + 1) / (anchors + 1)
        length, here = float((end - begin).abs().sum()), begin.clone()
        for move in range(moves):
            g, there = gradient(net, here, c), here.clone()
            goal = length * (1 - (move + 1) / moves)
            while float((end - there).abs().sum()) - goal > 1e-12 * length:
                waiting = [i for i in range(x.numel()) if there.flatten()[i] != end.flatten()[i]]
                sizes = g.flatten().abs()
                rank = int(fraction * (x.numel() - 1))
                ordered = sorted(float(sizes[i]) for i in waiting)
                limit = ordered[min(rank, len(ordered) - 1)]
                chosen = [i for i in waiting if sizes[i] <= limit]
                excess = float((end - there).abs().sum()) - goal
                within = float((end - there).flatten()[chosen].abs().sum())
                share = min(1.0, excess / within)
                for i in chosen:
                    way = end.view(-1)[i] - there.view(-1)[i]
                    there.view(-1)[i] = end.view(-1)[i] if share == 1 else there.view(-1)[i] + share * way
            if move == moves - 1:
                there = end.clone()
            total += (there - here) * (g + gradient(net, there, c)) / 2
            here = there
    return total


def van_der_corput(count: int) -> list[int]:
    """0 to count - 1, ordered by their bit-reversed values."""
    digits = max(1, (count - 1).bit_length())
    return [i for i in sorted(range(2**digits), key=lambda i: f"{i:0{digits}b}"[::-1]) if i < count]


@each_image
def _shap(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Eight samples, each with its own noise baseline; the first offset and the baselines have their own generators."""
    generator = PerImageGenerators(1, 5 + 2**32)
    low, high = image.min(), image.max()
    shift = float(PerImageGenerators(1, 5 + 2**31).uniform(0, 1))
    total = torch.zeros_like(image)
    for i in van_der_corput(8):
        start = low + (high - low) * generator.uniform_noise(0, 1, *image.shape)[0].double()
        at = (shift + i / 8) % 1
        total += gradient(net, start + at * (image - start), c) * (image - start) / 8
    return total


@each_image
def _layer_integral(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Integrated gradients of the suffix after conv2, along the straight line from conv2(0) to conv2(x)."""
    begin, end = net[:3](torch.stack([0 * image, image])).detach()
    return straight_integral(net[3:], end, c, begin, 20)


def _influence(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """The layer's gradients, integrated over the input's path from zero."""
    return sum(w * act_grad(net, net.act1, t * x, classes)[1] for t, w in legendre(6))


@each_image
def conductance_by_hand(net: nn.Module, image: Tensor, c: int, cut: int, steps: int = 40) -> Tensor:
    """The definition: d score / d unit times d unit / d t, the latter by forward differentiation of the first part."""
    total = 0.0
    for t, w in legendre(steps):
        place, one = torch.tensor(t, dtype=torch.float64), torch.ones((), dtype=torch.float64)
        unit, speed = torch.func.jvp(lambda s: net[:cut]((s * image)[None])[0], (place,), (one,))
        total = total + w * gradient(net[cut:], unit, c) * speed
    return total.detach()


def merge_by_hand(attribution: Tensor, regions: list[Tensor], least: int = 1) -> Tensor:
    """Kapishnikov's algorithm 1, one region at a time, every gain from its definition."""
    heat, taken, left = torch.zeros_like(attribution), torch.zeros_like(attribution, dtype=torch.bool), list(regions)
    while left := [r for r in left if int((r & ~taken).sum()) >= least]:
        gains = [float(attribution[r & ~taken].mean()) for r in left]
        new = left.pop(gains.index(max(gains))) & ~taken
        heat[new] = attribution[new].mean()
        taken |= new
    if not taken.all():
        heat[~taken] = attribution[~taken].mean()
    return heat


def quarters(height: int = 12, width: int = 16) -> Tensor:
    """Labels of uneven cells of 5 x 3 pixels."""
    return (torch.arange(height) // 5)[:, None] * 10 + torch.arange(width) // 3


@each_image
def _xrai(net: nn.Module, image: Tensor, c: int) -> Tensor:
    black = image.flatten(1).min(1).values.view(-1, 1, 1).expand_as(image)
    white = image.flatten(1).max(1).values.view(-1, 1, 1).expand_as(image)
    both = [straight_integral(net, image, c, start) for start in (black, white)]
    labels = quarters()
    return merge_by_hand((sum(both) / 2).amax(0), [labels == each for each in labels.unique()])


def _random(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Cells of 12 / 3 = 4 pixels: 3 x 4 cells, none cut off."""
    values = torch.rand(3, 4, generator=torch.Generator().manual_seed(9)).double()
    return torch.stack([values.repeat_interleave(4, 0).repeat_interleave(4, 1)] * len(x))


@each_image
def _sobel(net: nn.Module, image: Tensor, c: int) -> Tensor:
    p, (height, width) = nn.functional.pad(image[None], (1, 1, 1, 1), mode="replicate")[0], image.shape[-2:]
    wide, tall = p[:, :, 2:] - p[:, :, :-2], p[:, 2:] - p[:, :-2]
    right = wide[:, :height] + 2 * wide[:, 1:-1] + wide[:, 2:]
    down = tall[:, :, :width] + 2 * tall[:, :, 1:-1] + tall[:, :, 2:]
    return ((right / 8) ** 2 + (down / 8) ** 2).sum(0).sqrt()


@each_image
def _centre(net: nn.Module, image: Tensor, c: int) -> Tensor:
    away = [((torch.arange(size).to(image) + 0.5) / size - 0.5) ** 2 for size in image.shape[-2:]]
    return torch.exp(-(away[0][:, None] + away[1]) / (2 * 0.2**2))


def _cubic() -> nn.Module:
    return settle(Cubic((3, 12, 16), 6).double())


def _tiny() -> Tensor:
    return random_images(height=6, width=8)


def _small_cubic() -> nn.Module:
    return settle(Cubic((3, 6, 8), 6).double())


def _of_noise(truth: str, merge: Callable[[Tensor], Tensor]) -> Oracle:
    """From the gradients [N, samples, C, H, W] at noisy images."""
    options = {"samples": 4, "sigma": 0.2, "seed": 3}
    return Oracle(truth, curved, lambda net, x, c: merge(noisy_gradients(net, x, c)), options=options)


ORACLES: dict[str, Oracle] = {
    "saliency": Oracle("central differences", curved, differences, _tiny, rtol=1e-6, atol=1e-9),
    "input_x_gradient": Oracle(
        "central differences x image", curved, lambda net, x, c: x * differences(net, x, c), _tiny, rtol=1e-6, atol=1e-9
    ),
    "smooth_grad": _of_noise("the same noise sampled by hand", lambda g: g.mean(1)),
    "smooth_grad_squared": _of_noise("the same noise sampled by hand", lambda g: g.square().mean(1)),
    "var_grad": _of_noise("the same noise, torch's biased variance", lambda g: g.var(1, unbiased=False)),
    "forgrad": Oracle(
        "wave by wave from the definition of the Fourier series",
        curved,
        _low_waves,
        options={"cutoff": 3.0, "base": "saliency"},
    ),
    "integrated_gradients": Oracle(
        "closed form of a cubic polynomial", _cubic, lambda net, x, c: net.integrated(x, c), options={"steps": 4}
    ),
    "blur_integrated_gradients": Oracle(
        "exponentials of the matrix of second differences, differentiated by differences",
        _small_cubic,
        _blur_path,
        images=_tiny,
        options={"steps": 24, "blur": 2.0},
        rtol=1e-6,
        atol=1e-9,
    ),
    "guided_integrated_gradients": Oracle(
        "algorithm 1, value by value",
        _small_cubic,
        lambda net, x, c: guided_path(net, x, c, 4, 0.15, 2),
        images=_tiny,
        options={"steps": 12, "fraction": 0.15, "anchors": 2},
    ),
    "gradient_shap": Oracle("the same baselines sampled by hand", curved, _shap, options={"samples": 8, "seed": 5}),
    "layer_integrated_gradients": Oracle(
        "only the rest of the network, NumPy's quadrature",
        curved,
        _layer_integral,
        layer="conv2",
        options={"steps": 20},
    ),
    "internal_influence": Oracle(
        "gradients at the layer, NumPy's quadrature", curved, _influence, layer="act1", options={"steps": 6}
    ),
    "layer_conductance": Oracle(
        "the definition, with the layer differentiated forwards",
        curved,
        lambda net, x, c: conductance_by_hand(net, x, c, 4),
        images=_tiny,
        layer="act2",
        options={"steps": 800},
        rtol=1e-4,
        atol=1e-7,
    ),
    "xrai": Oracle(
        "algorithm 1, every gain from its definition, NumPy's quadrature",
        curved,
        _xrai,
        options={"steps": 40, "segments": quarters()},
    ),
    "random_control": Oracle("cells of four pixels by hand", curved, _random, options={"cells": 3, "seed": 9}),
    "edge_control": Oracle("Sobel's sums, pixel by pixel", curved, _sobel),
    "center_control": Oracle("the bell, pixel by pixel", curved, _centre, options={"width": 0.2}),
}
