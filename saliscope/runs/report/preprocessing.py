"""Predict some images again with other preprocessings, to find one with which the network is much more accurate.

One sample of images chooses among the preprocessings, and another one measures the chosen one, so that the number of
preprocessings needs no correction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.summary import Rate
from saliscope.runs.report.context import Report
from saliscope.zoo.model import Preparation, upright

CHOOSE, MEASURE = 32, 96
"""Maximum number of images that choose, and of those that measure."""
FEWEST = 30
"""Minimum number of labeled images."""
MISTAKES = 6
"""Minimum number of mistakes among the images that choose. Corrections of fewer are not significant."""
BATCH = 8

Change = Callable[["Image.Image"], "Image.Image"]


@dataclass(frozen=True)
class Other:
    """A preprocessing: a `change` of the image before the `preparation`. `advice` is what to do if it is correct."""

    name: str
    advice: str
    preparation: Preparation
    change: Change | None = None


@dataclass(frozen=True)
class Trial:
    """The best of `tried` preprocessings: the accuracy `before` and with it (`after`) on the same images.

    `p` is that of McNemar's exact test, one-sided; `rows` are those of images that became correct.
    """

    best: Other
    tried: list[tuple[str, Rate]]
    """The name of each preprocessing and its accuracy on the images that choose; the given one first."""
    before: Rate
    after: Rate
    p: float
    rows: list[int] = field(repr=False)


def try_others(report: Report, columns: Columns, rows: NDArray[np.int64], *, images_only: bool = False) -> Trial | None:
    """Return the trial of other preprocessings on labeled images in `rows`, or None if there is too little to correct,
    the model is not available, or `report.go_on` ended it.

    `images_only` tries only those that change the images, for images that were damaged.
    """
    from scipy.stats import binomtest  # scipy takes a second to start

    model = report.model
    if model is None or model.task != "classification" or model.tokenize is not None:
        return None
    first, second = _samples(columns, rows)
    if (columns.correct[first] == 0).sum() < MISTAKES:
        return None
    images = {row: image for row in [*first, *second] if (image := report.read(columns.path(row))) is not None}
    first, second = ([row for row in part if row in images] for part in (first, second))
    if min(len(first), len(second)) < FEWEST // 2:
        return None
    results = [
        (other, correct)
        for other in others(model.preparation)
        if (other.change is not None or not images_only)
        and (correct := _predict(report, other, images, first, columns)) is not None
    ]
    if not results:
        return None
    best = max(results, key=lambda each: each[1].sum())[0]
    correct, before = _predict(report, best, images, second, columns), columns.correct[second] == 1
    if correct is None:
        return None
    gained, lost = int((correct & ~before).sum()), int((before & ~correct).sum())
    tried = [("as in the run", columns.correct[first] == 1), *((other.name, each) for other, each in results)]
    return Trial(
        best,
        [(name, Rate(int(each.sum()), len(first))) for name, each in tried],
        Rate(int(before.sum()), len(second)),
        Rate(int(correct.sum()), len(second)),
        float(binomtest(gained, gained + lost, 0.5, "greater").pvalue) if gained + lost else 1.0,
        [row for row, gain in zip(second, correct & ~before, strict=True) if gain],
    )


def _samples(columns: Columns, rows: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return the labeled images that choose, and those that measure; empty if there are too few."""
    rows = rows[(columns.correct[rows] >= 0) & columns.readable[rows] & (columns.label_index[rows] >= 0)]
    if len(rows) < FEWEST:
        return [], []
    mixed = np.random.default_rng(0).permutation(rows)[: CHOOSE + MEASURE].tolist()
    count = min(CHOOSE, len(mixed) // 2)
    return mixed[:count], mixed[count:]


def others(given: Preparation) -> Iterator[Other]:
    """Yield the other preprocessings that are tried."""
    for angle in (90, 180, 270):
        turn = partial(Image.Image.rotate, angle=angle, expand=True)
        yield Other(f"images rotated by {angle}°", "Rotate the images", given, turn)
    yield Other("inverted values", "Invert the values of the images", given, ImageOps.invert)
    if given.channels == 3:
        yield Other("BGR instead of RGB", "Reverse the order of the color channels", given, _reverse)
    std = given.mean, given.std
    white = 255 if given.raw else 1
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    for name, values in {
        "mean 0.5 and std 0.5": ((0.5,) * given.channels, (0.5,) * given.channels),
        "mean and std of ImageNet": imagenet,
        "values from 0 to 1": ((0.0,) * given.channels, (1.0,) * given.channels),
        "values from 0 to 255": ((0.0,) * given.channels, (1 / 255,) * given.channels),
    }.items():
        center, scale = (tuple(white * each for each in part) for part in values)
        if len(center) == given.channels and not np.allclose((center, scale), std, rtol=0.02, atol=0.02 * white / 255):
            yield Other(name, "Check mean and std", replace(given, mean=center, std=scale))
    for name, factor in (("half the size", 0.5), ("twice the size", 2)):
        side, resize = (_scale(each, factor) for each in (given.side, given.resize))
        yield Other(name, "Check the size", replace(given, side=side, resize=resize))
    if given.resize != given.size:
        yield Other("the whole image instead of a crop", "Check the crop", replace(given, resize=given.size))


def _scale(side: int | tuple[int, int], factor: float) -> int | tuple[int, int]:
    if isinstance(side, int):
        return max(1, round(side * factor))
    return max(1, round(side[0] * factor)), max(1, round(side[1] * factor))


def _reverse(image: Image.Image) -> Image.Image:
    return Image.merge("RGB", image.split()[::-1])


def _predict(
    report: Report, other: Other, images: dict[int, Image.Image], rows: list[int], columns: Columns
) -> NDArray[np.bool_] | None:
    """Return which rows are predicted correctly, or None if the network does not accept such images."""
    assert report.model is not None
    network = report.model.network
    device = next((tensor.device for tensor in network.parameters()), None)
    found: list[int] = []
    try:
        for start in range(0, len(rows), BATCH):
            if not report.go_on():
                return None
            part = [upright(images[row]).convert("RGB") for row in rows[start : start + BATCH]]
            part = part if other.change is None else [other.change(image) for image in part]
            with torch.inference_mode():
                output = network(torch.cat([other.preparation.tensor(image) for image in part]).to(device))
            found += getattr(output, "logits", output).argmax(1).tolist()
    except (RuntimeError, ValueError, AssertionError):  # another size than the network has, or too little memory
        return None
    return np.array(found, dtype=np.int64) == columns.label_index[rows]
