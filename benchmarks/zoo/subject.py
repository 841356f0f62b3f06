"""One network with random weights, its images and its scores, for all checks.

New networks hide errors: biases are 0, batch norm is the identity, layer scales of 1e-6 disable blocks, and position
embeddings are 0. Here all of them are random, and batch norms have slightly changed statistics of a random batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import explainers
from benchmarks.zoo.oracles import Layout, Lit, Step, candidates, lit, outputs, patches, steps

Size = tuple[int, int]
CLASSES = 10
WIDE = (224, 160)
SMALL = (160, 160)
SQUARE = (224, 224)
PROOF = 0.35
"""The least correlation of a layout with the positions of the patches."""


@dataclass(frozen=True)
class Network:
    """`make` builds it for an image size; `sizes` are heights and widths: all checks use the first, some the others.

    `target` converts an output to one score per image. `forward` is the caller's function if the network has other
    inputs. `finish` runs after the weights are randomized. `seen` is the size to which the network resizes every
    image, and `rounding` the largest difference of scores in a batch. `checks` are the checks that have an oracle for
    it, by default all.
    """

    name: str
    make: Callable[[Size], nn.Module]
    sizes: tuple[Size, ...] = (WIDE, SMALL)
    kind: str = "classifier"
    target: Any = 3
    forward: Callable[[nn.Module], Callable[[Tensor], Any]] | None = None
    finish: Callable[[nn.Module], nn.Module] | None = None
    seen: Size | None = None
    rounding: float = 1e-3
    checks: tuple[str, ...] = ()

    @property
    def fixed(self) -> bool:
        """Return whether the network accepts only one size, a square."""
        return len(self.sizes) == 1 and self.sizes[0][0] == self.sizes[0][1]

    def call(self, model: nn.Module) -> Callable[[Tensor], Any]:
        """Return the function of images: `forward` or the model itself."""
        return self.forward(model) if self.forward else model


class Subject:
    """A network for images of one size."""

    def __init__(self, network: Network, size: Size) -> None:
        self.network, self.size = network, size
        torch.manual_seed(0)
        model = network.make(size).eval()
        self.images = random_images((2, *size))
        self.model = randomize(model, network.call(model), self.images)
        if network.finish:
            self.model = network.finish(self.model)
        self.lit: dict[str, tuple[Tensor, list[Lit]]] = {}
        self.target, self.seen = network.target, network.seen or size
        self.options = self.options_for(self.model)

    def options_for(self, model: nn.Module) -> dict[str, Any]:
        """Return the keywords of a call besides model and images."""
        return {"forward": self.network.forward(model)} if self.network.forward else {}

    def score(self, model: nn.Module | None = None) -> Callable[[Tensor], Tensor]:
        """Images -> scores [N] of the target, by `model`."""
        call, target = self.network.call(model or self.model), self.network.target

        def score(images: Tensor) -> Tensor:
            output = call(images)
            if callable(target):
                return target(output)
            scores = getattr(output, "logits", output)
            return (scores["logits"] if isinstance(scores, dict) else scores)[:, target]

        return score

    @cached_property
    def in_float64(self) -> tuple[nn.Module, Tensor, float]:
        """Return network, images and tolerance in float64, or in float32 if the network cannot run in float64."""
        precise, images = copy.deepcopy(self.model).double(), self.images.double()
        try:
            with torch.no_grad():
                self.score(precise)(images[:1])
        except (RuntimeError, TypeError, ValueError):
            return self.model, self.images, 2e-3
        return precise, images, 1e-5

    def plain(self, model: nn.Module | None = None) -> nn.Module:
        """Return the network without checkpoints, inside which hooks see no gradient."""
        plain = copy.copy(model or self.model)
        if hasattr(plain, "use_reentrant"):
            plain.use_reentrant = None
        return plain

    @cached_property
    def scores(self) -> tuple[Tensor, Tensor]:
        """Return the scores of both images."""
        score = self.score()
        with torch.no_grad():
            first, other = (score(self.images[i : i + 1]) for i in (0, 1))
        return first, other

    @cached_property
    def differentiable(self) -> bool:
        """Return whether the score has a gradient with respect to the image."""
        with torch.enable_grad():
            leaf = self.images[:1].clone().requires_grad_()
            total = self.score(self.plain())(leaf).sum()
            if not total.requires_grad:
                return False
            (slope,) = torch.autograd.grad(total, leaf, allow_unused=True)
        return slope is not None and bool(slope.any())

    @cached_property
    def effects(self) -> Tensor:
        """Return the library's effects of the default layer's channels, [1, K]."""
        return explainers.channel_effects(self.model, self.images[:1], self.target, **self.options)

    @cached_property
    def layers(self) -> list[explainers.Layer]:
        return explainers.list_layers(self.model, self.images[:1], **self.options)

    @cached_property
    def default(self) -> str:
        """Return the default layer of the library."""
        return explainers.default_layer(self.model, self.images[:1], **self.options)

    @cached_property
    def steps(self) -> tuple[list[Step], int]:
        return steps(self.model, self.score(), self.images[:1])

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all outputs."""
        return {step.name: step.shape for step in self.steps[0]}

    def light(self, names: list[str]) -> None:
        """Store the outputs of these calls for the first image, and for the image with each patch."""
        missing = [name for name in names if name not in self.lit]
        if missing:
            score, one = self.score(), self.images[:1]
            after = [(outputs(self.model, score, image, missing), position) for image, position in patches(one)]
            for name, before in outputs(self.model, score, one, missing).items():
                self.lit[name] = before, [(found[name], position) for found, position in after]

    @cached_property
    def turned(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the shapes of all outputs for an image and its transpose; empty if only one size is accepted."""
        if self.network.fixed or self.network.seen:
            return {}
        both = []
        wide = self.size if self.size[0] != self.size[1] else WIDE
        for size in (wide, wide[::-1]):
            model = self.model if size == self.size else self.network.make(size).eval().requires_grad_(False)
            calls, _ = steps(model, self.score(model), random_images((1, *size)))
            both.append({step.name: step.shape for step in calls})
        return {name: (shape, both[1][name]) for name, shape in both[0].items() if name in both[1]}

    def follows(self, name: str, layout: Layout) -> bool | None:
        """Return whether the layout's axes are swapped if the image is transposed; None if that is not visible."""
        upright, lying = self.turned.get(name, ((), ()))
        if len(layout.axes) != 2 or len(upright) != 4 or len(lying) != 4:
            return None
        (rows, columns), other = layout.axes, layout.channels
        turns = (upright[rows], upright[columns]) == (lying[columns], lying[rows])
        return turns and upright[rows] != upright[columns] and upright[other] == lying[other]

    def best(self, name: str) -> tuple[float, Layout | None]:
        """Return the layout with the best evidence and its value; ties go to the layout with fewer extra tokens."""
        shape = self.shapes.get(name, ())
        found = candidates(shape, self.seen)
        rated = [(self.evidence(name, each) - 0.01 * each.extra, each) for each in found]
        value, layout = max(rated, key=lambda pair: pair[0], default=(0.0, None))
        if layout and value > PROOF - 0.01 * layout.extra:
            return value, layout
        # Attention may mix all patches of a coarse grid; then the shape may leave one layout: tokens with or without a
        # class token.
        if len(shape) == 3:
            found = [each for each in found if each.axes == (1,) and each.extra <= 1]
            found = [each for each in found if each.extra == found[0].extra]
        return (PROOF, found[0]) if len(found) == 1 else (0.0, None)

    def matters(self, name: str) -> bool:
        """Return whether the image changes the call's output; a norm over one channel, for example, is constant."""
        score = self.score()
        one, other = (outputs(self.model, score, self.images[i : i + 1], [name])[name] for i in (0, 1))
        return one.shape != other.shape or float((one - other).abs().max()) > 1e-6 * float(one.abs().max())

    def evidence(self, name: str, layout: Layout, pooled: bool = False) -> float:
        """Return 1 or 0 if transposing shows whether the axes are correct, else the correlation of the patches."""
        seen = None if pooled else self.follows(name, layout)
        if seen is not None:
            return float(seen)
        self.light([name])
        before, after = self.lit[name]
        same = all(tensor.shape == before.shape for tensor, _ in after)
        return lit(layout, before, after) if same else 0.0

    def layout(self, name: str) -> Layout | None:
        """Return the layout of a call's output from evidence."""
        return self.best(name)[1]


# Random weights that make every part of a network matter, so that an error in any of them is visible


def randomize(model: nn.Module, call: Callable[[Tensor], Any], images: Tensor) -> nn.Module:
    """Randomize biases, norms, layer scales and embeddings in place, and set batch norm statistics with `call`."""
    draws = torch.Generator().manual_seed(0)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.running_var is not None]
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.is_floating_point():
                    _randomize(module, name, parameter, draws)
        handles = [norm.register_forward_pre_hook(_take_statistics) for norm in norms]
        if norms:
            call(images)
        for norm, handle in zip(norms, handles, strict=True):
            handle.remove()
            spread = norm.running_var.sqrt()
            norm.running_mean += 0.2 * spread * torch.randn(len(spread), generator=draws)
            norm.running_var *= 0.7 + 0.8 * torch.rand(len(spread), generator=draws)
    return model.eval().requires_grad_(False)


def _randomize(module: nn.Module, name: str, parameter: Tensor, draws: torch.Generator) -> None:
    noise = torch.randn(parameter.shape, generator=draws)
    is_norm = "norm" in type(module).__name__.lower() or isinstance(module, _BatchNorm)
    if "bias" in name and parameter.ndim == 1:
        # Small linear layers mix attention weights; a constant would dominate them.
        parameter.copy_(0.2 * noise if len(parameter) > 16 or not isinstance(module, nn.Linear) else 0.003 * noise)
    elif is_norm and name == "weight":
        # Zero weights end a residual branch, which should not dominate the rest.
        parameter.copy_((1 if float(parameter.abs().max()) > 0 else 0.4) * (1 + 0.2 * noise))
    elif parameter.ndim >= 2 and name.endswith("weight"):
        fan = parameter[0].numel()
        if isinstance(module, (nn.Linear, nn.Conv2d)) and float(parameter.std()) < 0.6 / math.sqrt(fan):
            parameter.copy_(noise / math.sqrt(fan))
    elif float(parameter.std(correction=0)) < 0.1 * max(1.0, float(parameter.abs().mean())):
        # Layer scales, embeddings and tokens are initialized with one value, or nearly.
        middle = float(parameter.mean())
        parameter.copy_((middle if abs(middle) > 0.3 else 0.3 * (parameter.ndim < 3)) + 0.2 * noise)


def _take_statistics(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    values = inputs[0].transpose(0, 1).flatten(1)
    # With few rows, as after pooling, use the variance over all channels.
    many = values.shape[1] >= 16
    norm.running_mean.copy_(values.mean(1) if many else values.mean())
    norm.running_var.copy_((values.var(1) if many else 0) + (0.1 if many else 1.0) * float(values.var()) + 1e-3)


def random_images(size: tuple[int, int, int]) -> Tensor:
    """Return [N, 3, H, W]: coarse color patches with noise, in the range of normalized photos."""
    draws = torch.Generator().manual_seed(1)
    count, height, width = size
    coarse = torch.randn(count, 3, 6, 6, generator=draws)
    smooth = nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)
    return smooth + 0.5 * torch.randn(count, 3, height, width, generator=draws)
