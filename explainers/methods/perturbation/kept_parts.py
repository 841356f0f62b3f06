"""Parts of an image that are kept while the rest fades to a baseline: their scores, gradients and comparisons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.call.run import Run
from explainers.call.scores import at_least_float32
from explainers.findings import note_finding
from explainers.perturbation.control_maps import center_map, edge_map, random_map

_SIDE = 5


@dataclass(frozen=True, eq=False)
class KeptParts:
    """The images of a run, faded by masks. `levels` [L, N, C, H, W] are degrees of the baseline, from 0 to 1.

    `area` is the fraction of the image to keep.
    """

    run: Run
    levels: Tensor
    area: float

    @property
    def count(self) -> int:
        """Number of pixels to keep."""
        return round(self.area * self.levels[0, 0, 0].numel())

    def fade(self, masks: Tensor, indices: list[int]) -> tuple[Tensor, Tensor]:
        """Return images [B, C, H, W] faded by masks [B, H, W], and the derivative of each pixel by its mask."""
        top = len(self.levels) - 1
        lower = (masks * top).floor().clamp(0, top - 1)
        rows = self.levels[:, indices]
        at = lower.long()[None, :, None].expand(1, *rows.shape[1:])
        low, high = rows.gather(0, at)[0], rows.gather(0, at + 1)[0]
        return torch.lerp(low, high, (masks * top - lower)[:, None].to(low)), top * at_least_float32(high - low)

    def gradient(self, masks: Tensor, indices: list[int]) -> Tensor:
        """Return ∂y / ∂mask, [B, H, W]."""
        faded, slopes = self.fade(masks, indices)
        return (self.run.backward.gradient(faded, indices) * slopes).sum(1)

    def scores(self, masks: Tensor) -> Tensor:
        """Return the scores [N] of all images, faded by masks [N, H, W]."""
        rows = list(range(len(masks)))
        return self.run.scoring.values(self.fade(masks, rows)[0], rows)

    def highest(self, maps: Tensor) -> Tensor:
        """Return masks that keep the pixels with the highest values of maps [N, H, W], all of the same area."""
        flat = maps.flatten(1)
        highest = flat.argsort(dim=1, descending=True, stable=True)[:, : max(1, self.count)]
        return torch.zeros_like(flat).scatter_(1, highest, 1.0).view_as(maps)

    def better(self, masks: Tensor, others: Tensor) -> Tensor:
        """Return, for each image, the mask whose part scores higher; a mask without values is kept."""
        wins = (self.scores(self.highest(others)) > self.scores(self.highest(masks))) & masks.flatten(1).any(1)
        return torch.where(wins[:, None, None], others, masks)

    def note_failures(self, masks: Tensor, blank: Tensor) -> None:
        """Note images whose kept part does not score higher than the baseline and equally large other parts."""
        images = self.run.images
        kept, empty = self.scores(self.highest(masks)), self.scores(torch.zeros_like(masks))
        controls = {"at the center": center_map(images), "at edges": edge_map(images), "at random": random_map(images)}
        others = {where: self.scores(self.highest(map)).tolist() for where, map in controls.items()}
        for index in (~blank).nonzero().flatten().tolist():
            score, rest = float(kept[index]), float(empty[index])
            where, best = max(((name, values[index]) for name, values in others.items()), key=lambda pair: pair[1])
            if score > max(rest, best) or not math.isfinite(score):
                continue
            facts: dict[str, Any] = {"score": score, "empty": rest}
            if score <= rest:
                reason = f"not more than the baseline alone ({rest + 0.0:.3g})"
            else:
                reason, facts = f"not more than an equally large part {where} ({best:.3g})", {**facts, "other": best}
            note_finding(
                "search_failed",
                f"The search failed: the kept part scores {score:.3g}, {reason}. Try another baseline, such as 0, "
                "more steps, or another area.",
                image=index,
                **facts,
            )


class Starts:
    """Discs of the kept area at even positions, one of which starts the search: that with the highest score.

    `disc` [N, H, W] are the best discs so far, and `mask` [N, rows, columns] their parameters, `step` pixels apart; the
    mask that parameters define extends `reach` pixels beyond them.
    """

    def __init__(self, kept: KeptParts, step: int, reach: float) -> None:
        self._kept, self._step, self._reach = kept, step, reach
        images = kept.run.images
        height, width = images.shape[-2:]
        rows, columns = min(_SIDE, height), min(_SIDE, width)
        self._centers = [
            ((i + 0.5) * height / rows, (j + 0.5) * width / columns) for i in range(rows) for j in range(columns)
        ]
        self.mask = at_least_float32(images.new_zeros(len(images), -(-height // step), -(-width // step)))
        self.disc = torch.zeros_like(at_least_float32(images[:, 0]))
        self._scores = at_least_float32(images.new_full((len(images),), -math.inf))

    def __len__(self) -> int:
        return len(self._centers)

    def score(self, at: int) -> None:
        """Score the disc at a position, and keep it where it is the best so far."""
        pixels = self._distances(at, 1, *self._kept.run.images.shape[-2:])
        disc = self._kept.highest(-pixels[None])[0]
        scores = self._kept.scores(disc.expand(len(self.mask), -1, -1))
        better = scores > self._scores
        if at == 0:
            better = torch.ones_like(better)
        distances = self._distances(at, self._step, *self.mask.shape[1:])
        radius = float(pixels[disc > 0].max()) - self._reach
        parameters = (distances <= max(radius, float(distances.min()))).to(self.mask)
        self.mask = torch.where(better[:, None, None], parameters, self.mask)
        self.disc = torch.where(better[:, None, None], disc, self.disc)
        self._scores = torch.where(better, scores, self._scores)

    def _distances(self, at: int, step: int, rows: int, columns: int) -> Tensor:
        """Return the distances in pixels of the centers of cells, `step` pixels wide, from a position."""
        y, x = self._centers[at]
        down = (torch.arange(rows, dtype=torch.float64) + 0.5) * step - y
        right = (torch.arange(columns, dtype=torch.float64) + 0.5) * step - x
        return torch.sqrt(down[:, None] ** 2 + right**2).to(self.mask)
