"""smooth: any method over noisy, turned or differently compared pictures, with mean and standard deviation.

    smooth("grad_cam", noise=0.15, samples=10)(model, images)          noise of 15% of each picture's range
    smooth("saliency", augment=True, samples=16)(model, images, 281)   flips, sizes, angles, places
    smooth("integrated_gradients", baselines=(None, "blur", "mean"))(model, images)

Where the mean is large and the deviation small, the map does not hang on what was varied.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from explainers.errors import BadOption
from explainers.maps.resize import reduce_channels
from explainers.options import Baseline
from explainers.passes.loop import Loop, Partial, Progress
from explainers.passes.run import at_least_float32, open_run
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.registry import Method, check_images, find
from explainers.targets import TargetLike

Explainer = Callable[..., Tensor]
_SAMPLES = 10


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Maps over several samples: `mean` and `std` in the method's own shape, and `n`, how many samples there were.

    `std` is the unbiased standard deviation (n - 1); it is 0 with one sample. After `augment` a place counts the
    samples in which it was in the picture, and one that never was is 0 in both.
    """

    mean: Tensor
    std: Tensor
    n: int

    def __repr__(self) -> str:
        return f"Smoothed({self.n} samples of {tuple(self.mean.shape)}, largest std {float(self.std.max()):.3g})"


@dataclass(frozen=True)
class Augment:
    """What may happen to a picture: `flip` left to right in every second sample; even random numbers for the rest.

    `zoom` is the largest change of size (0.1: from 1 / 1.1 to 1.1), `turn` the largest angle in degrees, `shift` the
    largest way as a share of each side. What comes into the picture from outside is mirrored.
    """

    flip: bool = True
    zoom: float = 0.1
    turn: float = 10.0
    shift: float = 0.05

    def __post_init__(self) -> None:
        if not (0 <= self.zoom <= 3 and 0 <= self.turn <= 180 and 0 <= self.shift < 1):
            raise BadOption(f"{self!r} is not possible. Give zoom from 0 to 3, turn from 0 to 180, shift from 0 to 1.")


def smooth(
    method: str | Method | Explainer,
    *,
    noise: float | None = None,
    augment: Augment | bool | None = None,
    baselines: Sequence[Baseline] | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Callable[..., Smoothed]:
    """Make `f(model, images, target=None, *, progress=None, budget=None, **options) -> Smoothed` out of a method.

    `method` is a name, a `Method`, or any callable of that form. One of three things is varied: `noise`, the deviation
    of normal noise as a share of each picture's range; `augment`, where maps are moved back before they are averaged;
    `baselines`, for methods with that option. `samples` is 10 unless said otherwise, or the number of baselines. The
    classes are those of the clean pictures; every picture gets the same noise or turns, so a batch is as one by one.

    Returns  the function; it stops after a sample when `progress` returns False or `budget` seconds have passed
    Errors   BadOption for a wrong combination; those of the method
    """
    function, name = (find(method), method) if isinstance(method, str) else (method, _name_of(method))
    _refuse(name, function, noise, augment, baselines)
    count = _count(samples, baselines)
    kind = Augment() if augment is True else augment or None

    def smoothed(
        model: nn.Module,
        images: Tensor,
        target: TargetLike = None,
        *,
        progress: Progress | None = None,
        budget: float | None = None,
        **options: Any,
    ) -> Smoothed:
        """`method` over the samples."""
        check_images(model, images)
        with torch.inference_mode(False), torch.no_grad():
            images = images.detach().clone()
            fixed = _top_classes(model, images) if target is None else target
            variants = _variants(images, noise, kind, baselines, PerImageGenerators(1, seed))
            calls = _Samples(function, count, progress, budget)

            def work(chunk: range) -> None:
                variant = next(variants)
                found = calls.call(model, variant.images, fixed, {**options, **variant.options})
                if found is not None:
                    calls.fold.add(*variant.back(found))

            Loop(1, calls.report, budget).run(count, 1, work, calls.best)
        return Smoothed(calls.fold.mean(), calls.fold.std(), calls.fold.n)

    smoothed.__name__ = f"smooth_{name}"
    return smoothed


def _name_of(method: Method | Explainer) -> str:
    return str(getattr(method, "name", None) or getattr(method, "__name__", "the method"))


def _refuse(
    name: str,
    function: Method | Explainer,
    noise: float | None,
    augment: Augment | bool | None,
    baselines: Sequence[Baseline] | None,
) -> None:
    given = [each for each in (noise, augment or None, baselines) if each is not None]
    if len(given) != 1:
        raise BadOption("smooth varies one thing. Give one of noise=0.15, augment=True, baselines=(None, 'blur').")
    if noise is not None and (isinstance(noise, bool) or not 0 <= noise <= 1):
        raise BadOption(f"noise={noise!r} is not possible. Give a share of the picture's range from 0 to 1.")
    if baselines is not None and "baseline" not in _keywords(function):
        raise BadOption(f"{name} has no option 'baseline' to vary. Use noise= or augment= instead.")


def _count(samples: int | None, baselines: Sequence[Baseline] | None) -> int:
    if baselines is not None:
        if isinstance(baselines, (str, Tensor)) or not len(baselines):
            raise BadOption("baselines is not a sequence. Give several, such as (None, 'blur', 0.5).")
        if samples is not None and samples != len(baselines):
            raise BadOption(f"samples={samples!r} does not go with {len(baselines)} baselines. Leave samples out.")
        return len(baselines)
    if samples is None:
        return _SAMPLES
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise BadOption(f"samples={samples!r} is not possible. Give a whole number of at least 1.")
    return samples


def _keywords(function: Method | Explainer) -> set[str]:
    return set(inspect.signature(getattr(function, "function", function)).parameters)


def _top_classes(model: nn.Module, images: Tensor) -> TargetLike:
    with open_run(model, images) as run:
        run.score_inputs()
        return run.target


class _Samples:
    """Calls of the method, one a sample, that also end within a long one: it gets the same progress and budget."""

    def __init__(
        self, function: Method | Explainer, count: int, progress: Progress | None, budget: float | None
    ) -> None:
        self.function, self.count, self.progress, self.budget = function, count, progress, budget
        self.keywords = _keywords(function)
        self.fold, self.stopped, self.began = _Fold(), False, time.monotonic()

    def call(self, model: nn.Module, images: Tensor, target: TargetLike, options: dict[str, Any]) -> Tensor | None:
        """The map of one sample; None where it was cut short and others are there already."""
        if self.progress is not None and "progress" in self.keywords:
            options["progress"] = self.report_within
        if self.budget is not None and "budget" in self.keywords:
            options["budget"] = max(1e-9, self.began + self.budget - time.monotonic())
        found = self.function(model, images, target, **options)
        over = self.budget is not None and time.monotonic() - self.began >= self.budget
        cut = self.stopped or ("budget" in options and over)
        return None if cut and self.fold.n else at_least_float32(found)

    def report_within(self, partial: Partial) -> bool:
        """What the method reports within a sample, as a part of all samples; the map is the mean so far."""
        best = self.best() if self.fold.n else partial.map
        done = Partial((self.fold.n + partial.fraction) / self.count, best, self.fold.n, self.count)
        self.stopped = partial.fraction < 1 and self.progress is not None and self.progress(done) is False
        return not self.stopped

    def report(self, partial: Partial) -> Any:
        """What the loop over samples reports."""
        return False if self.stopped else self.progress is None or self.progress(partial)

    def best(self) -> Tensor:
        """The mean so far, as `explain` would draw it."""
        mean = self.fold.mean()
        return reduce_channels(mean, getattr(self.function, "reduce", "sum")) if mean.ndim == 4 else mean


class _Fold:
    """Mean and sum of squared deviations of maps, each counted where it has something to say."""

    def __init__(self) -> None:
        self.n = 0
        self._mean = self._squares = self._counts = torch.zeros(())

    def add(self, found: Tensor, inside: Tensor | None = None) -> None:
        """Count one more map; `inside` [h, w] is 1 where it counts and 0 where it does not."""
        here = torch.ones((), device=found.device, dtype=found.dtype) if inside is None else inside.to(found)
        if self.n == 0:
            self._mean, self._squares, self._counts = torch.zeros_like(found), torch.zeros_like(found), here * 0
        self.n += 1
        self._counts = self._counts + here
        away = (found - self._mean) * here
        self._mean = self._mean + away / self._counts.clamp(min=1)
        self._squares = self._squares + (away * (found - self._mean)).clamp(min=0)

    def mean(self) -> Tensor:
        """The mean over the maps that count, 0 where none does."""
        return self._mean.clone()

    def std(self) -> Tensor:
        """The unbiased standard deviation, 0 where fewer than two count."""
        return (self._squares / (self._counts - 1).clamp(min=1)).sqrt()


Back = Callable[[Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class _Variant:
    """Pictures to explain, options for it, and what brings the map back and says where it counts."""

    images: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    back: Back = lambda found: (found, None)


def _variants(
    x: Tensor,
    noise: float | None,
    kind: Augment | None,
    baselines: Sequence[Baseline] | None,
    draws: PerImageGenerators,
) -> Iterator[_Variant]:
    """One variant after the other, without end but for baselines."""
    if baselines is not None:
        yield from (_Variant(x.clone(), {"baseline": each}) for each in baselines)
    spans = extremes(x)[1]
    flipped = False
    while kind is None and noise is not None:
        yield _Variant(x + noise * spans * draws.normal(0, 1, *x.shape[1:]).to(x))
    while kind is not None:
        yield _moved(x, _affine(kind, draws.uniform(0, 1, 4)[0].double(), x.shape[-2:]), flipped)
        flipped = kind.flip and not flipped


def _affine(kind: Augment, u: Tensor, size: torch.Size) -> Tensor | None:
    """From places in the moved picture to places in the picture, both in [-1, 1], (2, 3); None where nothing moves."""
    if not (kind.zoom or kind.turn or kind.shift):
        return None
    zoom, turn, right, down = (2 * u - 1).tolist()
    angle, scale = math.radians(turn * kind.turn), (1 + kind.zoom) ** zoom
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    # Angles are those of the picture in pixels, which need not be square.
    aspect = size[0] / size[1]
    return torch.tensor(
        [[cos, -sin * aspect, 2 * right * kind.shift], [sin / aspect, cos, 2 * down * kind.shift]], dtype=torch.float64
    )


def _moved(x: Tensor, affine: Tensor | None, flipped: bool) -> _Variant:
    """The pictures, turned over and then moved; the map goes the same way back."""
    turned = x.flip(-1) if flipped else x.clone()
    if affine is None:
        return _Variant(turned, back=lambda found: (found.flip(-1) if flipped and found.ndim > 2 else found, None))
    pictures = _sampled(at_least_float32(turned), affine, "reflection")[0].to(x)
    linear = torch.linalg.inv(affine[:, :2])
    inverse = torch.cat([linear, -linear @ affine[:, 2:]], dim=1)

    def back(found: Tensor) -> tuple[Tensor, Tensor | None]:
        if found.ndim < 3:
            return found, None
        flat = found.reshape(len(found), -1, *found.shape[-2:])
        maps, inside = _sampled(flat, inverse, "border")
        if flipped:
            maps, inside = maps.flip(-1), inside.flip(-1)
        return maps.view_as(found), inside

    return _Variant(pictures, back=back)


def _sampled(maps: Tensor, affine: Tensor, outside: str) -> tuple[Tensor, Tensor]:
    """Maps [N, C, h, w] read at places moved by `affine`, and (h, w) where these lie inside."""
    grid = functional.affine_grid(affine[None].to(maps), [1, 1, *maps.shape[-2:]], align_corners=False)
    found = functional.grid_sample(
        maps, grid.expand(len(maps), -1, -1, -1), "bilinear", padding_mode=outside, align_corners=False
    )
    return found, (grid[0].abs() <= 1).all(-1)
