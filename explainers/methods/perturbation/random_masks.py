"""Random masks: the expected score given that a pixel is visible.

M  masks      (s, h, w)   random cells of a coarse grid, upsampled and shifted; 1 for visible pixels
f  scores     (s)         of the masked images, minus the full image's score, in logits unless the target says otherwise

The masks are the same for every image. Means are weighted by the actual masks instead of their expectation, and the
score with a visible pixel is compared with the score otherwise, so that adding a constant to the score has no effect.

Each mask is distributed as in the papers, but masks are not independent: in each block of masks, every cell is visible
in half of them (at p = 1/2) and every two cells occur in all four combinations equally often, so that effects of cells
are not confounded. On EfficientNet-Lite0, 500 such masks are as precise as 600 to 1,500 independent ones, depending on
the image.
"""

from __future__ import annotations

import math
from operator import add
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.call.scores import at_least_float32
from explainers.default_targets import DefaultTarget
from explainers.errors import BadOption, WrongType, kind_of
from explainers.findings import is_recording, note_halves
from explainers.hooks.locate import unwrap
from explainers.keywords import Cost
from explainers.options import Baseline, Choice, Range, Seed
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.segments import blend
from explainers.registry import method
from explainers.targets import TargetLike


@method(family="perturbation", returns="heat", title="RISE", paper="Petsiuk et al. 2018, arXiv:1806.07421")
def rise(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(2, 20000, 1, help="random masks")] = 960,
    cells: Annotated[int, Range(2, 64, help="cells of the coarse grid along each side")] = 7,
    p: Annotated[float, Range(0.05, 0.95, 0.05, help="probability that a cell is visible")] = 0.5,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces the hidden cells")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """RISE: the mean score over random masks that show a pixel, minus the mean over all masks.

        E[f | M(pixel) = 1] - E[f]

    In the paper, the map is only the first term, which contains the mean score as a constant offset. Videos and volumes
    have as many cells along their third axis, or one per frame.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, signed, in logits
    Errors   BadTarget, BadOption
    Source   Petsiuk et al. 2018, section 3, arXiv:1806.07421; balanced blocks of masks: Owen 1992, Statistica Sinica 2,
             439

    Example
        >>> rise(model, images, 281, samples=16).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, full = run.images, run.scoring.score_inputs()
        cover = baseline_of(x, baseline, seed)
        sizes = tuple(x.shape[2:])
        coarse = (*(min(cells, count) for count in sizes[:-2]), cells, cells)
        generator = _BalancedNumbers(math.prod(coarse), seed, len(sizes))
        # Sums over every second mask, and over the others.
        weighted = at_least_float32(x.new_zeros(2, len(x), *sizes))
        visible, totals, counts = torch.zeros_like(weighted[:, 0]), torch.zeros_like(full).repeat(2, 1), [0, 0]

        def work(chunk: range) -> None:
            numbers, shifts = generator.next(len(chunk))
            shown = numbers.view(-1, 1, *coarse) < p
            masks = _upsample(shown.to(visible), shifts, sizes)[:, 0]
            for index in range(len(x)):
                f = run.scoring.values(blend(x[index], cover[index], masks), [index] * len(chunk)) - full[index]
                for half, rows in enumerate(_halves(chunk)):
                    weighted[half, index] += torch.einsum("s,s...->...", f[rows], masks[rows])
                    totals[half, index] += f[rows].sum()
            for half, rows in enumerate(_halves(chunk)):
                visible[half] += masks[rows].sum(0)
                counts[half] += len(masks[rows])

        def heat_of(weighted: Tensor, visible: Tensor, totals: Tensor, count: int) -> Tensor:
            mean = (totals / max(1, count)).view(-1, *[1] * visible.ndim)
            return torch.where(visible > 0, weighted / visible - mean, 0)

        def heat() -> Tensor:
            return heat_of(weighted.sum(0), visible.sum(0), totals.sum(0), sum(counts))

        run.loop.run(samples, run.loop.rows(), work, heat)
        if is_recording():
            first, second = map(heat_of, weighted, visible, totals, counts)
            note_halves(first, second)
        return heat()


def _halves(chunk: range) -> tuple[slice, slice]:
    """Return the rows of a chunk that belong to every second mask, and those of the others."""
    return slice(chunk.start % 2, None, 2), slice((chunk.start + 1) % 2, None, 2)


class _BalancedNumbers:
    """Uniform random numbers for masks: each row of `size` is distributed independently; rows of a block are balanced.

    A block has 2^k > `size` rows. In each column half of the numbers are below 1/2, and any two columns are below and
    above it in all four combinations equally often: an orthogonal array from the rows and columns of a Hadamard matrix.
    Columns, signs and the order of rows are sampled again for every block.
    """

    def __init__(self, size: int, seed: int, axes: int = 2) -> None:
        # Blocks use a separate generator, so that the chunk size does not change the order of the other numbers.
        self._fine, self._coarse = PerImageGenerators(1, seed), PerImageGenerators(1, seed + 2**31)
        self._axes = axes
        self._size, self._rows = size, 1 << size.bit_length()
        self._ready = torch.zeros(0, size, dtype=torch.bool)

    def next(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the next rows [count, size], and a shift along each axis for each [count, axes], in [0, 1)."""
        while len(self._ready) < count:
            self._ready = torch.cat([self._ready, self._block()])
        upper, self._ready = self._ready[:count], self._ready[count:]
        fine = self._fine.uniform(0, count, self._size + self._axes)
        return (upper + fine[:, : self._size]) / 2, fine[:, self._size :]

    def _block(self) -> Tensor:
        columns = 1 + self._coarse.permutations(0, 1, self._rows - 1)[0][: self._size]
        flipped = self._coarse.uniform(0, 1, self._size)[0] < 0.5
        rows = self._coarse.permutations(0, 1, self._rows)[0]
        common = rows[:, None] & columns
        for half in (32, 16, 8, 4, 2, 1):  # parity of the common bits: Sylvester's matrix
            common = common ^ (common >> half)
        return (common & 1).bool() ^ flipped


def _upsample(coarse: Tensor, shifts: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Upsample coarse masks [S, K, c, c] to one cell more than the image, and crop them to `sizes`, [S, K, H, W].

    `shifts` [S, 2] in [0, 1), one for each axis, are the offsets of the crops, without which cell borders would always
    be at the same pixels.
    """
    cells = coarse.shape[2:]
    sides = [-(-size // count) for size, count in zip(sizes, cells, strict=True)]
    large_size = [(count + 1) * side for count, side in zip(cells, sides, strict=True)]
    mode = "bilinear" if len(sizes) == 2 else "trilinear"
    large = functional.interpolate(coarse, large_size, mode=mode, align_corners=False)
    starts = (shifts * torch.tensor(sides)).long().tolist()
    windows = (map(slice, at, map(add, at, sizes)) for at in starts)
    return torch.stack([one[(slice(None), *window)] for one, window in zip(large, windows, strict=True)])


def _why_not_detector(model: nn.Module) -> str | None:
    """Explain why D-RISE is not available for this model, or return None if it looks like a detector.

    torchvision's detectors have regions of interest (`roi_heads`) or anchors (`anchor_generator`); others have a class
    name such as "YoloDetector", or "DetrForObjectDetection".
    """
    for module in unwrap(model).modules():
        if hasattr(module, "roi_heads") or hasattr(module, "anchor_generator"):
            return None
        if any(word in type(module).__name__.lower() for word in ("detect", "yolo", "detr")):
            return None
    return (
        f"D-RISE is for object detectors, but {type(unwrap(model)).__name__} does not look like one. Use rise for a "
        "classifier. For a detector, call d_rise with BoxScores(boxes, labels, overlap=0) as target."
    )


@method(
    family="perturbation",
    returns="heat",
    title="D-RISE",
    needs=_why_not_detector,
    paper="Petsiuk et al. 2021, arXiv:2006.03204",
    videos=False,
)
def d_rise(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(2, 20000, 1, help="random masks")] = 1024,
    cells: Annotated[int, Range(2, 64, help="cells of the coarse grid along each side")] = 16,
    p: Annotated[float, Range(0.05, 0.95, 0.05, help="probability that a cell is visible")] = 0.5,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces the hidden cells")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """D-RISE: RISE for object detectors, with the similarity to a given detection as the score.

    The target is specific to this method: `BoxScores(boxes, labels, overlap=0)` is the IoU of the best detection of the
    same label times its score, or 0 without such a detection; by default for the best detection of each image. The
    masks are those of RISE with the paper's finer cells. The method is listed only for models that look like detectors,
    but runs on any model: for a class of a classifier it is RISE with finer cells.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, signed, in the target's units
    Errors   BadTarget, also for a detector without such a target; BadOption
    Source   Petsiuk et al. 2021, section 3, arXiv:2006.03204: similarity of detections as the weight of a mask

    Example
        >>> target = BoxScores(torch.tensor([[56.0, 56.0, 168.0, 168.0]]), labels=(17,), overlap=0)
        >>> d_rise(detector, images, target, samples=16).shape
        torch.Size([1, 224, 224])
    """
    return rise(
        model,
        images,
        DefaultTarget(overlap=0.0) if target is None else target,
        samples=samples,
        cells=cells,
        p=p,
        baseline=baseline,
        seed=seed,
        **cost,
    )


@method(
    family="perturbation",
    returns="heat",
    title="MC-RISE",
    paper="Hatakeyama et al. 2020, arXiv:2010.02468",
    videos=False,
)
def mc_rise(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(2, 20000, 1, help="random masks")] = 960,
    cells: Annotated[int, Range(2, 64, help="cells of the coarse grid along each side")] = 7,
    p: Annotated[float, Range(0.05, 0.95, 0.05, help="probability that a cell is visible")] = 0.5,
    colors: Tensor | None = None,
    color: Annotated[int | None, Range(0, 63, help="index of one color; empty: mean over all colors")] = None,
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """MC-RISE: the drop of the score when a pixel gets another color, over random masks of several colors.

        mean_color (E[f | pixel visible] - E[f | pixel in that color]),  or only one color if `color` is given

    Each cell of a mask is visible or covered by one of the colors. The paper has one map per color, with opposite sign.
    `colors` [K, C] are in the model's units. By default they are built from the minimum and maximum of each channel in
    the image: all minima, all maxima, and each channel's maximum with all other channels at their minimum.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, signed, in logits
    Errors   BadTarget; BadOption for colors of another shape, or a color index out of range
    Source   Hatakeyama et al. 2020, section 3, arXiv:2010.02468: the debiased estimate, by means over the actual masks

    Example
        >>> mc_rise(model, images, 281, samples=16).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        x, full = run.images, run.scoring.score_inputs()
        palette = _palette(x, colors, color)
        count = palette.shape[1]
        height, width = x.shape[-2:]
        generator = _BalancedNumbers(2 * cells * cells, seed)
        # Sums of scores over every second mask and over the others, for each color, and last for the visible pixel.
        scores = at_least_float32(x.new_zeros(2, len(x), count + 1, height, width))
        counts = torch.zeros_like(scores[:, 0])

        def work(chunk: range) -> None:
            numbers, shifts = generator.next(len(chunk))
            visible, chosen = numbers.view(-1, 2, cells, cells).unbind(1)
            chosen = torch.where(visible < p, count, (chosen * count).long())
            coarse = functional.one_hot(chosen, count + 1).movedim(3, 1)
            masks = _upsample(coarse.to(counts), shifts, (height, width))
            for index in range(len(x)):
                cover = torch.einsum("skhw,kc->schw", masks[:, :-1].to(x), palette[index])
                f = run.scoring.values(cover + masks[:, -1:].to(x) * x[index], [index] * len(chunk)) - full[index]
                for half, rows in enumerate(_halves(chunk)):
                    scores[half, index] += torch.einsum("s,skhw->khw", f[rows], masks[rows])
            for half, rows in enumerate(_halves(chunk)):
                counts[half] += masks[rows].sum(0)

        def heat_of(scores: Tensor, counts: Tensor) -> Tensor:
            means = torch.where(counts > 0, scores / counts, 0)
            known = (counts[:-1] > 0) & (counts[-1:] > 0)
            sums = torch.where(known, means[:, -1:] - means[:, :-1], 0)
            return sums.mean(1) if color is None else sums[:, color]

        def heat() -> Tensor:
            return heat_of(scores.sum(0), counts.sum(0))

        run.loop.run(samples, run.loop.rows(), work, heat)
        if is_recording():
            first, second = map(heat_of, scores, counts)
            note_halves(first, second)
        return heat()


def _palette(images: Tensor, colors: Tensor | None, color: int | None) -> Tensor:
    """Return the colors of each image, [N, K, C]."""
    channels = images.shape[1]
    if colors is None:
        dark, light = images.amin((2, 3)), images.amax((2, 3))
        diagonal = torch.eye(channels, dtype=torch.bool, device=images.device)
        # With a single channel, its maximum is already included.
        single = torch.where(diagonal, light[:, None], dark[:, None])[:, : channels if channels > 1 else 0]
        palette = torch.cat([dark[:, None], light[:, None], single], 1)
    elif not isinstance(colors, Tensor):
        raise WrongType(f"colors is {kind_of(colors)}. Give a tensor [K, {channels}], one row per color.")
    elif colors.ndim != 2 or colors.shape[1] != channels or not len(colors):
        raise BadOption(f"colors has shape {tuple(colors.shape)}. Give [K, {channels}], one row per color.")
    else:
        palette = colors.to(images).expand(len(images), *colors.shape)
    if color is not None and color >= palette.shape[1]:
        raise BadOption(
            f"Invalid color={color}: there are {palette.shape[1]} colors. Give an index from 0 to "
            f"{palette.shape[1] - 1}."
        )
    return palette
