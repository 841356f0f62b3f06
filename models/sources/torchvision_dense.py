"""torchvision's networks for semantic segmentation and for object detection, with their weights.

Both see the whole picture. Keypoint networks are left out; of mask networks the boxes alone are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

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
DETECTOR_SIDES = {
    "ssd300_vgg16": 300,
    "ssdlite320_mobilenet_v3_large": 320,
    "fasterrcnn_mobilenet_v3_large_320_fpn": 320,
}
"""Detectors that do not resize the shorter side of their input to 800 pixels."""


@dataclass(frozen=True)
class WholePicture(Preparation):
    """Shorter side to `resize`, without a crop; then (x - mean) / std of x in [0, 1].

    `size` is that of a square picture; others are longer.
    """

    def tensor(self, picture: Image.Image | Tensor) -> Tensor:
        """The picture as the network's input, float32 [1, channels, height, width].

        Errors   ValueError as `Preparation.tensor`
        """
        resized = F.resize(
            limit_aspect(self._checked(picture)), [self.size[0]], interpolation=self.interpolation, antialias=True
        )
        values = resized if isinstance(resized, Tensor) else F.to_tensor(resized)
        return F.normalize(values, list(self.mean), list(self.std))[None]

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
        return Model(name, network, [*self.labels(name)], preparation_of(name), task)

    def labels(self, name: str) -> Sequence[str]:
        return weights_by_name()[name][0].meta["categories"]


SOURCE = TorchvisionDense()


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
def preparation_of(name: str) -> Preparation:
    """The weights' own preprocessing: detectors take pixels in [0, 1], normalise them, and resize them themselves.

    A detector's input already has the size that the detector would give it: resized twice, pictures lose detail, and
    maps of larger inputs would show no more.
    """
    weights, task = weights_by_name()[name]
    if task == "detection":
        side = DETECTOR_SIDES.get(name, 800)
        return WholePicture(side, side, mean=(0.0,) * 3, std=(1.0,) * 3)
    preset = weights.transforms()
    side = preset.resize_size[0]
    return WholePicture(side, side, tuple(preset.mean), tuple(preset.std), preset.interpolation)


def _file_size(weights: WeightsEnum) -> int:
    """Bytes, roughly: the table has MiB."""
    return round(weights.meta["_file_size"] * 2**20)
