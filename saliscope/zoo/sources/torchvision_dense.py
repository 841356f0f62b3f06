"""torchvision's networks for semantic segmentation and object detection, with their weights.

Both receive the whole image. Keypoint networks are not included; only the boxes of mask networks are used.
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

from saliscope.zoo import cache_limit, downloads
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model, Preparation, Task, limit_aspect
from saliscope.zoo.settings import BadLimit
from saliscope.zoo.sources.source import ModelInfo, ModelUnavailable, Source, no_random_init
from saliscope.zoo.sources.torchvision_titles import title_of

MEASURES = {"miou": "mIoU", "box_map": "box mAP"}
"""torchvision's names of the published metrics, and the names shown here."""
FIXED = {"ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}
"""Detectors that resize every image to a square."""
LIMITED = {"fasterrcnn_mobilenet_v3_large_320_fpn": (320, 640)}
"""Detectors with limits other than 800 and 1333 pixels for the shorter and longer side."""
STEP = 32
"""The other detectors pad an image to a multiple of this number of pixels, and their layers see the padding."""


@dataclass(frozen=True)
class WholeImage(Preparation):
    """Resize the shorter side to `resize` without a crop, then apply (x - mean) / std to x in [0, 1].

    `longest` limits the longer side. With `step`, both sides become multiples of it, which changes the aspect ratio by
    a few percent at most. `size` is the input size of a square image; the input of other images is longer.
    """

    longest: int | None = None
    step: int = 1

    def tensor(self, image: Image.Image | Tensor) -> Tensor:
        """Return the network input of an image, float32 [1, channels, height, width].

        Errors   ValueError as for `Preparation.tensor`
        """
        image = limit_aspect(self._checked(image))
        resized = F.resize(image, self._resized(image), interpolation=self.interpolation, antialias=True)
        values = resized if isinstance(resized, Tensor) else F.to_tensor(resized)
        return F.normalize(values, list(self.mean), list(self.std))[None]

    def _resized(self, image: Image.Image | Tensor) -> list[int]:
        """Return the size as torchvision's `resize` expects it: the shorter side only, or height and width."""
        short = self.size[0]
        if self.longest is None:
            return [short]
        width, height = image.size if isinstance(image, Image.Image) else (image.shape[2], image.shape[1])
        scale = min(short / min(width, height), self.longest / max(width, height))
        return [max(1, round(scale * side / self.step)) * self.step for side in (height, width)]

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the whole image: 0, 0, width, height."""
        return 0.0, 0.0, float(width), float(height)

    def crop(self, image: Image.Image) -> Image.Image:
        """Return the whole image as RGB, cropped only if it is very elongated."""
        return limit_aspect(image.convert("RGB"))


class TorchvisionDense(Source):
    """torchvision's segmentation networks and detectors; the weights are downloaded at the first use."""

    def list(self) -> Iterator[ModelInfo]:
        for name, (weights, task) in weights_by_name().items():
            metrics = next(iter(weights.meta["_metrics"].values()))
            measure = next(name for name in MEASURES if name in metrics)
            yield ModelInfo(
                name=name,
                title=title_of(name),
                weights=weights.name,
                classes=len(weights.meta["categories"]),
                megabytes=round(_file_size(weights) / 1e6, 1),
                side=preparation_of(name).size[0],
                cached=downloads.cached(weights.url, _file_size(weights)),
                fetched=True,
                accuracy=metrics[measure],
                task=task,
                measure=MEASURES[measure],
            )

    def load(self, name: str, progress: Progress | None = None) -> Model:
        weights, task = weights_by_name()[name]
        try:
            with cache_limit.in_use(downloads.path_of(weights.url)):
                downloads.fetch(title_of(name), weights.url, progress)
                # The file is complete and verified: torchvision's builder reads it and downloads nothing.
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
        network.transform.max_size = preparation.longest  # otherwise it would resize elongated images again
    return Model(name, network, labels, preparation, task)


@cache
def weights_by_name() -> dict[str, tuple[WeightsEnum, Task]]:
    """Return the default weights of every network with its task, the segmentation networks first."""
    modules: tuple[tuple[object, Task], ...] = (
        (torchvision.models.segmentation, "segmentation"),
        (torchvision.models.detection, "detection"),
    )
    table: dict[str, tuple[WeightsEnum, Task]] = {}
    for module, task in modules:
        for network in torchvision.models.list_models(module=module):
            weights = get_model_weights(network).DEFAULT
            if "keypoint_names" not in weights.meta:
                table[network] = weights, task
    return table


@cache
def preparation_of(name: str) -> WholeImage:
    """Return the preprocessing of the weights. Detectors take pixels in [0, 1]; they normalize and resize them.

    The input of a detector already has the size to which the detector would resize it, and needs no padding: a grid of
    cells that included padding would be drawn up to 31 pixels away from its position in the image.
    """
    weights, task = weights_by_name()[name]
    if task == "detection":
        short, longest = LIMITED.get(name, (800, 1333))
        side, fixed = FIXED.get(name, short), name in FIXED
        limit = None if fixed else longest // STEP * STEP
        return WholeImage(side, side, (0.0,) * 3, (1.0,) * 3, longest=limit, step=1 if fixed else STEP)
    preset = weights.transforms()
    side = preset.resize_size[0]
    return WholeImage(side, side, tuple(preset.mean), tuple(preset.std), preset.interpolation)


def _file_size(weights: WeightsEnum) -> int:
    """Return the approximate size in bytes; the table has MiB."""
    return round(weights.meta["_file_size"] * 2**20)
