"""Metrics that compare the maps of slightly changed images.

Φ(x)  the map of an image     computed again with the same method, layer, options and class
x'    the changed image       uniform noise of each value within a radius, or a shift by some pixels

Robustness is not sufficient: a map that is the same for every image, such as a blob in the center, is optimal (Yeh et
al. 2019: the optimum is a constant explanation). Interpret these values together with faithfulness metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from explainers.dtypes import float64_device, to_float64
from explainers.errors import BadOption
from explainers.maps.resize import rank_correlation
from explainers.metrics.candidates import Candidate
from explainers.metrics.metric import Measurement, Trial, metric
from explainers.options import Range
from explainers.perturbation.baselines import extremes
from explainers.perturbation.rng import PerImageGenerators

Radius = Annotated[float, Range(1e-6, 1, 0.01, help="largest change of a value, as a share of the image's range")]
Samples = Annotated[int, Range(1, 1000, 1, help="changed images; one run of the method each")]
_DIRECTIONS = ((0, 1), (0, -1), (1, 0), (-1, 0))


@metric(
    title="Sensitivity-max",
    question="How much can the map change under a small change of the image?",
    source="Yeh et al. 2019, section 3, arXiv:1901.09392",
    unit="relative change",
    higher=False,
    reruns=True,
    forwards=lambda options: options["samples"],
)
def sensitivity_max(trial: Trial, *, radius: Radius = 0.02, samples: Samples = 10) -> Measurement:
    """Sensitivity-max: the largest relative change of the map among images within a radius.

        max_{|x' - x|∞ <= r} ‖Φ(x') - Φ(x)‖ / ‖Φ(x)‖,  estimated by uniform x'

    The norm is over all values of the method's result, before channels are reduced. The maximum over a few samples is a
    lower bound, so compare only results with the same number of samples.

    Returns  (r), >= 0, no unit: 0 if the map does not change. NaN for a map of zeros
    Errors   BadOption if the method cannot be run again
    Source   Yeh et al. 2019, section 3, arXiv:1901.09392; relative to ‖Φ(x)‖ as in the authors' experiments

    Example
        >>> found = evaluate(model, images, "grad_cam", metrics=["sensitivity_max"])
        >>> found.values["sensitivity_max"].shape
        torch.Size([1])
    """
    return _compare_noisy(trial, radius, samples).maximum(0)


@metric(
    title="Local Lipschitz constant",
    question="How fast does the map change with the image?",
    source="Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049",
    unit="relative change per unit of input",
    higher=False,
    reruns=True,
    forwards=lambda options: options["samples"],
)
def local_lipschitz(trial: Trial, *, radius: Radius = 0.02, samples: Samples = 10) -> Measurement:
    """Local Lipschitz constant: the largest ratio of the map's change to the image's change within a radius.

        max_{|x' - x|∞ <= r} ‖Φ(x') - Φ(x)‖ / (‖Φ(x)‖ ‖x' - x‖),  estimated by uniform x'

    The authors' constant divided by ‖Φ(x)‖, since the scale of a map is arbitrary. It uses the same images as
    sensitivity-max.

    Returns  (r), >= 0, per unit of the model's input. NaN for a map of zeros
    Errors   BadOption if the method cannot be run again
    Source   Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049

    Example
        >>> found = evaluate(model, images, "grad_cam", metrics=["local_lipschitz"])
        >>> found.values["local_lipschitz"].shape
        torch.Size([1])
    """
    return _compare_noisy(trial, radius, samples).maximum(1)


@metric(
    title="Stability under noise",
    question="Is the order of the pixels stable under noise?",
    source="Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049, by rank",
    unit="rank correlation",
    higher=True,
    reruns=True,
    forwards=lambda options: options["samples"],
)
def noise_stability(trial: Trial, *, radius: Radius = 0.02, samples: Samples = 10) -> Measurement:
    """Stability under noise: the mean rank correlation of the map with the maps of images within a radius.

        mean over x' of Spearman's ρ (Φ(x'), Φ(x)),  |x' - x|∞ <= r, uniform

    Ranks make it independent of the scale. It uses the same images as sensitivity-max.

    Returns  (r), in [-1, 1]: 1 if the order of the pixels does not change. NaN if a map is constant
    Errors   BadOption if the method cannot be run again
    Source   the stability of Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049; by rank as in Ghorbani et al. 2019,
             arXiv:1710.10547

    Example
        >>> found = evaluate(model, images, "grad_cam", metrics=["noise_stability"])
        >>> found.values["noise_stability"].shape
        torch.Size([1])
    """
    return _compare_noisy(trial, radius, samples).mean_correlation(2)


@metric(
    title="Stability under shifts",
    videos=False,
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
    pixels: Annotated[int | None, Range(1, 4096, 1, help="default: 1/28 of the shorter side, 8 at 224")] = None,
) -> Measurement:
    """Stability under shifts: the rank correlation of the map with that of the shifted image, shifted back.

        mean over right, left, down and up of Spearman's ρ (Φ(x shifted by d) shifted by -d, Φ(x))

    The correlation is over the pixels that are in both images; the border that a shift uncovers repeats the last row or
    column. Networks with strides are only partly equivariant to small shifts. A map with a fixed position, such as a
    blob in the center, does not move at all.

    Returns  (r), in [-1, 1]: 1 if the map moves with the image. NaN if a map is constant
    Errors   BadOption if the method cannot be run again, or if the shift is not smaller than the image
    Source   the stability of Alvarez-Melis & Jaakkola 2018, arXiv:1806.08049, for translations

    Example
        >>> found = evaluate(model, images, "grad_cam", metrics=["shift_stability"])
        >>> found.values["shift_stability"].shape
        torch.Size([1])
    """
    x = trial.images
    height, width = x.shape[-2:]
    step = max(1, min(height, width) // 28) if pixels is None else pixels
    if step >= min(height, width):
        raise BadOption(
            f"pixels={step} is too large for images of {height} x {width}. Give less than the shorter side."
        )
    # Pad all sides with a repeated border: each window of the padded image is a shifted image.
    wide = functional.pad(x, (step,) * 4, mode="replicate")
    shifts = [(step * down, step * right) for down, right in _DIRECTIONS]

    def shifted(k: int) -> Tensor:
        top, left = step - shifts[k][0], step - shifts[k][1]
        return wide[:, :, top : top + height, left : left + width].contiguous()

    def compare(k: int, before: Candidate, raw: Tensor, maps: Tensor) -> list[Tensor]:
        down, right = shifts[k]
        return [_rank_agreement(_crop(before.maps, -down, -right), _crop(maps, down, right))]

    return _compare_reruns(trial, len(shifts), shifted, compare).mean_correlation(0)


def _crop(maps: Tensor, down: int, right: int) -> Tensor:
    """Crop the rows and columns that a shift by (down, right) has uncovered."""
    height, width = maps.shape[1:]
    return maps[:, max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)]


def _compare_noisy(trial: Trial, radius: float, samples: int) -> _Comparisons:
    """Compute the maps' relative change, the same per unit of change of the images, and the rank correlation."""
    key = "noisy", radius, samples
    if key not in trial.cache:
        x, spans = trial.images, extremes(trial.images)[1]
        seeds = PerImageGenerators(1, trial.settings.seed).integers(0, samples, 2**31 - 1).tolist()

        def changed(k: int) -> Tensor:
            # The same for all images, so that results do not depend on the batch.
            noise = 2 * PerImageGenerators(1, seeds[k], x.device).uniform_noise(0, 1, *x.shape[1:])[0] - 1
            return x + radius * spans * noise.to(x)

        def compare(k: int, before: Candidate, raw: Tensor, maps: Tensor) -> list[Tensor]:
            change = _norm(to_float64(raw) - to_float64(before.raw)) / _norm(to_float64(before.raw))
            moved = _norm(to_float64(changed(k)) - to_float64(x))  # 0 for an image of one value, whose range is 0
            return [change, change / torch.where(moved > 0, moved, torch.inf), _rank_agreement(before.maps, maps)]

        trial.cache[key] = _compare_reruns(trial, samples, changed, compare)
    found: _Comparisons = trial.cache[key]
    return found


def _rank_agreement(before: Tensor, after: Tensor) -> Tensor:
    """Return the rank correlation [N] of maps, 0 for a map that has become constant."""
    agreement = rank_correlation(before, after)
    has_lost = _is_constant(after) & ~_is_constant(before)
    return torch.where(has_lost.to(agreement.device), 0.0, agreement)


def _is_constant(maps: Tensor) -> Tensor:
    return maps.flatten(1).amax(1) == maps.flatten(1).amin(1)


def _norm(values: Tensor) -> Tensor:
    """Return the Euclidean norm of each image's values, [N]."""
    norms: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1)
    return norms


@dataclass(frozen=True, eq=False)
class _Comparisons:
    """Results `values` [R, runs, statistics] of comparing maps with those of changed images.

    `is_broken` [R] marks rows in which a map of a changed image is not finite. A correlation is NaN if the compared
    part of the map is constant. `is_complete`: no run is missing.
    """

    trial: Trial
    values: Tensor
    is_broken: Tensor
    is_complete: bool

    def maximum(self, statistic: int) -> Measurement:
        """Return the maximum over the runs."""
        is_zero = torch.cat([_norm(each.raw) == 0 for each in self.trial.candidates])
        return self._measurement(self.values[:, :, statistic].amax(1)).exclude(is_zero, "the map is zero everywhere")

    def mean_correlation(self, statistic: int) -> Measurement:
        """Return the mean correlation over the runs in which it is defined."""
        values = self.values[:, :, statistic]
        is_constant = _is_constant(self.trial.maps)
        found = self._measurement(values.nanmean(1)).exclude(is_constant, "the map is constant")
        is_started = bool(self.values.isfinite().any()) or self.is_complete
        is_undefined = found.values.isnan().to(is_constant.device) & ~is_constant & ~self.is_broken & is_started
        return found.exclude(is_undefined, "the compared part of the map is constant")

    def _measurement(self, values: Tensor) -> Measurement:
        found = Measurement(values, is_complete=self.is_complete, is_sampled=True)
        return found.exclude(self.is_broken, "the map of a changed image is not finite")


def _compare_reruns(
    trial: Trial,
    count: int,
    change: Callable[[int], Tensor],
    compare: Callable[[int, Candidate, Tensor, Tensor], Sequence[Tensor]],
) -> _Comparisons:
    """Compare each map with those of changed images, in as many runs as the time allows.

    `change(k)` returns the images of run k, and `compare(k, candidate, raw, maps)` the statistics [N] of the maps that
    the candidate's method computes for them. A run that is stopped early does not count.

    Errors   BadOption
    """
    found: list[Tensor] = []
    device = float64_device(trial.images.device)
    missing = torch.full((len(trial.maps), 3), torch.nan, dtype=torch.float64, device=device)
    is_broken = torch.zeros(len(trial.maps), dtype=torch.bool, device=trial.images.device)

    def work(chunk: range) -> None:
        for k in chunk:
            images, rows = change(k), []
            for index, each in enumerate(trial.candidates):
                if each.again is None:
                    method = repr(each.explanation.method) if each.explanation is not None else "of these maps"
                    raise BadOption(
                        f"The method {method} cannot be run again, because METHODS does not list it. Give a function "
                        "of the images that returns maps."
                    )
                raw, maps = each.again(images)
                rows.append(to_float64(torch.stack([*compare(k, each, raw, maps)], 1)))
                is_broken[[*trial.rows(index)]] |= ~raw.flatten(1).isfinite().all(1)
            found.append(torch.cat(rows))

    done = trial.loop.run(count, 1, work, lambda: found[-1])
    return _Comparisons(trial, torch.stack(found or [missing], 1), is_broken, done == count)
