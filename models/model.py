"""A network with its preprocessing and its class names."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

MAX_ASPECT = 4
"""More elongated pictures are cropped first: resizing the shorter side of a 20,000 x 1 picture takes gigabytes."""
MODES = {1: "L", 3: "RGB"}
"""The colour mode of a photograph by the number of the network's channels; any other number takes tensors."""
TOPS = {kind: torch.iinfo(kind).max for kind in (torch.uint8, torch.int8, torch.uint16, torch.int16)}
"""What the integers of a picture are divided by: the largest of their type."""

Picture = TypeVar("Picture", Image.Image, Tensor, Image.Image | Tensor)
Task = Literal["classification", "segmentation", "detection"]


@dataclass(frozen=True)
class Preparation:
    """torchvision's preprocessing: resize, centre crop, (x - mean) / std of x in [0, 1]; one mean and std a channel.

    `resize` is the length of the shorter side, or (height, width) whatever the picture's aspect ratio; `side` the
    input's height and width, or (height, width).
    """

    side: int | tuple[int, int]
    resize: int | tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: InterpolationMode = InterpolationMode.BILINEAR

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the network's input in pixels."""
        return (self.side, self.side) if isinstance(self.side, int) else self.side

    @property
    def channels(self) -> int:
        """Channels of the network's input."""
        return len(self.mean)

    @property
    def raw(self) -> bool:
        """Whether `mean` or `std` exceed 1: they are then of a picture's own values, and not of values in [0, 1]."""
        return any(abs(value) > 1 for value in (*self.mean, *self.std))

    def tensor(self, picture: Image.Image | Tensor) -> Tensor:
        """The picture as the network's input.

        `picture` is a photograph (for one or three channels), or an array or tensor [channels, height, width], such as
        the bands of a satellite image. Its floats are in the unit of `mean` and `std`; its integers of 8 or 16 bits are
        divided by the largest of their type, unless `mean` and `std` are of the picture's own values (`raw`).

        Returns  float32 [1, channels, height, width]; of a photograph, equal to the weights' own `transforms()`
        Errors   ValueError for a photograph where the network takes another number of channels, and for other shapes
        """
        picture = limit_aspect(self._checked(picture))
        resize = [self.resize] if isinstance(self.resize, int) else list(self.resize)
        resized = F.resize(picture, resize, interpolation=self.interpolation, antialias=True)
        cropped = F.center_crop(resized, list(self.size))
        values = (
            cropped if isinstance(cropped, Tensor) else F.to_tensor(cropped) * (TOPS[torch.uint8] if self.raw else 1)
        )
        return F.normalize(values, list(self.mean), list(self.std))[None]

    def _checked(self, picture: Image.Image | Tensor) -> Image.Image | Tensor:
        """The photograph in the network's colour mode; the tensor as it is."""
        if not isinstance(picture, Image.Image):
            bands = _as_tensor(picture)
            if bands.ndim != 3 or len(bands) != self.channels or not (bands.is_floating_point() or bands.dtype in TOPS):
                raise ValueError(
                    f"A picture of {bands.dtype} {list(bands.shape)} was given, and this network takes "
                    f"{self.channels} channels: give floats [{self.channels}, height, width] in the unit of mean and "
                    "std, or integers of 8 or 16 bits."
                )
            top = 1 if self.raw else TOPS.get(bands.dtype, 1)
            return bands.float() / top
        if self.channels not in MODES:
            raise ValueError(
                f"A photograph ({picture.mode}) was given, and this network takes {self.channels} channels: give a "
                f"float tensor [{self.channels}, height, width] of its bands."
            )
        return picture.convert(MODES[self.channels])

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the centre crop in the picture's own pixels, as fractions of a pixel."""
        if isinstance(self.resize, int):
            scale = self.resize / min(width, height)
            # torchvision rounds the longer side down, and the crop's corner to integer pixels of the resized picture.
            w, h = (self.resize if side == min(width, height) else int(side * scale) for side in (width, height))
        else:
            h, w = self.resize
        rows, columns = self.size
        left, top = round((w - columns) / 2), round((h - rows) / 2)
        scale_x, scale_y = width / w, height / h
        return left * scale_x, top * scale_y, (left + columns) * scale_x, (top + rows) * scale_y

    def window(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what the network sees, in parts of the whole picture.

        Below 0 and above 1 where the network sees more than the picture.
        """
        left, top, right, bottom = _middle(width, height)
        seen = self.region(right - left, bottom - top)
        return (left + seen[0]) / width, (top + seen[1]) / height, (left + seen[2]) / width, (top + seen[3]) / height

    def crop(self, photo: Image.Image) -> Image.Image:
        """What the network sees of a photograph, at its own resolution, RGB; maps are drawn over it.

        Square where the input is square and the picture is not distorted. Where the network sees more than the
        picture, the margin is black.
        """
        photo = limit_aspect(photo.convert("RGB"))
        left, top, right, bottom = box = self.region(*photo.size)
        size = max(1, round(right - left)), max(1, round(bottom - top))
        scale = (right - left) / self.size[1], (bottom - top) / self.size[0]
        if abs(scale[0] / scale[1] - 1) < 0.02:
            # The resized picture's longer side was rounded: one scale for both sides keeps a square square.
            one = min(photo.size) / self.resize if isinstance(self.resize, int) else (scale[0] + scale[1]) / 2
            size = max(1, round(self.size[1] * one)), max(1, round(self.size[0] * one))
        beyond = max(-left, -top, right - photo.width, bottom - photo.height)
        if beyond > 0.01:  # less is the rounding of floats
            margin = math.ceil(beyond)
            wider = Image.new("RGB", (photo.width + 2 * margin, photo.height + 2 * margin))
            wider.paste(photo, (margin, margin))
            photo, box = wider, (left + margin, top + margin, right + margin, bottom + margin)
        return photo.resize(size, Image.Resampling.BICUBIC, box=box)


def _as_tensor(picture: Any) -> Tensor:
    """The numbers of an array, whatever its strides and byte order.

    Errors   ValueError for what is no array of numbers
    """
    if isinstance(picture, Tensor):
        return picture
    try:
        if hasattr(picture, "astype"):  # torch takes no big-endian, mirrored or read-only arrays of NumPy as they are
            picture = picture.astype(picture.dtype.newbyteorder("="), order="C", copy=True)
        return torch.as_tensor(picture)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{type(picture).__name__} is no picture: give one of PIL, or a tensor or array [channels, height, width]."
        ) from None


def limit_aspect(picture: Picture) -> Picture:
    """The picture, centre-cropped to an aspect ratio of at most MAX_ASPECT."""
    width, height = picture.size if isinstance(picture, Image.Image) else (picture.shape[2], picture.shape[1])
    left, top, right, bottom = _middle(width, height)
    if (right - left, bottom - top) == (width, height):
        return picture
    if isinstance(picture, Image.Image):
        return picture.crop((left, top, right, bottom))
    return picture[:, top:bottom, left:right]


def _middle(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the middle of a picture, with an aspect ratio of at most MAX_ASPECT."""
    longest = MAX_ASPECT * min(width, height)
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return left, top, left + min(width, longest), top + min(height, longest)


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded network; threads may share it as long as none of them trains it."""

    name: str
    network: nn.Module = field(repr=False)
    """In evaluation mode, parameters frozen, float32."""
    labels: list[str] = field(repr=False)
    """Class names in the order of the network's outputs; not always distinct."""
    preparation: Preparation
    task: Task = "classification"
    """What the network gives: scores of classes, of classes at every pixel, or boxes with classes and scores."""
    notes: tuple[str, ...] = ()
    """What was assumed or left out while loading it, a sentence each."""

    @property
    def channels(self) -> int:
        """Channels of the network's input."""
        return self.preparation.channels

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the network's input in pixels."""
        return self.preparation.size

    @property
    def side(self) -> int:
        """Height and width of the network's input in pixels; the longer of both where it is not square."""
        return max(self.preparation.size)

    def crop(self, photo: Image.Image) -> Image.Image:
        """The part of the photograph that the network sees, at the photograph's own resolution, RGB."""
        return self.preparation.crop(photo)

    def prepare(self, picture: Image.Image | Tensor) -> Tensor:
        """The picture as the network's input, float32 [1, channels, height, width].

        Errors   ValueError for a photograph where the network does not take one or three channels, and for other shapes
        """
        return self.preparation.tensor(picture)
