"""ReX: the causal responsibility of each part of an image for the prediction.

S  the shown boxes     together they keep the prediction; the baseline hides the rest of the image
c  one of four parts   of the largest box of S, cut at a random pixel
W  a set of the other parts of that box

The prediction is kept if the class is still the only top class. A target that is not the prediction, such as another
class or a measured value, is kept if its score is nearer to that of the image than to that of the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.derived_targets import LayerTarget, LogProbability, Probability
from explainers.findings import note_images
from explainers.keywords import Cost
from explainers.options import Baseline, Choice, Range, Seed
from explainers.outputs import scores_in
from explainers.perturbation.baselines import NAMES, baseline_of
from explainers.perturbation.coalitions import every_coalition, within_rounding
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.segments import blend
from explainers.registry import method
from explainers.targets import Logit, Target, TargetLike, scores_of

Box = tuple[slice, slice]

_SHOWN = every_coalition(4)
"""Which of four parts each of 16 mutants shows, [16, 4]: none in the first, all in the last."""
_WITHOUT = torch.arange(16)[:, None] & ~(1 << torch.arange(4))
"""The mutant that hides one more part, [16, 4]."""
_TESTED = 15
"""Mutants of a split that run. The last one shows the whole box, which is known to keep the prediction."""


@method(
    family="perturbation",
    returns="heat",
    title="ReX",
    paper="Chockler et al. 2024, arXiv:2411.08875",
    scale_free="Values are degrees of responsibility for the prediction.",
    signed=False,
    videos=False,
)
def rex(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    samples: Annotated[int, Range(1, 1000, help="random partitions of the image")] = 20,
    steps: Annotated[int, Range(1, 100, help="boxes to split in each partition; 15 evaluations each")] = 10,
    baseline: Annotated[Baseline, Choice(*NAMES, help="what replaces the hidden boxes")] = "zeros",
    seed: Seed = 0,
    **cost: Unpack[Cost],
) -> Tensor:
    """ReX: the causal responsibility of each part for the prediction, refined where the prediction can be kept.

        R(pixel) = mean over partitions of Σ_{parts c ∋ pixel} 1 / (1 + k_c)
        k_c = min |W|:  S without W keeps the prediction, and S without W and c does not;  without such a W, c adds 0

    S is the whole image at first. Each step splits its largest box into four parts at a random pixel, evaluates all
    combinations of them, and replaces the box by the smallest combination that keeps the prediction. A part that it
    needs has responsibility 1, one of m interchangeable parts 1/m. `steps=1` gives the responsibilities of the
    quadrants only. `smallest_region` extracts the paper's explanation: the first pixels of the map that keep the class.

    If the baseline itself keeps the prediction, no part is necessary, and a finding says so. The paper explains the top
    class only. Any other target is kept if its score is nearer to that of the image than to that of the baseline.
    Instead of the definition, the authors' code adds 1 / (number of parts) for each combination that keeps the class;
    and it refines one box without the others of S, so that it stops early if the class needs two distant parts.

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, h, w) at the input's resolution, from 0 to `steps`
    Errors   BadTarget, BadOption
    Source   Chockler et al. 2024, arXiv:2411.08875, and 2021, arXiv:2103.03622: compositional refinement; the degree of
             responsibility: Chockler & Halpern 2004, doi:10.1613/jair.1391

    Example
        >>> rex(model, images, samples=2, steps=2).shape
        torch.Size([1, 224, 224])
    """
    with open_run(model, images, target, many=True, cost=cost) as run:
        full = run.scoring.score_inputs()
        x, cover = run.images, baseline_of(run.images, baseline, seed)
        empty = run.scoring.values(cover, range(len(x)))
        same = [within_rounding(pair, x.dtype) for pair in torch.stack([full, empty], 1)]
        empty = torch.where(torch.tensor(same, device=x.device), full, empty)
        none = torch.full_like(full, -1, dtype=torch.long)
        classes = _predicted(run.scoring.target, run.scoring.clean_output, run.forward(cover.clone()), none)
        assert run.scoring.target is not None, "score_inputs sets it"
        kept = _Kept(run.scoring.target, classes, full, empty)
        note_images(
            "baseline_suffices",
            run.scoring.values(cover, range(len(x)), target=kept) == 1,
            "The baseline without any part of the image keeps the prediction, so no part is necessary for it, and the "
            "map is not an explanation. Try another baseline.",
        )
        # The cuts are the same for every image, and for any number of steps.
        cuts = PerImageGenerators(1, seed).uniform(0, steps, samples, 2).transpose(0, 1).tolist()
        height, width = x.shape[-2:]
        partitions = [[_Partition((height, width), own) for own in cuts] for _ in x]

        def work(chunk: range) -> bool:
            # All partitions take a step before the next one, so that a stopped map is coarser, not from fewer cuts.
            for rows in _split_at(chunk, samples * _TESTED):
                for index, own in enumerate(partitions):
                    mutants = [(own[row // _TESTED % samples], row % _TESTED) for row in rows]
                    mutants = [(partition, mutant) for partition, mutant in mutants if partition.children]
                    if mutants:
                        shown = torch.stack([partition.shown(mutant) for partition, mutant in mutants]).to(x.device)
                        batch = blend(x[index], cover[index], shown)
                        keeps = run.scoring.values(batch, [index] * len(batch), target=kept)
                        for (partition, mutant), value in zip(mutants, keeps.tolist(), strict=True):
                            partition.record(mutant, value)
            return not any(partition.children for own in partitions for partition in own)

        def heat() -> Tensor:
            maps = torch.stack([torch.stack([partition.map for partition in own]).mean(0) for own in partitions])
            return maps.to(x.device, torch.float64 if x.dtype == torch.float64 else torch.float32)

        run.loop.run(samples * steps * _TESTED, run.loop.rows(), work, heat)
        return heat()


@dataclass(frozen=True, eq=False)
class _Kept(Target):
    """1 if a mutant keeps the prediction, 0 if not, NaN if its scores contain NaN.

    `classes` [N] are the predicted classes, -1 for an image whose target is not its prediction. `full` [N] and `empty`
    [N] are the scores of the images and of their baselines.
    """

    own: Target
    classes: Tensor
    full: Tensor
    empty: Tensor

    def rows(self, image_indices: Sequence[int]) -> Target:
        rows = list(image_indices)
        return _Kept(self.own.rows(rows), self.classes[rows], self.full[rows], self.empty[rows])

    def __call__(self, output: Any) -> Tensor:
        """Return the decisions [N]."""
        score = self.own(output)
        kept, wrong = (score - self.full).abs() <= (score - self.empty).abs(), score.isnan()
        if bool((self.classes >= 0).any()):
            scores = scores_of(output)
            kept = torch.where(self.classes >= 0, _is_top(scores, self.classes), kept)
            wrong |= scores.isnan().any(1)
        return torch.where(wrong, torch.nan, kept.to(self.full))


def _is_top(scores: Tensor, classes: Tensor) -> Tensor:
    """Return whether each class is the only top class of its row of scores [N, K]; False for class -1."""
    own = scores.gather(1, classes.clamp(min=0)[:, None])
    return ((scores >= own).sum(1) == 1) & (classes >= 0)


def _predicted(target: Target | None, clean: Any, empty: Any, none: Tensor) -> Tensor:
    """Return the class [N] of each image that is its prediction and its target, else the -1 of `none` [N].

    A function of the output is a target of a class if it returns its score for the image and for the baseline.
    """
    scores = scores_in(clean)
    if isinstance(target, LayerTarget) or not isinstance(scores, Tensor) or scores.ndim != 2 or scores.is_complex():
        return none
    if isinstance(target, (Logit, Probability, LogProbability)):
        classes = torch.as_tensor(target.classes, device=none.device).expand(len(none))
    else:
        assert target is not None, "score_inputs sets it"
        equal = (scores == target(clean)[:, None]) & (scores_of(empty) == target(empty)[:, None])
        classes = torch.where(equal.any(1), equal.int().argmax(1), none)
    predicted = _is_top(scores, classes) & (scores.shape[1] > 1)
    return torch.where(predicted, classes, none)


class _Partition:
    """A partition that is refined: boxes that keep the prediction together, and the four parts of the largest of them.

    `map` [H, W] adds up the responsibilities. `children` is empty if there is nothing left to split.
    """

    def __init__(self, sides: tuple[int, int], cuts: Sequence[tuple[float, float]]) -> None:
        self.map = torch.zeros(sides, dtype=torch.float64)
        self._cuts = iter(cuts)
        self._boxes = [(slice(0, sides[0]), slice(0, sides[1]))]
        self._keeps = torch.ones(_TESTED + 1, dtype=torch.bool)
        self.children = self._split()

    def _split(self) -> list[Box]:
        """Remove the largest box, and return its four parts at the next cut; some are empty if a side has one pixel."""
        cut = next(self._cuts, None)
        if cut is None or not self._boxes:
            return []
        rows, columns = self._boxes.pop(max(range(len(self._boxes)), key=lambda i: _area(self._boxes[i])))
        (top, bottom), (left, right) = (_halves(side, share) for side, share in zip((rows, columns), cut, strict=True))
        return [(top, left), (top, right), (bottom, left), (bottom, right)]

    def shown(self, mutant: int) -> Tensor:
        """Return the mask [H, W] of the pixels that a mutant shows."""
        mask = torch.zeros(self.map.shape, dtype=torch.bool)
        parts = [box for box, is_shown in zip(self.children, _SHOWN[mutant].tolist(), strict=True) if is_shown]
        for box in self._boxes + parts:
            mask[box] = True
        return mask

    def record(self, mutant: int, value: float) -> None:
        """Record whether a mutant keeps the prediction, 1 or 0, or NaN; the last one completes the step."""
        self._keeps[mutant] = value == 1
        if math.isnan(value):
            self.map.fill_(torch.nan)
        if mutant < _TESTED - 1:
            return
        for box, value in zip(self.children, responsibilities(self._keeps).tolist(), strict=True):
            self.map[box] += value
        areas = (_SHOWN * torch.tensor([_area(box) for box in self.children])).sum(1)
        smallest = _SHOWN[areas.where(self._keeps, areas[-1] + 1).argmin()].tolist()
        shown = zip(self.children, smallest, strict=True)
        self._boxes += [box for box, is_shown in shown if is_shown and _area(box)]
        self.children = self._split()
        if sum(map(_area, self.children)) == 1:  # the largest box is a pixel
            self.children = []


def _halves(side: slice, share: float) -> tuple[slice, slice]:
    """Cut a side after at least one pixel, and if possible before the last one."""
    cut = side.start + 1 + int(share * (side.stop - side.start - 1))
    return slice(side.start, cut), slice(cut, side.stop)


def _area(box: Box) -> int:
    rows, columns = box
    return (rows.stop - rows.start) * (columns.stop - columns.start)


def responsibilities(keeps: Tensor) -> Tensor:
    """Return the degrees of responsibility [4] of four parts, given which of their 16 combinations keep the prediction.

    A part has 1 / (1 + k) if it becomes necessary when k others, and no fewer, are hidden; 0 if it never does.
    """
    necessary = _SHOWN & keeps[:, None] & ~keeps[_WITHOUT]
    hidden = (~_SHOWN).sum(1, keepdim=True)
    return (necessary.double() / (1 + hidden)).amax(0)


def _split_at(chunk: range, length: int) -> Iterator[range]:
    """Divide a range at multiples of a length."""
    for start in range(chunk.start // length * length, chunk.stop, length):
        yield range(max(start, chunk.start), min(start + length, chunk.stop))
