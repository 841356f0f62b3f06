"""Targets for outputs that are not class scores: embeddings, segmentation maps, detections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget
from explainers.targets import Target, out_of_range


@dataclass(frozen=True, eq=False)
class Similarity(Target):
    """Cosine similarity of the model's output [N, D] to an `embedding` [D] or [N, D]."""

    embedding: Tensor

    def __call__(self, output: Any) -> Tensor:
        """[N], in [-1, 1]."""
        return torch.cosine_similarity(
            output.flatten(1), self.embedding.to(output).reshape(-1, output.flatten(1).shape[1]), dim=1
        )

    def rows(self, pictures: Sequence[int]) -> Target:
        if self.embedding.ndim < 2 or len(self.embedding) == 1:
            return self
        return Similarity(self.embedding[list(pictures)])

    def __repr__(self) -> str:
        return f"Similarity(embedding of {tuple(self.embedding.shape)})"


@dataclass(frozen=True, eq=False)
class MaskScores(Target):
    """Mean logit of `class_` over the pixels of a `mask` [H, W], for segmentation output [N, K, H, W] or {"out":
    ...}.
    """

    mask: Tensor
    class_: int

    def __call__(self, output: Any) -> Tensor:
        """[N], in logits."""
        scores = output["out"] if isinstance(output, dict) else output
        if not 0 <= self.class_ < scores.shape[1]:
            raise BadTarget(out_of_range(self.class_, scores.shape[1]))
        weights = self.mask.to(scores)
        return (scores[:, self.class_] * weights).sum((1, 2)) / weights.sum().clamp(min=1)

    def __repr__(self) -> str:
        return f"MaskScores({int(self.mask.count_nonzero())} pixels, class_={self.class_})"


@dataclass(frozen=True, eq=False)
class BoxScores(Target):
    """For a torchvision detector: the scores of the detections that match given boxes.

    `boxes` [M, 4] as (left, top, right, bottom) and `labels` [M]; a detection of the same label counts by its
    overlap (intersection over union) where that is at least `overlap`.
    """

    boxes: Tensor
    labels: tuple[int, ...]
    overlap: float = 0.5

    def __call__(self, output: Any) -> Tensor:
        """[N], between 0 and the number of boxes."""
        return torch.stack([self._of_picture(found) for found in output])

    def _of_picture(self, found: dict[str, Tensor]) -> Tensor:
        total = found["scores"].sum() * 0
        for box, label in zip(self.boxes.to(found["boxes"]), self.labels, strict=True):
            match = found["labels"] == label
            if match.any():
                overlaps = _overlap(box, found["boxes"][match])
                best = overlaps.argmax()
                if overlaps[best] >= self.overlap:
                    total = total + overlaps[best] * found["scores"][match][best]
        return total

    def __repr__(self) -> str:
        return f"BoxScores({len(self.labels)} boxes, labels={self.labels})"


def _overlap(box: Tensor, boxes: Tensor) -> Tensor:
    sides = (torch.minimum(box[2:], boxes[:, 2:]) - torch.maximum(box[:2], boxes[:, :2])).clamp(min=0)
    shared = sides.prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return shared / ((box[2:] - box[:2]).prod() + areas - shared)
