"""Scores of a picture of which only some parts are shown: the one loop of LIME, Shapley values, Sobol and HSIC indices.

A coalition is a row with one value a part: True or 1 where it is shown, False or 0 where the baseline covers it, and
something between where both are mixed. A method makes the coalitions of each picture and turns their scores into one
value a part; everything between stands here.
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
    """The pictures of a run as players: `parts[n]` of picture n are shown, or covered by `cover[n]`."""

    run: Run
    parts: list[Parts]
    cover: Tensor

    def values(self, picture: int, coalitions: Tensor) -> Tensor:
        """Scores [B] of one picture's coalitions [B, M], float64 on the CPU."""
        x = self.run.images
        shown = self.parts[picture].shown(coalitions.to(x.device))
        batch = blend(x[picture], self.cover[picture], shown)
        return exact(self.run.values(batch, [picture] * len(batch)))

    def ends(self) -> tuple[Tensor, Tensor]:
        """Scores [N] with nothing and with everything shown, float64 on the CPU."""
        full = exact(self.run.score_inputs())
        none = [self.values(n, torch.zeros(1, part.count, dtype=torch.bool)) for n, part in enumerate(self.parts)]
        return torch.cat(none), full

    def spread(self, picture: int, values: Tensor) -> Tensor:
        """One value a part as a map [H, W] that sums to the values."""
        return self.parts[picture].spread(self._like_images(values))

    def paint(self, picture: int, values: Tensor) -> Tensor:
        """One value a part as a map [H, W] in which each pixel has its part's value."""
        return self.parts[picture].paint(self._like_images(values))

    def _like_images(self, values: Tensor) -> Tensor:
        like = self.run.images
        return values.to(torch.float64 if like.dtype == torch.float64 else torch.float32).to(like.device)

    def play(
        self, coalitions: list[Tensor], loop: Loop, solve: Callable[[int, Tensor], Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Score all coalitions of all pictures, or as many as the loop allows.

        `solve(picture, scores)` turns the scores of a picture's first coalitions into its map [H, W].

        Returns  the maps (n, h, w), and the scores that each of them was made from
        """
        scores = [torch.zeros(len(rows), dtype=torch.float64) for rows in coalitions]
        reached = 0

        def work(chunk: range) -> None:
            nonlocal reached
            for picture, rows in enumerate(coalitions):
                own = rows[chunk.start : chunk.stop]
                if len(own):
                    scores[picture][chunk.start : chunk.start + len(own)] = self.values(picture, own)
            reached = chunk.stop

        def maps() -> Tensor:
            return torch.stack([solve(picture, each[:reached]) for picture, each in enumerate(scores)])

        loop.run(max(map(len, coalitions)), loop.rows(self.run.images), work, maps)
        return maps(), [each[:reached] for each in scores]


def exact(scores: Tensor) -> Tensor:
    """Scores in float64 on the CPU, where fits and means of them lose nothing."""
    return scores.to("cpu").double()


def every_coalition(count: int) -> Tensor:
    """All 2^M coalitions [2^M, M] of `count` parts; row r shows the parts whose bits are set in r."""
    return (torch.arange(2**count)[:, None] >> torch.arange(count)) % 2 == 1


def within_rounding(scores: Tensor, dtype: torch.dtype) -> bool:
    """Whether scores differ by no more than rounding: shares and ranks of such differences would be noise."""
    if len(scores) < 2:
        return True
    return bool(scores.max() - scores.min() <= 8 * torch.finfo(dtype).eps * scores.abs().max())
