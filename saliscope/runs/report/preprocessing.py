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
from PIL import Image, ImageOps

from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.summary import Rate
from saliscope.runs.report.context import Report
from saliscope.runs.rows import Booleans, Integers
from saliscope.zoo.model import Preparation, upright

CHOOSE, MEASURE = 32, 96
"""Maximum number of images that choose, and of those that measure."""
FEWEST = 30
"""Minimum number of labeled images."""
MISTAKES = 6
"""Minimum number of mistakes among the images that choose. Corrections of fewer are not significant."""
BATCH = 8


@dataclass(frozen=True)
class Other:
    """A preprocessing: a `change` of the image before the `preparation`. `advice` is what to do if it is correct."""

    name: str
    advice: str
    preparation: Preparation
    change: Callable[[Image.Image], Image.Image] = Image.Image.copy


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


def try_others(report: Report, columns: Columns, rows: Integers, *, images_only: bool = False) -> Trial | None:
    """Return the trial of other preprocessings on labeled images in `rows`, or None if there is too little to correct,
    the model is not available, or `report.go_on` ended it.

    `images_only` tries only those that change the images, for images that were damaged.
    """
    from scipy.stats import binomtest  # scipy takes a second to start

    model = report.model
    rows = rows[(columns.correct[rows] >= 0) & columns.readable[rows] & (columns.label_index[rows] >= 0)]
    if model is None or model.task != "classification" or model.tokenize is not None or len(rows) < FEWEST:
        return None
    mixed = np.random.default_rng(0).permutation(rows)[: CHOOSE + MEASURE].tolist()
    parts = np.split(np.array(mixed), [min(CHOOSE, len(mixed) // 2)])
    if (columns.correct[parts[0]] == 0).sum() < MISTAKES:
        return None
    images = {row: image for row in mixed if (image := report.read(columns.path(row))) is not None}
    first, second = ([row for row in part.tolist() if row in images] for part in parts)
    if min(len(first), len(second)) < FEWEST // 2:
        return None
    tried: dict[Other, Booleans] = {Other("as in the run", "", model.preparation): columns.correct[first] == 1}
    for other in others(model.preparation):
        if other.preparation is model.preparation or not images_only:
            correct = _predict(report, other, images, first, columns)
            tried |= {} if correct is None else {other: correct}
    best = max(list(tried)[1:], key=lambda other: tried[other].sum(), default=None)
    correct = None if best is None else _predict(report, best, images, second, columns)
    if best is None or correct is None:
        return None
    before = columns.correct[second] == 1
    gained, lost = int((correct & ~before).sum()), int((before & ~correct).sum())
    return Trial(
        best,
        [(other.name, Rate(int(each.sum()), len(first))) for other, each in tried.items()],
        Rate(int(before.sum()), len(second)),
        Rate(int(correct.sum()), len(second)),
        float(binomtest(gained, gained + lost, 0.5, "greater").pvalue) if gained + lost else 1.0,
        [row for row, gain in zip(second, correct & ~before, strict=True) if gain],
    )


def others(given: Preparation) -> Iterator[Other]:
    """Yield the other preprocessings that are tried."""
    for angle in (90, 180, 270):
        turn = partial(Image.Image.rotate, angle=angle, expand=True)
        yield Other(f"images rotated by {angle}°", "Rotate the images", given, turn)
    yield Other("inverted values", "Invert the values of the images", given, ImageOps.invert)
    if given.channels == 3:
        yield Other("BGR instead of RGB", "Reverse the order of the color channels", given, _reverse)
    white = 255 if given.raw else 1
    for name, mean, std in (
        ("mean 0.5 and std 0.5", (0.5,) * given.channels, (0.5,) * given.channels),
        ("mean and std of ImageNet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("values from 0 to 1", (0.0,) * given.channels, (1.0,) * given.channels),
        ("values from 0 to 255", (0.0,) * given.channels, (1 / 255,) * given.channels),
    ):
        values = tuple(tuple(white * each for each in part) for part in (mean, std))
        near = partial(np.allclose, values, rtol=0.02, atol=0.02 * white / 255)
        if len(mean) == given.channels and not near((given.mean, given.std)):
            yield Other(name, "Check mean and std", replace(given, mean=values[0], std=values[1]))
    for name, factor in (("half the size", 0.5), ("twice the size", 2)):
        side, resize = (_scale(each, factor) for each in (given.side, given.resize))
        yield Other(name, "Check the size", replace(given, side=side, resize=resize))
    if given.resize != given.size:
        yield Other("the whole image instead of a crop", "Check the crop", replace(given, resize=given.size))


def _scale(side: int | tuple[int, int], factor: float) -> int | tuple[int, int]:
    height, width = (max(1, round(each * factor)) for each in ((side, side) if isinstance(side, int) else side))
    return height if isinstance(side, int) else (height, width)


def _reverse(image: Image.Image) -> Image.Image:
    return Image.merge("RGB", image.split()[::-1])


def _predict(
    report: Report, other: Other, images: dict[int, Image.Image], rows: list[int], columns: Columns
) -> Booleans | None:
    """Return which rows are predicted correctly, or None if the network does not accept such images."""
    assert report.model is not None
    network = report.model.network
    device = next((tensor.device for tensor in network.parameters()), None)
    found: list[int] = []
    try:
        for start in range(0, len(rows), BATCH):
            if not report.go_on():
                return None
            part = [other.change(upright(images[row]).convert("RGB")) for row in rows[start : start + BATCH]]
            with torch.inference_mode():
                output = network(torch.cat([other.preparation.tensor(image) for image in part]).to(device))
            found += getattr(output, "logits", output).argmax(1).tolist()
    except (RuntimeError, ValueError, AssertionError):  # another size than the network has, or too little memory
        return None
    return np.array(found, dtype=np.int64) == columns.label_index[rows]
