"""Scores of an image with some segments masked: the shared loop of LIME, Shapley values, Sobol and HSIC indices.

A coalition is a row with one value per segment: 1 (True) if it is shown, 0 (False) if the baseline replaces it, and a
value in between for a linear blend. A method creates the coalitions of each image and converts their scores into one
value per segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from explainers.call.run import Run
from explainers.dtypes import to_cpu_float64
from explainers.perturbation.segments import Parts, blend


@dataclass
class CoalitionScorer:
    """Scores coalitions of `parts[n]`, the segments of image n; segments not shown are replaced by `cover[n]`."""

    run: Run
    parts: list[Parts]
    cover: Tensor

    def values(self, index: int, coalitions: Tensor) -> Tensor:
        """Return the scores [B] of one image's coalitions [B, M], float64 on the CPU."""
        x = self.run.images
        shown = self.parts[index].shown(coalitions.to(x.device))
        batch = blend(x[index], self.cover[index], shown)
        return to_cpu_float64(self.run.scoring.values(batch, [index] * len(batch)))

    def empty_and_full(self) -> tuple[Tensor, Tensor]:
        """Return the scores [N] of the empty and of the full coalition, float64 on the CPU."""
        full = to_cpu_float64(self.run.scoring.score_inputs())
        empty = [self.values(n, torch.zeros(1, part.count, dtype=torch.bool)) for n, part in enumerate(self.parts)]
        return torch.cat(empty), full

    def spread(self, index: int, values: Tensor) -> Tensor:
        """Convert one value per segment to a map [H, W] that sums to the values."""
        return self.parts[index].spread(self._like_images(values))

    def paint(self, index: int, values: Tensor) -> Tensor:
        """Convert one value per segment to a map [H, W] in which each pixel has its segment's value."""
        return self.parts[index].paint(self._like_images(values))

    def _like_images(self, values: Tensor) -> Tensor:
        like = self.run.images
        return values.to(torch.float64 if like.dtype == torch.float64 else torch.float32).to(like.device)

    def evaluate(self, coalitions: list[Tensor], solve: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Score the coalitions of all images, as many as the loop allows.

        `solve(index, scores)` converts the scores of an image's first coalitions to its map [H, W].

        Returns  the maps (n, h, w), and the scores used for each of them
        """
        scores = [torch.zeros(len(rows), dtype=torch.float64) for rows in coalitions]
        reached = 0

        def work(chunk: range) -> None:
            nonlocal reached
            for index, rows in enumerate(coalitions):
                part = rows[chunk.start : chunk.stop]
                if len(part):
                    scores[index][chunk.start : chunk.start + len(part)] = self.values(index, part)
            reached = chunk.stop

        def maps() -> Tensor:
            return torch.stack([solve(index, values[:reached]) for index, values in enumerate(scores)])

        loop = self.run.loop
        loop.run(max(map(len, coalitions)), loop.rows(), work, maps)
        return maps(), [values[:reached] for values in scores]


def every_coalition(count: int) -> Tensor:
    """Return all 2^M coalitions [2^M, M] of M = `count` segments; row r shows those whose bits are set in r."""
    return (torch.arange(2**count)[:, None] >> torch.arange(count)) % 2 == 1


def within_rounding(scores: Tensor, dtype: torch.dtype) -> bool:
    """Check whether scores differ only by rounding, so that their ratios and ranks are noise."""
    if len(scores) < 2:
        return True
    return bool(scores.max() - scores.min() <= 8 * torch.finfo(dtype).eps * scores.abs().max())
