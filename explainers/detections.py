"""Readers of raw detector outputs for `BoxScores(..., read=...)`: the DETR family of transformers, and YOLO.

A reader returns one dict per image, with `boxes` [M, 4] as (left, top, right, bottom) in pixels of the images that the
network receives, and `class_scores` [M, K] from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explainers.errors import BadTarget, shorten
from explainers.options import whole_numbers
from explainers.outputs import describe_output, named

Detections = list[dict[str, Tensor]]


@dataclass(frozen=True)
class DetrDetections:
    """Reads outputs with `logits` or `pred_logits` [N, M, K] and `pred_boxes` [N, M, 4], relative centers and sizes.

    `size` is (height, width) of the images that the network receives. `activation` is how the model was trained:
    "softmax" with "no object" as the last class (DETR, YOLOS, Table Transformer), or "sigmoid" (Conditional and
    Deformable DETR, RT-DETR, D-FINE). The model's config or its image processor tells which.
    """

    size: tuple[int, int]
    activation: str

    def __post_init__(self) -> None:
        size = whole_numbers(self.size)
        if size is None or len(size) != 2 or min(size) < 1:
            raise BadTarget(f"size={shorten(self.size)} is not valid. Give (height, width) of the images.")
        if self.activation not in ("softmax", "sigmoid"):
            raise BadTarget(f"activation={shorten(self.activation)} is not valid. Choose one of softmax, sigmoid.")

    def __call__(self, output: Any) -> Detections:
        """Return the boxes and class scores of each image."""
        logits, boxes = named(output, "logits", "pred_logits"), named(output, "pred_boxes")
        if not isinstance(logits, Tensor) or not isinstance(boxes, Tensor) or logits.shape[:2] != boxes.shape[:2]:
            raise BadTarget(
                f"The model returned {describe_output(output)}, not logits [N, M, K] and pred_boxes [N, M, 4]. "
                "DetrDetections reads the DETR family of transformers; give another reader for this model."
            )
        scores = logits.softmax(-1)[..., :-1] if self.activation == "softmax" else logits.sigmoid()
        height, width = self.size
        corners = _corners(boxes) * boxes.new_tensor([width, height, width, height])
        return [{"boxes": box, "class_scores": score} for box, score in zip(corners, scores, strict=True)]


@dataclass(frozen=True)
class YoloDetections:
    """Reads the raw output of a YOLO network in evaluation mode, before non-maximum suppression.

    `layout` is "v8" for [N, 4 + K, M] (YOLOv8 to v12: box, class scores), "v5" for [N, M, 5 + K] (YOLOv5 to v7: box,
    objectness, class scores), or "v10" for [N, M, 6] (left, top, right, bottom, score, class). Boxes of the first two
    are centers and sizes in pixels. If the output is a tuple, its first tensor is read.
    """

    layout: str = "v8"

    def __post_init__(self) -> None:
        if self.layout not in ("v5", "v8", "v10"):
            raise BadTarget(f"layout={shorten(self.layout)} is not valid. Choose one of v5, v8, v10.")

    def __call__(self, output: Any) -> Detections:
        """Return the boxes and class scores of each image."""
        found = output[0] if isinstance(output, (list, tuple)) and output else output
        if not isinstance(found, Tensor) or found.ndim != 3:
            raise BadTarget(
                f"The model returned {describe_output(output)}, not a tensor [N, rows, columns] of boxes and scores. "
                "Give a function as read= that turns this output into one dict per image, with boxes and class_scores."
            )
        rows = found.mT if self.layout == "v8" else found
        if rows.shape[2] < 5 or (self.layout == "v10" and rows.shape[2] != 6):
            raise BadTarget(
                f"The output has shape {tuple(found.shape)}, which does not fit layout={self.layout!r}: [N, 4 + K, M] "
                "for v8, [N, M, 5 + K] for v5, [N, M, 6] for v10. Choose the layout of this network."
            )
        if self.layout == "v10":
            return [{"boxes": row[:, :4], "scores": row[:, 4], "labels": row[:, 5].round().long()} for row in rows]
        scores = rows[..., 4:] if self.layout == "v8" else rows[..., 4:5] * rows[..., 5:]
        return [{"boxes": box, "class_scores": s} for box, s in zip(_corners(rows[..., :4]), scores, strict=True)]


def _corners(boxes: Tensor) -> Tensor:
    """Convert (center x, center y, width, height) to (left, top, right, bottom)."""
    center, size = boxes[..., :2], boxes[..., 2:4]
    return torch.cat([center - size / 2, center + size / 2], -1)
