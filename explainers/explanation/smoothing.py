"""smooth: any method over noisy or augmented images, or over baselines: mean and standard deviation of the maps.

    smooth("grad_cam", noise=0.15, samples=10)(model, images)          noise of 15% of each image's range
    smooth("saliency", augment=True, samples=16)(model, images, 281)   flips, scales, rotations, translations
    smooth("integrated_gradients", baselines=(None, "blur", "mean"))(model, images)

Where the mean is large and the deviation small, the map is robust to what was varied.
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
from explainers.network.forwarded import Forward, forwarded
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

    `std` is the unbiased standard deviation (n - 1); it is 0 with one sample. After `augment` a position counts the
    samples in which it was inside the image, and one that never was is 0 in both.
    """

    mean: Tensor
    std: Tensor
    n: int

    def __repr__(self) -> str:
        return f"Smoothed({self.n} samples of {tuple(self.mean.shape)}, largest std {float(self.std.max()):.3g})"


@dataclass(frozen=True)
class Augment:
    """How images are augmented: `flip` horizontally in every second sample; uniform random numbers for the rest.

    `zoom` is the largest change of scale (0.1: from 1 / 1.1 to 1.1), `turn` the largest rotation in degrees, `shift`
    the largest translation as a share of each side. Borders are filled by reflection.
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
    """Make `f(model, images, target=None, *, progress, budget, forward, **options) -> Smoothed` out of a method.

    `method` is a name, a `Method`, or any callable of that form. One of three things is varied: `noise`, the standard
    deviation of Gaussian noise as a share of each image's range; `augment`, whose maps are aligned before averaging;
    `baselines`, for methods with that option. `samples` is 10 by default, or the number of baselines. Classes are
    those of the clean images; all images get the same noise or augmentation, so a batch gives what each alone would.

    Returns  the function; it stops after a sample when `progress` returns False or `budget` seconds have passed
    Errors   BadOption for a wrong combination; those of the method

    Example
        >>> smooth_grad_cam = smooth("grad_cam", noise=0.1, samples=4)
        >>> smooth_grad_cam(model, images, 281, layer="layer4").mean.shape
        torch.Size([1, 7, 7])
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
        forward: Forward | None = None,
        **options: Any,
    ) -> Smoothed:
        """`method` over the samples."""
        model = forwarded(model, forward, images)
        calls = _Samples(function, count, progress, budget)
        loop = Loop(1, calls.report, budget)
        check_images(model, images)
        with torch.inference_mode(False), torch.no_grad():
            images = images.detach().clone()
            fixed = _top_classes(model, images) if target is None else target
            variants = _variants(images, noise, kind, baselines, PerImageGenerators(1, seed))

            def work(chunk: range) -> None:
                variant = next(variants)
                map = calls.call(model, variant.images, fixed, {**options, **variant.options})
                if map is not None:
                    calls.moments.add(*variant.inverse(map))

            loop.run(count, 1, work, calls.best)
        return Smoothed(calls.moments.mean(), calls.moments.std(), calls.moments.n)

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
    if sum(varied is not None for varied in (noise, augment or None, baselines)) != 1:
        raise BadOption("smooth varies one thing. Give one of noise=0.15, augment=True, baselines=(None, 'blur').")
    if noise is not None and (isinstance(noise, bool) or not 0 <= noise <= 1):
        raise BadOption(f"noise={noise!r} is not possible. Give a share of the image's range from 0 to 1.")
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
    """Calls of the method, one a sample; a long method gets the same progress and budget, so that it ends early too."""

    def __init__(
        self, function: Method | Explainer, count: int, progress: Progress | None, budget: float | None
    ) -> None:
        self.function, self.count, self.progress, self.budget = function, count, progress, budget
        self.keywords = _keywords(function)
        self.moments, self.stopped, self.began = _RunningMoments(), False, time.monotonic()

    def call(self, model: nn.Module, images: Tensor, target: TargetLike, options: dict[str, Any]) -> Tensor | None:
        """The map of one sample; None where it was cut short and there are complete ones."""
        if self.progress is not None and "progress" in self.keywords:
            options["progress"] = self.report_within
        if self.budget is not None and "budget" in self.keywords:
            options["budget"] = max(1e-9, self.began + self.budget - time.monotonic())
        map = self.function(model, images, target, **options)
        over = self.budget is not None and time.monotonic() - self.began >= self.budget
        cut = self.stopped or ("budget" in options and over)
        return None if cut and self.moments.n else at_least_float32(map)

    def report_within(self, partial: Partial) -> bool:
        """Progress within a sample as a fraction of all samples; the map is the mean so far."""
        best = self.best() if self.moments.n else partial.map
        done = Partial((self.moments.n + partial.fraction) / self.count, best, self.moments.n, self.count)
        self.stopped = partial.fraction < 1 and self.progress is not None and self.progress(done) is False
        return not self.stopped

    def report(self, partial: Partial) -> Any:
        """Progress of the loop over samples."""
        return False if self.stopped else self.progress is None or self.progress(partial)

    def best(self) -> Tensor:
        """The mean so far, as `explain` would draw it."""
        mean = self.moments.mean()
        return reduce_channels(mean, getattr(self.function, "reduce", "sum")) if mean.ndim == 4 else mean


class _RunningMoments:
    """Running mean and sum of squared deviations of maps, each counted where it is inside the image (Welford 1962)."""

    def __init__(self) -> None:
        self.n = 0
        self._mean = self._squares = self._counts = torch.zeros(())

    def add(self, map: Tensor, inside: Tensor | None = None) -> None:
        """Add a map; `inside` [h, w] is 1 where it counts and 0 elsewhere."""
        counted = torch.ones((), device=map.device, dtype=map.dtype) if inside is None else inside.to(map)
        if self.n == 0:
            self._mean, self._squares, self._counts = torch.zeros_like(map), torch.zeros_like(map), counted * 0
        self.n += 1
        self._counts = self._counts + counted
        deviation = (map - self._mean) * counted
        self._mean = self._mean + deviation / self._counts.clamp(min=1)
        self._squares = self._squares + (deviation * (map - self._mean)).clamp(min=0)

    def mean(self) -> Tensor:
        """The mean over the maps that count, 0 where none does."""
        return self._mean.clone()

    def std(self) -> Tensor:
        """The unbiased standard deviation, 0 where fewer than two count."""
        return (self._squares / (self._counts - 1).clamp(min=1)).sqrt()


Inverse = Callable[[Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class _Variant:
    """Images to explain, options for them, and the inverse transform of the map with the mask of where it counts."""

    images: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    inverse: Inverse = lambda map: (map, None)


def _variants(
    x: Tensor,
    noise: float | None,
    kind: Augment | None,
    baselines: Sequence[Baseline] | None,
    draws: PerImageGenerators,
) -> Iterator[_Variant]:
    """One variant after another; endless except for baselines."""
    if baselines is not None:
        yield from (_Variant(x.clone(), {"baseline": baseline}) for baseline in baselines)
    ranges = extremes(x)[1]
    flipped = False
    while kind is None and noise is not None:
        yield _Variant(x + noise * ranges * draws.normal(0, 1, *x.shape[1:]).to(x))
    while kind is not None:
        yield _augmented(x, _affine(kind, draws.uniform(0, 1, 4)[0].double(), x.shape[-2:]), flipped)
        flipped = kind.flip and not flipped


def _affine(kind: Augment, u: Tensor, size: torch.Size) -> Tensor | None:
    """The affine map [2, 3] from the augmented image's coordinates to the image's, both in [-1, 1]; None: identity."""
    if not (kind.zoom or kind.turn or kind.shift):
        return None
    zoom, turn, right, down = (2 * u - 1).tolist()
    angle, scale = math.radians(turn * kind.turn), (1 + kind.zoom) ** zoom
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    # Rotations are in pixels; the image need not be square.
    aspect = size[0] / size[1]
    return torch.tensor(
        [[cos, -sin * aspect, 2 * right * kind.shift], [sin / aspect, cos, 2 * down * kind.shift]], dtype=torch.float64
    )


def _augmented(x: Tensor, affine: Tensor | None, flipped: bool) -> _Variant:
    """The images, flipped and then transformed; the map is transformed back."""
    images = x.flip(-1) if flipped else x.clone()
    if affine is None:
        return _Variant(images, inverse=lambda map: (map.flip(-1) if flipped and map.ndim > 2 else map, None))
    images = _resampled(at_least_float32(images), affine, "reflection")[0].to(x)
    linear = torch.linalg.inv(affine[:, :2])
    inverse = torch.cat([linear, -linear @ affine[:, 2:]], dim=1)

    def align(map: Tensor) -> tuple[Tensor, Tensor | None]:
        if map.ndim < 3:
            return map, None
        flat = map.reshape(len(map), -1, *map.shape[-2:])
        maps, inside = _resampled(flat, inverse, "border")
        if flipped:
            maps, inside = maps.flip(-1), inside.flip(-1)
        return maps.view_as(map), inside

    return _Variant(images, inverse=align)


def _resampled(maps: Tensor, affine: Tensor, outside: str) -> tuple[Tensor, Tensor]:
    """Maps [N, C, h, w] bilinearly resampled at `affine` coordinates, and [h, w] true where these are inside."""
    grid = functional.affine_grid(affine[None].to(maps), [1, 1, *maps.shape[-2:]], align_corners=False)
    resampled = functional.grid_sample(
        maps, grid.expand(len(maps), -1, -1, -1), "bilinear", padding_mode=outside, align_corners=False
    )
    return resampled, (grid[0].abs() <= 1).all(-1)
