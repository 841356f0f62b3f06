"""Scores of an image with some segments masked: the common loop of LIME, Shapley values, Sobol and HSIC indices.

A coalition is a row with one value a segment: 1 (True) where it is shown, 0 (False) where the baseline replaces it, in
between for a linear blend. A method makes the coalitions of each image and turns their scores into one value a segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from explainers.passes.loop import Loop
from explainers.passes.run import Run
from explainers.perturbation.segments import Parts, blend


@dataclass
class CoalitionScorer:
    """Scores coalitions of `parts[n]`, the segments of image n; absent ones are replaced by `cover[n]`."""

    run: Run
    parts: list[Parts]
    cover: Tensor

    def values(self, picture: int, coalitions: Tensor) -> Tensor:
        """Scores [B] of one image's coalitions [B, M], float64 on the CPU."""
        x = self.run.images
        shown = self.parts[picture].shown(coalitions.to(x.device))
        batch = blend(x[picture], self.cover[picture], shown)
        return to_float64(self.run.values(batch, [picture] * len(batch)))

    def empty_and_full(self) -> tuple[Tensor, Tensor]:
        """Scores [N] of the empty and of the full coalition, float64 on the CPU."""
        full = to_float64(self.run.score_inputs())
        empty = [self.values(n, torch.zeros(1, part.count, dtype=torch.bool)) for n, part in enumerate(self.parts)]
        return torch.cat(empty), full

    def spread(self, picture: int, values: Tensor) -> Tensor:
        """One value a segment as a map [H, W] that sums to the values."""
        return self.parts[picture].spread(self._like_images(values))

    def paint(self, picture: int, values: Tensor) -> Tensor:
        """One value a segment as a map [H, W], each pixel with its segment's value."""
        return self.parts[picture].paint(self._like_images(values))

    def _like_images(self, values: Tensor) -> Tensor:
        like = self.run.images
        return values.to(torch.float64 if like.dtype == torch.float64 else torch.float32).to(like.device)

    def evaluate(
        self, coalitions: list[Tensor], loop: Loop, solve: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Score the coalitions of all images, as many as the loop allows.

        `solve(picture, scores)` turns the scores of an image's first coalitions into its map [H, W].

        Returns  the maps (n, h, w), and the scores behind each of them
        """
        scores = [torch.zeros(len(rows), dtype=torch.float64) for rows in coalitions]
        reached = 0

        def work(chunk: range) -> None:
            nonlocal reached
            for picture, rows in enumerate(coalitions):
                part = rows[chunk.start : chunk.stop]
                if len(part):
                    scores[picture][chunk.start : chunk.start + len(part)] = self.values(picture, part)
            reached = chunk.stop

        def maps() -> Tensor:
            return torch.stack([solve(picture, values[:reached]) for picture, values in enumerate(scores)])

        loop.run(max(map(len, coalitions)), loop.rows(), work, maps)
        return maps(), [values[:reached] for values in scores]


def to_float64(scores: Tensor) -> Tensor:
    """Scores in float64 on the CPU, for fits and means without rounding."""
    return scores.to("cpu").double()


def every_coalition(count: int) -> Tensor:
    """All 2^M coalitions [2^M, M] of `count` segments; row r shows those whose bits are set in r."""
    return (torch.arange(2**count)[:, None] >> torch.arange(count)) % 2 == 1


def within_rounding(scores: Tensor, dtype: torch.dtype) -> bool:
    """Whether scores differ by rounding alone, so that their ratios and ranks are noise."""
    if len(scores) < 2:
        return True
    return bool(scores.max() - scores.min() <= 8 * torch.finfo(dtype).eps * scores.abs().max())
