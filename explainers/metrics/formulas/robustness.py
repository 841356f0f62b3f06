"""Metrics that explain slightly changed images: does the map stay where it was?

Φ(x)  the map of an image     made again by the same method, layer, options and class
x'    the changed image       uniform noise of each value within a radius, or a shift by some pixels

Robustness alone is worth nothing: the map that is the same for every image, as a blob in the centre is, cannot be
beaten (Yeh et al. 2019: the optimum is a constant explanation). Read these numbers beside those of faithfulness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from explainers.errors import BadOption
from explainers.maps.resize import rank_correlation
from explainers.metrics.candidates import Candidate
from explainers.metrics.metric import Measured, Trial, metric
from explainers.options import Range
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators

Radius = Annotated[float, Range(1e-6, 1, 0.01, help="largest change of a value, as a share of the image's range")]
Samples = Annotated[int, Range(1, 1000, 1, help="changed images; a run of the method each")]
_DIRECTIONS = ((0, 1), (0, -1), (1, 0), (-1, 0))


def _runs(options: Any) -> int:
    return int(options["samples"])


@metric(
    title="Sensitivity-max",
    question="How much can the map change when the image hardly does?",
    source="Yeh et al. 2019, section 3, arXiv:1901.09392",
    unit="relative change",
    higher=False,
    reruns=True,
    forwards=_runs,
)
def sensitivity_max(trial: Trial, *, radius: Radius = 0.02, samples: Samples = 10) -> Measured:
    """Sensitivity-max: the largest relative change of the map among images within a radius.

        max_{|x' - x|∞ <= r} ‖Φ(x') - Φ(x)‖ / ‖Φ(x)‖,  estimated by uniform x'

    All values that the method gives count, before channels are reduced. The maximum of a few samples is a lower bound;
    compare numbers of as many samples.

    Returns  (r), >= 0, no unit: 0 where the map stays the same. NaN for a map of zeros
    Errors   BadOption where the method cannot be run again
    Source   Yeh et al. 2019, section 3, arXiv:1901.09392; relative to ‖Φ(x)‖ as in the authors' experiments

    Example
        >>> found = evaluate(model, images, "grad_cam", metrics=["sensitivity_max"])
        >>> found.values["sensitivity_max"].shape
        torch.Size([1])
    """
    return _noisy(trial, radius, samples).largest(0)


@metric(
    title="Local Lipschitz constant",
    question="How fast does the map change with the image?",
    source="Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049",
    unit="relative change per unit of input",
    higher=False,
    reruns=True,
    forwards=_runs,
)
def local_lipschitz(trial: Trial, *, radius: Radius = 0.02, samples: Samples = 10) -> Measured:
    """Local Lipschitz constant: the steepest change of the map towards images within a radius.

        max_{|x' - x|∞ <= r} ‖Φ(x') - Φ(x)‖ / (‖Φ(x)‖ ‖x' - x‖),  estimated by uniform x'

    The authors' constant divided by ‖Φ(x)‖, since the scale of a map is a convention. From the same images as
    sensitivity-max.

    Returns  (r), >= 0, per unit of the model's input. NaN for a map of zeros
    Errors   BadOption where the method cannot be run again
    Source   Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049

    Example
        >>> found = evaluate(model, images, "grad_cam", metrics=["local_lipschitz"])
        >>> found.values["local_lipschitz"].shape
        torch.Size([1])
    """
    return _noisy(trial, radius, samples).largest(1)


@metric(
    title="Stability under noise",
    question="Does the order of the pixels survive noise?",
    source="Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049, by rank",
    unit="rank correlation",
    higher=True,
    reruns=True,
    forwards=_runs,
)
def noise_stability(trial: Trial, *, radius: Radius = 0.02, samples: Samples = 10) -> Measured:
    """Stability under noise: the mean rank correlation of the map with the maps of images within a radius.

        mean over x' of Spearman's ρ (Φ(x'), Φ(x)),  |x' - x|∞ <= r, uniform

    By rank, so that no scale plays a part. From the same images as sensitivity-max.

    Returns  (r), in [-1, 1]: 1 where the order of the pixels stays the same. NaN where a map is constant
    Errors   BadOption where the method cannot be run again
    Source   the question of Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049; by rank as Ghorbani et al. 2019,
             arXiv:1710.10547

    Example
        >>> found = evaluate(model, images, "grad_cam", metrics=["noise_stability"])
        >>> found.values["noise_stability"].shape
        torch.Size([1])
    """
    return _noisy(trial, radius, samples).ranked(2)


@metric(
    title="Stability under shifts",
    question="Does the map move with the image?",
    source="Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049, for translations, by rank",
    unit="rank correlation",
    higher=True,
    reruns=True,
    forwards=lambda options: len(_DIRECTIONS),
)
def shift_stability(
    trial: Trial,
    *,
    pixels: Annotated[int | None, Range(1, 4096, 1, help="empty: 1/28 of the shorter side, 8 at 224")] = None,
) -> Measured:
    """Stability under shifts: the rank correlation of the map with that of the shifted image, shifted back.

        mean over right, left, down and up of Spearman's ρ (Φ(x shifted by d) shifted by -d, Φ(x))

    Over the pixels that are in both images; the border that a shift uncovers repeats the last row or column. Networks
    with strides follow small shifts in part; a map that is tied to the frame, as a blob in its centre is, does not.

    Returns  (r), in [-1, 1]: 1 where the map moves with the image. NaN where a map is constant
    Errors   BadOption where the method cannot be run again, and for a shift that leaves nothing of the image
    Source   the question of Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049, for translations

    Example
        >>> found = evaluate(model, images, "grad_cam", metrics=["shift_stability"])
        >>> found.values["shift_stability"].shape
        torch.Size([1])
    """
    x = trial.images
    height, width = x.shape[-2:]
    step = max(1, min(height, width) // 28) if pixels is None else pixels
    if step >= min(height, width):
        raise BadOption(f"pixels={step} leaves nothing of images of {height} x {width}. Give a few pixels.")
    # A repeated border on all sides: a window of it is the image, shifted.
    wide = functional.pad(x, (step,) * 4, mode="replicate")
    shifts = [(step * down, step * right) for down, right in _DIRECTIONS]

    def shifted(k: int) -> Tensor:
        top, left = step - shifts[k][0], step - shifts[k][1]
        return wide[:, :, top : top + height, left : left + width].contiguous()

    def compare(k: int, before: Candidate, raw: Tensor, maps: Tensor) -> list[Tensor]:
        down, right = shifts[k]
        return [_order_kept(_part(before.maps, -down, -right), _part(maps, down, right))]

    return _runs_again(trial, len(shifts), shifted, compare).ranked(0)


def _part(maps: Tensor, down: int, right: int) -> Tensor:
    """Maps without the rows and columns that a shift by (down, right) has uncovered."""
    height, width = maps.shape[1:]
    return maps[:, max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)]


def _noisy(trial: Trial, radius: float, samples: int) -> _Compared:
    """Relative change of the maps, the same for each unit of change of the images, and rank correlation."""
    key = "noisy", radius, samples
    if key not in trial.kept:
        x, spans = trial.images, extremes(trial.images)[1]
        seeds = PerImageGenerators(1, trial.seed).integers(0, samples, 2**31 - 1).tolist()

        def changed(k: int) -> Tensor:
            # The same for all images, so that one beside another changes nothing.
            noise = 2 * PerImageGenerators(1, seeds[k]).uniform(0, 1, *x.shape[1:])[0] - 1
            return x + radius * spans * noise.to(x)

        def compare(k: int, before: Candidate, raw: Tensor, maps: Tensor) -> list[Tensor]:
            change = _norm(raw.double() - before.raw.double()) / _norm(before.raw.double())
            moved = _norm(changed(k).double() - x.double())  # 0 for an image of one value, whose range is 0
            return [change, change / torch.where(moved > 0, moved, torch.inf), _order_kept(before.maps, maps)]

        trial.kept[key] = _runs_again(trial, samples, changed, compare)
    found: _Compared = trial.kept[key]
    return found


def _order_kept(before: Tensor, after: Tensor) -> Tensor:
    """The rank correlation [N] of maps, 0 where one that was not constant has become so."""
    return torch.where(_constant(after) & ~_constant(before), 0.0, rank_correlation(before, after))


def _constant(maps: Tensor) -> Tensor:
    return maps.flatten(1).amax(1) == maps.flatten(1).amin(1)


def _norm(values: Tensor) -> Tensor:
    """The Euclidean norm of each image's values, [N]."""
    norms: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms


@dataclass(frozen=True, eq=False)
class _Compared:
    """`figures` [R, runs, figures] of comparing maps with those of changed images; `broken` [R]: not finite there.

    A correlation is NaN where the part of the map that is compared is constant. `is_whole`: no run is missing.
    """

    trial: Trial
    figures: Tensor
    broken: Tensor
    is_whole: bool

    def largest(self, figure: int) -> Measured:
        """The largest over the runs."""
        zero = torch.cat([_norm(each.raw) == 0 for each in self.trial.candidates])
        return self._measured(self.figures[:, :, figure].amax(1)).but(zero, "the map is zero everywhere")

    def ranked(self, figure: int) -> Measured:
        """The mean correlation over the runs that have one."""
        figures = self.figures[:, :, figure]
        found = self._measured(figures.nanmean(1)).but(_constant(self.trial.maps), "the map is constant")
        nowhere = found.values.isnan() & ~_constant(self.trial.maps) & ~self.broken & self.is_begun
        return found.but(nowhere, "the map is constant where it can be compared")

    @property
    def is_begun(self) -> bool:
        return bool(self.figures.isfinite().any()) or self.is_whole

    def _measured(self, values: Tensor) -> Measured:
        found = Measured(values, is_whole=self.is_whole, is_sampled=True)
        return found.but(self.broken, "the map of a changed image is not finite")


def _runs_again(
    trial: Trial,
    count: int,
    change: Callable[[int], Tensor],
    compare: Callable[[int, Candidate, Tensor, Tensor], Sequence[Tensor]],
) -> _Compared:
    """Compare each map with those of changed images, in as many runs as the call has time for.

    `change(k)` gives the images, changed for the k-th time; `compare(k, candidate, raw, maps)` figures [N] of what the
    candidate's method makes of them. A run that the call's end cuts short counts for nothing.

    Errors   BadOption
    """
    found: list[Tensor] = []
    none = torch.full((len(trial.maps), 3), torch.nan, dtype=torch.float64, device=trial.images.device)
    broken = torch.zeros(len(trial.maps), dtype=torch.bool, device=trial.images.device)

    def work(chunk: range) -> None:
        for k in chunk:
            images, rows = change(k), []
            for place, each in enumerate(trial.candidates):
                raw, maps = _again(each, images)
                rows.append(torch.stack([*compare(k, each, raw, maps)], 1).double())
                broken[[*trial.rows(place)]] |= ~raw.flatten(1).isfinite().all(1)
            found.append(torch.cat(rows))

    done = trial.loop.run(count, 1, work, lambda: found[-1])
    return _Compared(trial, torch.stack(found or [none], 1), broken, done == count)


def _again(candidate: Candidate, images: Tensor) -> tuple[Tensor, Tensor]:
    """Raw values, and maps at the images' size, of changed images.

    Errors   BadOption
    """
    if candidate.again is None:
        method = candidate.explanation.method if candidate.explanation is not None else "what made the maps"
        raise BadOption(
            f"{method!r} cannot be run again: METHODS does not have it. Give a function of the images that makes maps."
        )
    return candidate.again(images)
