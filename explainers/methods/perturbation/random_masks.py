"""Random masks: the expected score given that a pixel is seen.

M  masks      (s, h, w)   random cells of a coarse grid, upsampled and shifted; 1 where the image is seen
f  scores     (s)         of the masked images, less the whole image's score, in logits unless the target says else

The masks are the same for every image. Means are weighted by the masks drawn, not by those expected, and what is
compared is the score with the pixel seen and the score otherwise: a constant added to the score changes nothing.

Each mask is distributed as in the papers, but masks are not independent: in each block of masks every cell is seen in
half of them (at p = 1/2) and every two cells in all four combinations equally often, so that effects of cells are not
confounded. On EfficientNet-Lite0 500 such masks are as precise as 600 to 1,500 independent ones, by photograph.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from explainers.errors import BadOption
from explainers.hooks.locate import unwrap
from explainers.options import Baseline, Choice, Precision, Range, Seed
from explainers.passes.loop import Loop, Progress
from explainers.passes.run import at_least_float32, open_run
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
    p: Annotated[float, Range(0.05, 0.95, 0.05, help="probability that a cell is seen")] = 0.5,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces the hidden cells; empty: zeros")] = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """RISE: the mean score over random masks that show a pixel, less the mean over all masks.

        E[f | M(pixel) = 1] - E[f]

    The paper's map is the first term alone, whose constant, the mean score, hides how much a pixel adds.

    Returns  (n, h, w) at the input's resolution, signed, in logits
    Errors   BadTarget, BadOption
    Source   Petsiuk et al. 2018, section 3, arXiv:1806.07421; balanced blocks of masks: Owen 1992, Statistica Sinica 2,
             439

    Example
        >>> rise(model, images, 281, samples=16).shape
        torch.Size([1, 224, 224])
    """
    loop = Loop(batch_size, progress, budget)
    with open_run(model, images, target, many=True, precision=precision, loop=loop) as run:
        x, full = run.images, run.score_inputs()
        cover = baseline_of(x, baseline, seed)
        height, width = x.shape[-2:]
        draws = _Balanced(cells * cells, seed)
        lost, seen = at_least_float32(torch.zeros_like(x[:, 0])), at_least_float32(torch.zeros_like(x[0, 0]))
        total, done = torch.zeros_like(full), 0

        def work(chunk: range) -> None:
            nonlocal done
            numbers, shifts = draws.next(len(chunk))
            shown = numbers.view(-1, 1, cells, cells) < p
            masks = _enlarged(shown.to(seen), shifts, height, width)[:, 0]
            for picture in range(len(x)):
                f = run.values(blend(x[picture], cover[picture], masks), [picture] * len(chunk)) - full[picture]
                lost[picture] += torch.einsum("s,shw->hw", f, masks)
                total[picture] += f.sum()
            seen.add_(masks.sum(0))
            done = chunk.stop

        def heat() -> Tensor:
            return torch.where(seen > 0, lost / seen - (total / done).view(-1, 1, 1), 0)

        loop.run(samples, loop.rows(), work, heat)
        return heat()


class _Balanced:
    """Uniform numbers for masks: each row of `size` is distributed as independent ones; rows of a block are balanced.

    A block has 2^k > `size` rows. In each column half of its numbers are below 1/2, and any two columns are below and
    above it in all four combinations equally often: an orthogonal array, of the rows and columns of a Hadamard matrix.
    Columns, signs and the order of rows are drawn anew for every block.
    """

    def __init__(self, size: int, seed: int) -> None:
        # Blocks have a generator of their own, so that no chunk size changes the order of the other numbers.
        self._fine, self._coarse = PerImageGenerators(1, seed), PerImageGenerators(1, seed + 2**31)
        self._size, self._rows = size, 1 << size.bit_length()
        self._ready = torch.zeros(0, size, dtype=torch.bool)

    def next(self, count: int) -> tuple[Tensor, Tensor]:
        """The next rows [count, size], and a shift for each [count, 2], in [0, 1)."""
        while len(self._ready) < count:
            self._ready = torch.cat([self._ready, self._block()])
        upper, self._ready = self._ready[:count], self._ready[count:]
        fine = self._fine.uniform(0, count, self._size + 2)
        return (upper + fine[:, :-2]) / 2, fine[:, -2:]

    def _block(self) -> Tensor:
        columns = 1 + self._coarse.permutations(0, 1, self._rows - 1)[0][: self._size]
        flipped = self._coarse.uniform(0, 1, self._size)[0] < 0.5
        rows = self._coarse.permutations(0, 1, self._rows)[0]
        common = rows[:, None] & columns
        for half in (32, 16, 8, 4, 2, 1):  # the parity of the bits in common: Sylvester's matrix
            common = common ^ (common >> half)
        return (common & 1).bool() ^ flipped


def _enlarged(coarse: Tensor, shifts: Tensor, height: int, width: int) -> Tensor:
    """Masks [S, K, H, W] of coarse ones [S, K, c, c]: upsampled to a cell more than the image, randomly cropped.

    `shifts` [S, 2] in [0, 1) are the crops' offsets; without them cell borders would always be at the same pixels.
    """
    cells = coarse.shape[-1]
    high, wide = -(-height // cells), -(-width // cells)
    size = ((cells + 1) * high, (cells + 1) * wide)
    large = functional.interpolate(coarse, size, mode="bilinear", align_corners=False)
    starts = (shifts * torch.tensor([high, wide])).long().tolist()
    return torch.stack([one[:, y : y + height, x : x + width] for one, (y, x) in zip(large, starts, strict=True)])


def _no_detector(model: nn.Module) -> str | None:
    """Why D-RISE is not offered for this model: it has neither a detector's class name nor its parts.

    torchvision's detectors have regions of interest (`roi_heads`) or anchors (`anchor_generator`); others have a class
    name such as "YoloDetector", or "DetrForObjectDetection".
    """
    for module in unwrap(model).modules():
        if hasattr(module, "roi_heads") or hasattr(module, "anchor_generator"):
            return None
        if any(word in type(module).__name__.lower() for word in ("detect", "yolo", "detr")):
            return None
    return (
        f"D-RISE is for object detectors, and {type(unwrap(model)).__name__} looks like none. Use rise for a "
        "classifier; for a detector, give BoxScores(boxes, labels, overlap=0) as target."
    )


@method(
    family="perturbation",
    returns="heat",
    title="D-RISE",
    needs=_no_detector,
    paper="Petsiuk et al. 2021, arXiv:2006.03204",
)
def d_rise(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(2, 20000, 1, help="random masks")] = 1024,
    cells: Annotated[int, Range(2, 64, help="cells of the coarse grid along each side")] = 16,
    p: Annotated[float, Range(0.05, 0.95, 0.05, help="probability that a cell is seen")] = 0.5,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces the hidden cells; empty: zeros")] = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """D-RISE: RISE for object detectors, with the similarity to a given detection as the score.

    Its own is the target: `BoxScores(boxes, labels, overlap=0)` is the IoU of the best detection of the same label
    times its score, 0 where there is none. The masks are RISE's, with the paper's finer cells. It is offered for what
    looks like a detector, and refuses no model: for a classifier and a class it is RISE with those cells.

    Returns  (n, h, w) at the input's resolution, signed, in the target's units
    Errors   BadTarget, for a detector without such a target too; BadOption
    Source   Petsiuk et al. 2021, section 3, arXiv:2006.03204: similarity of detections as the weight of a mask

    Example
        >>> target = BoxScores(torch.tensor([[56.0, 56.0, 168.0, 168.0]]), labels=(17,), overlap=0)
        >>> d_rise(detector, images, target, samples=16).shape
        torch.Size([1, 224, 224])
    """
    return rise(
        model,
        images,
        target,
        samples=samples,
        cells=cells,
        p=p,
        baseline=baseline,
        seed=seed,
        batch_size=batch_size,
        precision=precision,
        progress=progress,
        budget=budget,
    )


@method(family="perturbation", returns="heat", title="MC-RISE", paper="Hatakeyama et al. 2020, arXiv:2010.02468")
def mc_rise(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(2, 20000, 1, help="random masks")] = 960,
    cells: Annotated[int, Range(2, 64, help="cells of the coarse grid along each side")] = 7,
    p: Annotated[float, Range(0.05, 0.95, 0.05, help="probability that a cell is seen")] = 0.5,
    colours: Tensor | None = None,
    colour: Annotated[int | None, Range(0, 63, help="index of one colour; empty: the mean over all")] = None,
    seed: Seed = 0,
    batch_size: int | None = None,
    precision: Precision = "float32",
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """MC-RISE: the score lost where a pixel takes another colour, over random masks of many colours.

        mean_colour (E[f | pixel seen] - E[f | pixel in that colour]),  or of one `colour` alone

    Each cell of a mask is seen, or covered by one of the colours. The paper's maps, one a colour, have the other sign.
    `colours` [K, C] are in the model's units; by default they are made of the minimum and maximum of each channel in
    the image: all minima, all maxima, and each channel's maximum alone.

    Returns  (n, h, w) at the input's resolution, signed, in logits
    Errors   BadTarget; BadOption for colours of another shape, or a colour that is not among them
    Source   Hatakeyama et al. 2020, section 3, arXiv:2010.02468: the debiased estimate, by means over the masks drawn

    Example
        >>> mc_rise(model, images, 281, samples=16).shape
        torch.Size([1, 224, 224])
    """
    loop = Loop(batch_size, progress, budget)
    with open_run(model, images, target, many=True, precision=precision, loop=loop) as run:
        x, full = run.images, run.score_inputs()
        palette = _palette(x, colours, colour)
        count = palette.shape[1]
        height, width = x.shape[-2:]
        draws = _Balanced(2 * cells * cells, seed)
        # Sums of scores under each colour, and last where the pixel is seen.
        scores = at_least_float32(x.new_zeros(len(x), count + 1, height, width))
        times = torch.zeros_like(scores[0])

        def work(chunk: range) -> None:
            numbers, shifts = draws.next(len(chunk))
            seen, chosen = numbers.view(-1, 2, cells, cells).unbind(1)
            chosen = torch.where(seen < p, count, (chosen * count).long())
            coarse = functional.one_hot(chosen, count + 1).movedim(3, 1)
            masks = _enlarged(coarse.to(times), shifts, height, width)
            for picture in range(len(x)):
                cover = torch.einsum("skhw,kc->schw", masks[:, :-1].to(x), palette[picture])
                f = run.values(cover + masks[:, -1:].to(x) * x[picture], [picture] * len(chunk)) - full[picture]
                scores[picture] += torch.einsum("s,skhw->khw", f, masks)
            times.add_(masks.sum(0))

        def heat() -> Tensor:
            means = torch.where(times > 0, scores / times, 0)
            known = (times[:-1] > 0) & (times[-1:] > 0)
            lost = torch.where(known, means[:, -1:] - means[:, :-1], 0)
            return lost.mean(1) if colour is None else lost[:, colour]

        loop.run(samples, loop.rows(), work, heat)
        return heat()


def _palette(images: Tensor, colours: Tensor | None, colour: int | None) -> Tensor:
    """The colours of each image, [N, K, C]."""
    channels = images.shape[1]
    if colours is None:
        dark, light = images.amin((2, 3)), images.amax((2, 3))
        diagonal = torch.eye(channels, dtype=torch.bool, device=images.device)
        # A single channel's maximum alone is all maxima already.
        single = torch.where(diagonal, light[:, None], dark[:, None])[:, : channels if channels > 1 else 0]
        palette = torch.cat([dark[:, None], light[:, None], single], 1)
    elif colours.ndim != 2 or colours.shape[1] != channels or not len(colours):
        raise BadOption(f"colours have shape {tuple(colours.shape)}; give [K, {channels}], one row a colour.")
    else:
        palette = colours.to(images).expand(len(images), *colours.shape)
    if colour is not None and colour >= palette.shape[1]:
        raise BadOption(
            f"colour={colour} is not possible: there are {palette.shape[1]} colours, 0 to {palette.shape[1] - 1}."
        )
    return palette
