"""One network, made and enlivened, with its pictures and scores, as all checks use it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import explainers
from benchmarks.zoo.oracles import Layout, Lit, Step, candidates, lit, outputs, patches, shapes, steps
from benchmarks.zoo.weights import enliven, picture

Size = tuple[int, int]
CLASSES = 10
WIDE = (224, 160)
SMALL = (160, 160)
SQUARE = (224, 224)
PROOF = 0.35
"""How well a layout must explain the patches' places: a correlation."""


@dataclass(frozen=True)
class Network:
    """`make` builds it for a size of picture; `sizes` are heights and widths: the first meets all checks, others a few.

    `target` turns an output into one score an image; `forward` is what a caller gives where the network does not take
    images alone; `finish` comes after its weights are drawn; `seen` is the size to which it stretches every picture,
    `rounding` what a batch may change in its scores.
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

    @property
    def fixed(self) -> bool:
        """Whether it takes pictures of one size only, a square."""
        return len(self.sizes) == 1 and self.sizes[0][0] == self.sizes[0][1]


class Subject:
    """A network for pictures of one size."""

    def __init__(self, network: Network, size: Size) -> None:
        self.network, self.size = network, size
        torch.manual_seed(0)
        model = network.make(size).eval()
        call = network.forward(model) if network.forward else model
        self.model = enliven(model, call, size)
        if network.finish:
            self.model = network.finish(self.model)
        self._lit: dict[str, tuple[Tensor, list[Lit]]] = {}
        self.images = picture((2, *size))

    @property
    def options(self) -> dict[str, Any]:
        return self.options_for(self.model)

    def options_for(self, model: nn.Module) -> dict[str, Any]:
        """What a caller gives besides model and images."""
        return {"forward": self.network.forward(model)} if self.network.forward else {}

    def call(self, model: nn.Module) -> Callable[[Tensor], Any]:
        return self.network.forward(model) if self.network.forward else model

    def score(self, model: nn.Module | None = None) -> Callable[[Tensor], Tensor]:
        """Images -> scores [N] of the target, by `model`."""
        call, target = self.call(model or self.model), self.network.target

        def score(images: Tensor) -> Tensor:
            output = call(images)
            if callable(target):
                return target(output)
            scores = getattr(output, "logits", output)
            return (scores["logits"] if isinstance(scores, dict) else scores)[:, target]

        return score

    @property
    def target(self) -> Any:
        return self.network.target

    def in_float64(self) -> tuple[nn.Module, Tensor, float]:
        """The network and its pictures in float64 and the tolerance there; float32 where it cannot run in that."""
        try:
            with torch.no_grad():
                self.score(self.precise)(self.images[:1].double())
        except (RuntimeError, TypeError, ValueError):
            return self.model, self.images, 2e-3
        return self.precise, self.images.double(), 1e-5

    def plain(self, model: nn.Module | None = None) -> nn.Module:
        """The network for oracles by autograd: without checkpoints, below which hooks see no gradient."""
        plain = copy.copy(model or self.model)
        if hasattr(plain, "use_reentrant"):
            plain.use_reentrant = None
        return plain

    @cached_property
    def scores(self) -> tuple[Tensor, Tensor]:
        """Of either picture."""
        score = self.score()
        with torch.no_grad():
            first, other = (score(self.images[i : i + 1]) for i in (0, 1))
        return first, other

    @cached_property
    def differentiable(self) -> bool:
        """Whether the score depends on the picture by autograd at all."""
        with torch.enable_grad():
            leaf = self.images[:1].clone().requires_grad_()
            total = self.score(self.plain())(leaf).sum()
            if not total.requires_grad:
                return False
            (slope,) = torch.autograd.grad(total, leaf, allow_unused=True)
        return slope is not None and bool(slope.any())

    @cached_property
    def effects(self) -> Tensor:
        """The library's effects of the default layer's channels, [1, K]."""
        return explainers.channel_effects(self.model, self.images[:1], self.target, **self.options)

    @cached_property
    def precise(self) -> nn.Module:
        """A copy in float64."""
        return copy.deepcopy(self.model).double()

    @cached_property
    def layers(self) -> list[explainers.Layer]:
        return explainers.list_layers(self.model, self.images[:1], **self.options)

    @cached_property
    def default(self) -> str:
        """The library's choice."""
        return explainers.default_layer(self.model, self.images[:1], **self.options)

    @cached_property
    def steps(self) -> tuple[list[Step], int]:
        return steps(self.model, self.score(), self.images[:1])

    def lit(self, names: list[str]) -> dict[str, tuple[Tensor, list[Lit]]]:
        """The outputs of these calls for the first image, and for the image with each patch."""
        missing = [name for name in names if name not in self._lit]
        if missing:
            score, one = self.score(), self.images[:1]
            before = outputs(self.model, score, one, missing)
            after: dict[str, list[Lit]] = {name: [] for name in before}
            for changed, place in patches(one):
                for name, tensor in outputs(self.model, score, changed, missing).items():
                    after[name].append((tensor, place))
            self._lit |= {name: (before[name], after[name]) for name in before}
        return {name: self._lit[name] for name in names if name in self._lit}

    @cached_property
    def turned(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """The shapes of all outputs for an upright picture and for one on its side; empty where one size is taken."""
        if self.network.fixed or self.network.seen:
            return {}
        both = []
        wide = self.size if self.size[0] != self.size[1] else WIDE
        for size in (wide, wide[::-1]):
            model = self.model if size == self.size else self.network.make(size).eval().requires_grad_(False)
            score = self.score(model)
            both.append(shapes(model, score, picture((1, *size))))
        return {name: (shape, both[1][name]) for name, shape in both[0].items() if name in both[1]}

    def follows(self, name: str, layout: Layout) -> bool | None:
        """Whether the layout's axes are those that turn with the picture; None where that cannot be seen."""
        upright, lying = self.turned.get(name, ((), ()))
        if len(layout.axes) != 2 or len(upright) != 4 or len(lying) != 4:
            return None
        rows, columns = layout.axes
        other = ({1, 2, 3} - {rows, columns}).pop()
        turns = (upright[rows], upright[columns]) == (lying[columns], lying[rows])
        return turns and upright[rows] != upright[columns] and upright[other] == lying[other]

    def best(self, name: str, shape: tuple[int, ...]) -> tuple[float, Layout | None]:
        """The layout with the best evidence, and how good that is; of two alike, that with fewer tokens before it."""
        found = candidates(shape, self.network.seen or self.size)
        rated = [(self.evidence(name, each) - 0.01 * each.extra, each) for each in found]
        value, layout = max(rated, key=lambda pair: pair[0], default=(0.0, None))
        if layout and value > PROOF - 0.01 * layout.extra:
            return value, layout
        # Attention may mix all patches of a coarse grid; then the shape may leave one layout, of tokens with none or a
        # class token before them.
        if len(shape) == 3:
            found = [each for each in found if each.axes == (1,) and each.extra <= 1]
            found = [each for each in found if each.extra == found[0].extra]
        return (PROOF, found[0]) if len(found) == 1 else (0.0, None)

    def matters(self, name: str) -> bool:
        """Whether the picture changes the call's output: a norm over one channel, say, gives a constant."""
        score = self.score()
        one, other = (outputs(self.model, score, self.images[i : i + 1], [name])[name] for i in (0, 1))
        return one.shape != other.shape or float((one - other).abs().max()) > 1e-6 * float(one.abs().max())

    def evidence(self, name: str, layout: Layout, pooled: bool = False) -> float:
        """1 where the axes turn with the picture, 0 where others do, else how well lit patches lie."""
        seen = None if pooled else self.follows(name, layout)
        if seen is not None:
            return float(seen)
        ((before, after),) = self.lit([name]).values()
        same = all(tensor.shape == before.shape for tensor, _ in after)
        return lit(layout, before, after) if same else 0.0

    def layout(self, name: str) -> Layout | None:
        """The layout of a call's output by evidence alone."""
        shape = next((step.shape for step in self.steps[0] if step.name == name), ())
        return self.best(name, shape)[1]
