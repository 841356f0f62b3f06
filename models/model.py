"""A network with its preprocessing and its class names."""

from __future__ import annotations

from dataclasses import dataclass, field

from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

MAX_ASPECT = 4
"""More elongated pictures are cropped first: resizing the shorter side of a 20,000 x 1 picture takes gigabytes."""


@dataclass(frozen=True)
class Preparation:
    """torchvision's preprocessing: shorter side to `resize`, centre crop of `side`, (x - mean) / std of x in [0, 1]."""

    side: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: InterpolationMode = InterpolationMode.BILINEAR

    def tensor(self, photo: Image.Image) -> Tensor:
        """The photograph as the network's input.

        Returns  float32 [1, 3, side, side], equal to the weights' own `transforms()`
        """
        resized = F.resize(_limit_aspect(photo), [self.resize], interpolation=self.interpolation, antialias=True)
        cropped = F.center_crop(resized, [self.side])
        return F.normalize(F.to_tensor(cropped), list(self.mean), list(self.std))[None]

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the centre crop in the picture's own pixels, as fractions of a pixel."""
        scale = self.resize / min(width, height)
        # torchvision rounds the longer side down, and the crop's corner to integer pixels of the resized picture.
        w, h = (self.resize if side == min(width, height) else int(side * scale) for side in (width, height))
        left, top = round((w - self.side) / 2), round((h - self.side) / 2)
        scale_x, scale_y = width / w, height / h
        return left * scale_x, top * scale_y, (left + self.side) * scale_x, (top + self.side) * scale_y

    def crop(self, photo: Image.Image) -> Image.Image:
        """The centre crop at the picture's own resolution: square, RGB; maps are drawn over it."""
        photo = _limit_aspect(photo)
        size = max(1, round(self.side * min(photo.size) / self.resize))
        return photo.resize((size, size), Image.Resampling.BICUBIC, box=self.region(*photo.size))


def _limit_aspect(photo: Image.Image) -> Image.Image:
    """RGB, centre-cropped to an aspect ratio of at most MAX_ASPECT."""
    photo = photo.convert("RGB")
    width, height = photo.size
    longest = MAX_ASPECT * min(width, height)
    if max(width, height) <= longest:
        return photo
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return photo.crop((left, top, left + min(width, longest), top + min(height, longest)))


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded network; threads may share it as long as none of them trains it."""

    name: str
    network: nn.Module = field(repr=False)
    """In evaluation mode, parameters frozen, float32."""
    labels: list[str] = field(repr=False)
    """Class names in the order of the network's outputs; not always distinct."""
    preparation: Preparation

    @property
    def side(self) -> int:
        """Height and width of the network's input in pixels."""
        return self.preparation.side

    def crop(self, photo: Image.Image) -> Image.Image:
        """The part of the photograph that the network sees, at the photograph's own resolution (square, RGB)."""
        return self.preparation.crop(photo)

    def prepare(self, photo: Image.Image) -> Tensor:
        """The photograph as the network's input, float32 [1, 3, side, side]."""
        return self.preparation.tensor(photo)
