"""The preprocessing of networks for semantic segmentation and object detection, which receive the whole image."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from saliscope.zoo.model import Preparation, limit_aspect
from saliscope.zoo.operations import image_size, normalize, resize

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
        resized = resize(image, *self._resized_size(*image_size(image)), self.interpolation)
        return normalize(resized, self.mean, self.std)[None]

    def _resized_size(self, width: int, height: int) -> tuple[int, int]:
        if self.longest is None:
            return super()._resized_size(width, height)
        scale = min(self.size[0] / min(width, height), self.longest / max(width, height))
        h, w = (max(1, round(scale * side / self.step)) * self.step for side in (height, width))
        return h, w

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the whole image: 0, 0, width, height."""
        return 0.0, 0.0, float(width), float(height)

    def crop(self, image: Image.Image) -> Image.Image:
        """Return the whole image as RGB, cropped only if it is very elongated."""
        return limit_aspect(image.convert("RGB"))


def detector_preparation(name: str) -> WholeImage:
    """Return the preprocessing of torchvision's detectors: pixels in [0, 1], which they normalize and resize.

    The input already has the size to which the detector would resize it, and needs no padding: a grid of cells that
    included padding would be drawn up to 31 pixels away from its position in the image.
    """
    short, longest = LIMITED.get(name, (800, 1333))
    side, fixed = FIXED.get(name, short), name in FIXED
    limit = None if fixed else longest // STEP * STEP
    return WholeImage(side, side, (0.0,) * 3, (1.0,) * 3, longest=limit, step=1 if fixed else STEP)
