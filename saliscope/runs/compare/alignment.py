"""The part of the images that the maps of both runs show.

Two networks may crop images differently. Their maps are then compared on the part that both received.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saliscope.runs import formats
from saliscope.runs.compare.agreement import WHOLE, Box, Frame
from saliscope.runs.finished.finished_run import FinishedRun
from saliscope.runs.rows import Floats
from saliscope.zoo import Preparation

SHAPES = ((1000, 1000), (1600, 1000), (1000, 1600), (3000, 1000))
"""Sizes of images for which the crops are compared."""
NEAR = 0.01
"""Crops that differ by less than this share of their side count as equal; they are rounded to pixels."""


@dataclass(frozen=True)
class Alignment:
    """The frames of both runs, or None with the reason why maps cannot be compared; `note` describes the frames."""

    frames: tuple[Frame, Frame] | None
    note: str


def align(a: FinishedRun, b: FinishedRun) -> Alignment:
    """Return the common part of the maps of two runs. Networks are loaded if their preprocessing may differ."""
    by_size = [formats.by_size(run.data.settings.get("method", "")) for run in (a, b)]

    def frames(first: Box, second: Box) -> tuple[Frame, Frame]:
        return Frame(first, by_size[0]), Frame(second, by_size[1])

    hashes = [run.data.settings.get("labels_and_preprocessing") for run in (a, b)]
    if hashes[0] is not None and hashes[0] == hashes[1]:
        return Alignment(frames(WHOLE, WHOLE), "Both networks received the same part of each image.")
    models = [run.try_model() for run in (a, b)]
    if models[0] is None or models[1] is None:
        names = " and ".join(
            str(run.data.settings.get("model")) for run, model in zip((a, b), models, strict=True) if not model
        )
        return Alignment(
            None,
            "Maps were not compared: the preprocessing of the runs may differ, and the network is not available or has "
            f"changed ({names}). Make it available to compare the part of the images that both networks received.",
        )
    boxes = common_boxes(models[0].preparation, models[1].preparation)
    if boxes is None:
        return Alignment(
            None,
            "Maps were not compared: the networks crop images differently, in a way that depends on the shape of the "
            "image. Use the same crop for both runs to compare their maps.",
        )
    if boxes == (WHOLE, WHOLE):
        return Alignment(frames(*boxes), "Both networks received the same part of each image.")
    shares = [f"{100 * (box[2] - box[0]):.0f}% × {100 * (box[3] - box[1]):.0f}%" for box in boxes]
    note = "The networks crop images differently. Maps are compared on the part that both received: "
    return Alignment(frames(*boxes), f"{note}{shares[0]} of the maps of A and {shares[1]} of those of B.")


def common_boxes(a: Preparation, b: Preparation) -> tuple[Box, Box] | None:
    """Return the common part of two crops as fractions of each, or None if it depends on the shape of the image."""
    found = [_common(np.array(a.window(*shape)), np.array(b.window(*shape))) for shape in SHAPES]
    known = np.array([boxes for boxes in found if boxes is not None])  # [shapes, runs, edges]
    if len(known) < len(found) or (np.abs(known - known[0]) > NEAR).any():
        return None
    first, second = (WHOLE if np.all(np.abs(box - WHOLE) < NEAR) else tuple(box.tolist()) for box in known[0])
    return first, second


def _common(a: Floats, b: Floats) -> Floats | None:
    """Return the intersection of two windows [2, edges] as fractions of each, or None if it is empty."""
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    if (low >= high).any():
        return None
    parts = [np.array([low - each[:2], high - each[:2]]) / (each[2:] - each[:2]) for each in (a, b)]
    return np.clip(parts, 0, 1).reshape(2, 4)
