"""`smooth`: the mean and standard deviation of a method's maps over noisy or augmented images, or over baselines.

    smooth("grad_cam", sigma=0.15, samples=10)(model, images)          noise of 15% of each image's range
    smooth("saliency", augment=True, samples=16)(model, images, 281)   flips, scales, rotations, translations
    smooth("integrated_gradients", baselines=("zeros", "blur", "mean"))(model, images)

The map is robust at positions with a large mean and a small deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from explainers.call.current import check_images, one_call
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.loop import Loop, Partial, Progress
from explainers.call.method import Method
from explainers.call.run import open_run
from explainers.call.scores import at_least_float32
from explainers.errors import BadOption, shorten
from explainers.keywords import signature_of
from explainers.maps.resize import reduce_channels
from explainers.options import Baseline, check_finite, check_whole
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators
from explainers.placement import Placements, place
from explainers.registry import find
from explainers.targets import TargetLike

Explainer = Callable[..., Tensor]
Inverse = Callable[[Tensor], tuple[Tensor, Tensor | None]]
Variant = tuple[Tensor, dict[str, Any], Inverse]
"""Images to explain, their options, and the inverse transform of the map, which also returns a validity mask."""
_SAMPLES = 10


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Statistics of the maps of several samples: `mean` and `std`, in the method's shape.

    `placement` says where the cells lie, as in `Explanation`; after `augment` they cover the images evenly.
    `samples` of `total` were computed, fewer if the call was stopped. `std` is the unbiased standard deviation
    (samples - 1); it is 0 for one sample. After `augment`, a position uses only the samples in which it was inside the
    image. A position that never was is 0 in both.
    """

    mean: Tensor
    std: Tensor
    samples: int
    total: int
    placement: Placements = None

    def __repr__(self) -> str:
        of = "" if self.samples == self.total else f" of {self.total}"
        return (
            f"Smoothed({self.samples}{of} samples of {tuple(self.mean.shape)}, largest std {float(self.std.max()):.3g})"
        )


@dataclass(frozen=True)
class Augment:
    """Settings of the augmentation: a horizontal `flip` in every second sample; the others are sampled uniformly.

    `zoom` is the largest change of scale (0.1: from 1 / 1.1 to 1.1), `turn` the largest rotation in degrees, `shift`
    the largest translation as a share of each side. Borders are filled by reflection.
    """

    flip: bool = True
    zoom: float = 0.1
    turn: float = 10.0
    shift: float = 0.05

    def __post_init__(self) -> None:
        numbers = all(isinstance(each, (int, float)) for each in (self.zoom, self.turn, self.shift))
        if not (numbers and 0 <= self.zoom <= 3 and 0 <= self.turn <= 180 and 0 <= self.shift < 1):
            given = ", ".join(f"{name}={shorten(value)}" for name, value in vars(self).items())
            raise BadOption(f"Augment({given}) is not valid. Give zoom of 0 to 3, turn of 0 to 180, shift of 0 to 1.")


def smooth(
    method: str | Method | Explainer,
    *,
    sigma: float | None = None,
    augment: Augment | bool | None = None,
    baselines: Sequence[Baseline] | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Callable[..., Smoothed]:
    """Create a function that averages a method's maps over noisy or augmented images, or over baselines.

    The function is `f(model, images, target=None, *, progress, budget, forward, **options) -> Smoothed`. `method` is a
    name, a `Method`, or a callable `(model, images, target, **options)`. Give one of `sigma`, the standard deviation of
    Gaussian noise as a share of each image's range; `augment`, whose maps are aligned before averaging; `baselines`,
    for methods with the option `baseline`. `samples` is 10 by default, or the number of baselines. Classes are those of
    the clean images. All images get the same noise or augmentation, so the result does not depend on the batch.

    Returns  the function; it stops after a sample if `progress` returns False or `budget` seconds have passed
    Errors   BadOption for an invalid combination; those of the method

    Example
        >>> smooth_grad_cam = smooth("grad_cam", sigma=0.1, samples=4)
        >>> smooth_grad_cam(model, images, 281, layer="layer4").mean.shape
        torch.Size([1, 7, 7])
    """
    function = method if callable(method) else find(method)
    name = str(getattr(function, "name", None) or getattr(function, "__name__", "the method"))
    keywords = set(signature_of(getattr(function, "function", function)).parameters)
    if augment is not None and not isinstance(augment, (bool, Augment)):
        raise BadOption(f"augment={shorten(augment)} is not valid. Give True, or settings such as Augment(zoom=0.2).")
    if sum(varied is not None for varied in (sigma, augment or None, baselines)) != 1:
        raise BadOption("Give exactly one of sigma, augment and baselines, such as sigma=0.15.")
    if sigma is not None:
        check_finite("sigma", sigma, "a share of the image's range from 0 to 1", least=0, most=1)
    if baselines is not None and "baseline" not in keywords:
        raise BadOption(f"{name} has no option 'baseline'. Use sigma= or augment= instead.")
    if baselines is not None and (isinstance(baselines, (str, Tensor)) or not len(baselines)):
        raise BadOption("baselines must be a non-empty sequence. Give several, such as ('zeros', 'blur', 0.5).")
    count = len(baselines) if baselines is not None else _SAMPLES if samples is None else samples
    if baselines is not None and samples not in (None, count):
        raise BadOption(f"samples={shorten(samples)} does not match {count} baselines. Omit samples.")
    check_whole(1, samples=count)
    kind = Augment() if augment is True else augment or None

    def variants(x: Tensor) -> Iterator[Variant]:
        """Yield the variants; endless except for baselines."""
        draws, ranges, flipped = PerImageGenerators(1, seed, x.device), extremes(x)[1], False
        for baseline in baselines or ():
            yield x.clone(), {"baseline": baseline}, lambda map: (map, None)
        while sigma is not None:
            noise = draws.normal_noise(0, 1, *x.shape[1:]).to(x)
            yield x + sigma * ranges * noise, {}, lambda map: (map, None)
        while kind is not None:
            images, inverse = _augment(x, _affine(kind, draws.uniform(0, 1, 4)[0].double(), x.shape[-2:]), flipped)
            yield images, {}, inverse
            flipped = kind.flip and not flipped

    @torch.inference_mode(False)
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
        """Run `method` on the samples and average the maps."""
        model = wrap_forward(model, forward, images)
        loop = Loop(1, None, budget)
        calls = _Samples(function, keywords, count, progress, loop)
        loop.progress = calls.report
        check_images(model, images)
        if kind is not None and images.ndim == 5:
            raise BadOption("augment= transforms images [N, C, H, W], not videos and volumes. Give sigma= instead.")
        with torch.inference_mode(False), torch.no_grad():
            images = images.detach().clone()
            if target is None:
                with open_run(model, images) as run:
                    run.scoring.score_inputs()
                    target = run.scoring.target
            samples_of = variants(images)

            def work(chunk: range) -> None:
                changed, own, inverse = next(samples_of)
                map = calls.call(model, changed, target, {**options, **own})
                if map is None:
                    return
                if kind is not None:
                    map, calls.placement = place(map, calls.placement), None
                calls.moments.add(*inverse(map))

            loop.run(count, 1, work, calls.best)
        return Smoothed(calls.moments.mean(), calls.moments.std(), calls.moments.n, count, calls.placement)

    smoothed.__name__ = f"smooth_{name}"
    return smoothed


@dataclass(eq=False)
class _Samples:
    """Calls the method once per sample. A long method gets the same progress and budget, so that it can stop early."""

    function: Method | Explainer
    keywords: set[str]
    count: int
    progress: Progress | None
    loop: Loop

    def __post_init__(self) -> None:
        self.moments, self.stopped = _RunningMoments(), False
        self.placement: Placements = None

    def call(self, model: nn.Module, images: Tensor, target: TargetLike, options: dict[str, Any]) -> Tensor | None:
        """Return the map of one sample, or None if it was stopped early and there are complete ones."""
        if self.progress is not None and "progress" in self.keywords:
            options["progress"] = self.report_within
        if self.loop.budget is not None and "budget" in self.keywords:
            options["budget"] = max(1e-9, self.loop.left)
        with one_call(model) if isinstance(self.function, Method) else nullcontext() as view:
            map = self.function(model, images, target, **options)
            self.placement = None if view is None else view.placement
        cut = self.stopped or ("budget" in options and self.loop.left <= 0)
        return None if cut and self.moments.n else at_least_float32(map)

    def report_within(self, partial: Partial) -> bool:
        """Report progress within a sample as a fraction of all samples, with the mean map so far."""
        best = self.best() if self.moments.n else partial.map
        done = Partial((self.moments.n + partial.fraction) / self.count, best, self.moments.n, self.count)
        self.stopped = partial.fraction < 1 and self.progress is not None and self.progress(done) is False
        return not self.stopped

    def report(self, partial: Partial) -> Any:
        """Report progress of the loop over samples."""
        return False if self.stopped else self.progress is None or self.progress(partial)

    def best(self) -> Tensor:
        """Return the mean so far, reduced to one map as in `explain`."""
        mean = self.moments.mean()
        how = self.function.reduce if isinstance(self.function, Method) else "sum"
        return reduce_channels(mean, how) if mean.ndim == 4 else mean


class _RunningMoments:
    """Running mean and sum of squared deviations of maps at positions inside the image (Welford 1962)."""

    def __init__(self) -> None:
        self.n = 0
        self._mean = self._squares = self._counts = torch.zeros(())

    def add(self, map: Tensor, inside: Tensor | None = None) -> None:
        """Add a map; `inside` [h, w] is 1 at positions that count and 0 elsewhere."""
        counted = torch.ones((), device=map.device, dtype=map.dtype) if inside is None else inside.to(map)
        self.n += 1
        self._counts = self._counts + counted
        deviation = (map - self._mean) * counted
        self._mean = self._mean + deviation / self._counts.clamp(min=1)
        self._squares = self._squares + (deviation * (map - self._mean)).clamp(min=0)

    def mean(self) -> Tensor:
        """Return the mean over the maps that count, 0 at positions without any."""
        return self._mean.clone()

    def std(self) -> Tensor:
        """Return the unbiased standard deviation, 0 at positions where fewer than two maps count."""
        return (self._squares / (self._counts - 1).clamp(min=1)).sqrt()


def _affine(kind: Augment, u: Tensor, size: torch.Size) -> Tensor | None:
    """Return the transform [2, 3] from the augmented image's coordinates to the image's, in [-1, 1]; None: identity."""
    if not (kind.zoom or kind.turn or kind.shift):
        return None
    zoom, turn, right, down = (2 * u - 1).tolist()
    angle, scale = math.radians(turn * kind.turn), (1 + kind.zoom) ** zoom
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    # Rotations are in pixels, because the image may not be square.
    aspect = size[0] / size[1]
    return torch.tensor(
        [[cos, -sin * aspect, 2 * right * kind.shift], [sin / aspect, cos, 2 * down * kind.shift]], dtype=torch.float64
    )


def _augment(x: Tensor, affine: Tensor | None, flipped: bool) -> tuple[Tensor, Inverse]:
    """Flip the images, then transform them; also return the function that transforms their map back."""
    images = x.flip(-1) if flipped else x.clone()
    if affine is None:
        return images, lambda map: (map.flip(-1) if flipped and map.ndim > 2 else map, None)
    images = _resample(at_least_float32(images), affine, "reflection")[0].to(x)
    linear = torch.linalg.inv(affine[:, :2])
    inverse = torch.cat([linear, -linear @ affine[:, 2:]], dim=1)

    def align(map: Tensor) -> tuple[Tensor, Tensor | None]:
        if map.ndim < 3:
            return map, None
        maps, inside = _resample(map.reshape(len(map), -1, *map.shape[-2:]), inverse, "border")
        return (maps.flip(-1).view_as(map), inside.flip(-1)) if flipped else (maps.view_as(map), inside)

    return images, align


def _resample(maps: Tensor, affine: Tensor, outside: str) -> tuple[Tensor, Tensor]:
    """Resample maps [N, C, h, w] bilinearly at `affine` coordinates; also return a mask [h, w] of those inside."""
    grid = functional.affine_grid(affine[None].to(maps), [1, 1, *maps.shape[-2:]], align_corners=False)
    resampled = functional.grid_sample(
        maps, grid.expand(len(maps), -1, -1, -1), "bilinear", padding_mode=outside, align_corners=False
    )
    return resampled, (grid[0].abs() <= 1).all(-1)
