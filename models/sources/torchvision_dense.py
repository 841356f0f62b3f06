"""torchvision's networks for semantic segmentation and for object detection, with their weights.

Both see the whole picture. Keypoint networks are left out; of mask networks the boxes alone are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torchvision
from PIL import Image
from torch import Tensor
from torchvision.models import WeightsEnum, get_model, get_model_weights
from torchvision.transforms import functional as F

from models import cache_limit, downloads
from models.downloads import Progress
from models.model import Model, Preparation, Task, limit_aspect
from models.settings import BadLimit
from models.sources.source import ModelInfo, ModelUnavailable, Source, no_random_init
from models.sources.torchvision_titles import title_of

MEASURES = {"miou": "mIoU", "box_map": "box mAP"}
"""torchvision's names of the published figures, and ours."""
FIXED = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}
"""Detectors that resize every picture to a square."""
LIMITED = {"fasterrcnn_mobilenet_v3_large_320_fpn": (320, 640)}
"""Detectors whose shorter and longer side of a picture are not limited to 800 and 1333 pixels."""
STEP = 32
"""All others fill a picture up to a multiple of so many pixels; their layers see the margin too."""


@dataclass(frozen=True)
class WholePicture(Preparation):
    """Shorter side to `resize`, without a crop; then (x - mean) / std of x in [0, 1].

    With `longest`, the longer side is limited to it; with `step`, both sides become multiples of it, and the aspect
    ratio changes by a few per cent at most. `size` is that of a square picture; others are longer.
    """

    longest: int | None = None
    step: int = 1

    def tensor(self, picture: Image.Image | Tensor) -> Tensor:
        """The picture as the network's input, float32 [1, channels, height, width].

        Errors   ValueError as `Preparation.tensor`
        """
        picture = limit_aspect(self._checked(picture))
        resized = F.resize(picture, self._resized(picture), interpolation=self.interpolation, antialias=True)
        values = resized if isinstance(resized, Tensor) else F.to_tensor(resized)
        return F.normalize(values, list(self.mean), list(self.std))[None]

    def _resized(self, picture: Image.Image | Tensor) -> list[int]:
        """The shorter side alone, or height and width, as torchvision's `resize` takes them."""
        short = self.size[0]
        if self.longest is None:
            return [short]
        width, height = picture.size if isinstance(picture, Image.Image) else (picture.shape[2], picture.shape[1])
        scale = min(short / min(width, height), self.longest / max(width, height))
        return [max(1, round(scale * side / self.step)) * self.step for side in (height, width)]

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The whole picture: 0, 0, width, height."""
        return 0.0, 0.0, float(width), float(height)

    def crop(self, photo: Image.Image) -> Image.Image:
        """The photograph itself, RGB; elongated ones without their ends."""
        return limit_aspect(photo.convert("RGB"))


class TorchvisionDense(Source):
    """torchvision's segmentation networks and detectors; the weights are downloaded at the first use."""

    def list(self) -> Iterator[ModelInfo]:
        for name, (weights, task) in weights_by_name().items():
            figures = next(iter(weights.meta["_metrics"].values()))
            measure = next(name for name in MEASURES if name in figures)
            yield ModelInfo(
                name=name,
                title=title_of(name),
                weights=weights.name,
                classes=len(weights.meta["categories"]),
                megabytes=round(_file_size(weights) / 1e6, 1),
                side=preparation_of(name).size[0],
                cached=downloads.cached(weights.url, _file_size(weights)),
                fetched=True,
                accuracy=figures[measure],
                task=task,
                measure=MEASURES[measure],
            )

    def load(self, name: str, progress: Progress | None = None) -> Model:
        weights, task = weights_by_name()[name]
        try:
            with cache_limit.in_use(downloads.path_of(weights.url)):
                downloads.fetch(title_of(name), weights.url, progress)
                # The file is complete and its checksum right: torchvision's builder reads it and downloads nothing.
                with no_random_init():
                    network = get_model(name, weights=weights, progress=False)
        except (downloads.FetchFailed, BadLimit) as error:
            raise ModelUnavailable(str(error)) from error
        return _model(name, network, [*self.labels(name)], task)

    def build(self, name: str, classes: int | None) -> Model:
        weights, task = weights_by_name()[name]
        outputs = {"num_classes": classes} if classes else {}
        with no_random_init():
            network = get_model(name, weights=None, weights_backbone=None, **outputs)
        known = classes in (None, len(weights.meta["categories"]))
        return _model(name, network, [*self.labels(name)] if known else [], task)

    def labels(self, name: str) -> Sequence[str]:
        return weights_by_name()[name][0].meta["categories"]


SOURCE = TorchvisionDense()


def _model(name: str, network: Any, labels: list[str], task: Task) -> Model:
    preparation = preparation_of(name)
    if preparation.longest is not None:
        network.transform.max_size = preparation.longest  # else it would resize elongated pictures once more
    return Model(name, network, labels, preparation, task)


@cache
def weights_by_name() -> dict[str, tuple[WeightsEnum, Task]]:
    """The default weights of every network, with its task; those for segmentation first."""
    rooms: tuple[tuple[object, Task], ...] = (
        (torchvision.models.segmentation, "segmentation"),
        (torchvision.models.detection, "detection"),
    )
    table: dict[str, tuple[WeightsEnum, Task]] = {}
    for room, task in rooms:
        for network in torchvision.models.list_models(module=room):
            weights = get_model_weights(network).DEFAULT
            if "keypoint_names" not in weights.meta:
                table[network] = weights, task
    return table


@cache
def preparation_of(name: str) -> WholePicture:
    """The weights' own preprocessing: detectors take pixels in [0, 1], normalise them, and resize them themselves.

    A detector's input already has the size that the detector would give it, and needs no margin: a grid of cells that
    covers a margin too would be drawn over the picture in the wrong place, by up to 31 pixels.
    """
    weights, task = weights_by_name()[name]
    if task == "detection":
        short, longest = LIMITED.get(name, (800, 1333))
        side, fixed = FIXED.get(name, short), name in FIXED
        limit = None if fixed else longest // STEP * STEP
        return WholePicture(side, side, (0.0,) * 3, (1.0,) * 3, longest=limit, step=1 if fixed else STEP)
    preset = weights.transforms()
    side = preset.resize_size[0]
    return WholePicture(side, side, tuple(preset.mean), tuple(preset.std), preset.interpolation)


def _file_size(weights: WeightsEnum) -> int:
    """Bytes, roughly: the table has MiB."""
    return round(weights.meta["_file_size"] * 2**20)
