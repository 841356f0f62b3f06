"""A network with its preprocessing and class names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from explainers import detect_score
from saliscope.zoo.operations import ImageOrTensor, InterpolationMode, crop, image_size, normalize, resize

MAX_ASPECT = 4
"""More elongated images are cropped first: resizing the shorter side of a 20,000 x 1 image needs gigabytes."""
MODES = {1: "L", 3: "RGB"}
"""The color mode of an image by the number of channels of the network; other numbers of channels need tensors."""
TOPS = {kind: torch.iinfo(kind).max for kind in (torch.uint8, torch.int8, torch.uint16, torch.int16)}
"""The largest value of each integer type, by which integer images are divided."""

CENTER = (0.5, 0.5)
Tokenize = Callable[[list[str]], Any]
"""Converts sentences to the input of a text encoder: token ids [M, length], or a dictionary of tensors."""
Task = Literal["classification", "segmentation", "detection"]


@dataclass(frozen=True)
class Preparation:
    """Preprocessing as in torchvision: resize, crop, and (x - mean) / std of x in [0, 1] per channel.

    `resize` is the length of the shorter side, or (height, width) for a fixed size. `side` is the height and width of
    the input, or (height, width).
    """

    side: int | tuple[int, int]
    resize: int | tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: InterpolationMode | str = InterpolationMode.BILINEAR
    """The filter of the resizing, or its name: nearest, bilinear, bicubic, box, hamming or lanczos; for tensors one of
    the first three. torchvision's `InterpolationMode` works too."""
    position: tuple[float, float] | None = CENTER
    """Where the crop lies between left and right, and between top and bottom, from 0 to 1. None: the whole image is
    resized to fit into the input, with black margins."""

    def __post_init__(self) -> None:
        """Convert the name of the filter.

        Errors   ValueError for an unknown one
        """
        name = getattr(self.interpolation, "value", self.interpolation)
        object.__setattr__(self, "interpolation", InterpolationMode(name))

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of the network input in pixels."""
        return (self.side, self.side) if isinstance(self.side, int) else self.side

    @cached_property
    def channels(self) -> int:
        """Channels of the network input."""
        return len(self.mean)

    @cached_property
    def raw(self) -> bool:
        """Whether `mean` or `std` exceed 1. They then apply to the original values of an image, not to [0, 1]."""
        return any(abs(value) > 1 for value in (*self.mean, *self.std))

    def tensor(self, image: Image.Image | Tensor) -> Tensor:
        """Return the network input of an image.

        `image` is a PIL image (for one or three channels), or an array or tensor [channels, height, width], such as the
        bands of a satellite image. Floats must be in the unit of `mean` and `std`. Integers of 8 or 16 bits are divided
        by the largest value of their type, unless `mean` and `std` apply to the original values (`raw`).

        Returns  float32 [1, channels, height, width]; for a PIL image, equal to `transforms()` of the weights
        Errors   ValueError for a PIL image if the network needs another number of channels, and for other shapes
        """
        image = self.limited(self._checked(image))
        height, width = self._resized_size(*image_size(image))
        resized = resize(image, height, width, self.interpolation)
        cropped = crop(resized, *self._corner(height, width), *self.size)
        return normalize(cropped, self.mean, self.std, white=TOPS[torch.uint8] if self.raw else 1)[None]

    def limited(self, image: ImageOrTensor) -> ImageOrTensor:
        """Return the image without the ends of a very elongated one, unless the whole image is resized."""
        return image if self.position is None else limit_aspect(image)

    def _resized_size(self, width: int, height: int) -> tuple[int, int]:
        """Return height and width of the resized image; torchvision also rounds the longer side down."""
        if self.position is None:
            scale = min(self.size[0] / height, self.size[1] / width)
            return max(1, round(height * scale)), max(1, round(width * scale))
        if not isinstance(self.resize, int):
            return self.resize
        shorter = min(width, height)
        return int(self.resize * height / shorter), int(self.resize * width / shorter)

    def _corner(self, height: int, width: int) -> tuple[int, int]:
        """Return top and left of the crop in a resized image; negative if the crop exceeds the image."""
        x, y = self.position or CENTER
        return self._start(height, self.size[0], y), self._start(width, self.size[1], x)

    def _start(self, length: int, part: int, position: float) -> int:
        if part <= length:
            return round((length - part) * position)
        margin = part - length
        # torchvision, which only has centered crops, rounds the first margin down.
        return -(margin // 2) if self.position in (None, CENTER) else -round(margin / 2)

    def _checked(self, image: Image.Image | Tensor) -> Image.Image | Tensor:
        """Return a PIL image in the color mode of the network, or a tensor scaled to the unit of mean and std."""
        if not isinstance(image, Image.Image):
            bands = _as_tensor(image)
            if bands.ndim != 3 or len(bands) != self.channels or not (bands.is_floating_point() or bands.dtype in TOPS):
                raise ValueError(
                    f"This network needs {self.channels} channels, but the image has {bands.dtype} "
                    f"{list(bands.shape)}. Pass floats [{self.channels}, height, width] in the unit of mean and std, "
                    "or integers of 8 or 16 bits."
                )
            top = 1 if self.raw else TOPS.get(bands.dtype, 1)
            return bands.float() / top
        if self.channels not in MODES:
            raise ValueError(
                f"This network needs {self.channels} channels, but the image has mode {image.mode}. Pass a float "
                f"tensor [{self.channels}, height, width] with the bands."
            )
        return image.convert(MODES[self.channels])

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of the crop in pixels of the original image, as floats."""
        h, w = self._resized_size(width, height)
        rows, columns = self.size
        top, left = self._corner(h, w)  # torchvision rounds the corner of the crop to integers in the resized image
        scale_x, scale_y = width / w, height / h
        return left * scale_x, top * scale_y, (left + columns) * scale_x, (top + rows) * scale_y

    def window(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of the network's field of view as fractions of the whole image.

        The values are below 0 or above 1 if the field of view exceeds the image.
        """
        left, top, right, bottom = (0, 0, width, height) if self.position is None else _middle(width, height)
        box = self.region(right - left, bottom - top)
        return (left + box[0]) / width, (top + box[1]) / height, (left + box[2]) / width, (top + box[3]) / height

    def crop(self, image: Image.Image) -> Image.Image:
        """Return the part of an image that the network receives, as RGB at the original resolution.

        Maps are drawn over it. It is square if the input is square and the image is not distorted. If the field of view
        exceeds the image, the margin is black.
        """
        image = self.limited(image.convert("RGB"))
        left, top, right, bottom = box = self.region(*image.size)
        size = max(1, round(right - left)), max(1, round(bottom - top))
        scale = (right - left) / self.size[1], (bottom - top) / self.size[0]
        if abs(scale[0] / scale[1] - 1) < 0.02:
            # The longer side of the resized image was rounded: one scale for both sides keeps a square crop square.
            by_side = self.resize if isinstance(self.resize, int) and self.position is not None else None
            factor = min(image.size) / by_side if by_side else (scale[0] + scale[1]) / 2
            size = max(1, round(self.size[1] * factor)), max(1, round(self.size[0] * factor))
        overhang = max(-left, -top, right - image.width, bottom - image.height)
        if overhang > 0.01:  # smaller values are rounding errors
            margin = math.ceil(overhang)
            padded = Image.new("RGB", (image.width + 2 * margin, image.height + 2 * margin))
            padded.paste(image, (margin, margin))
            image, box = padded, (left + margin, top + margin, right + margin, bottom + margin)
        return image.resize(size, Image.Resampling.BICUBIC, box=box)


def _as_tensor(image: Any) -> Tensor:
    """Return the values of an array with any strides and byte order.

    Errors   ValueError for a value that is not an array of numbers
    """
    if isinstance(image, Tensor):
        return image
    try:
        if hasattr(image, "astype"):  # torch rejects NumPy arrays that are big-endian, mirrored or read-only
            image = image.astype(image.dtype.newbyteorder("="), order="C", copy=True)
        return torch.as_tensor(image)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"{type(image).__name__} is not an image. Pass a PIL image, or a tensor or array [channels, height, width]."
        ) from None


def upright(image: Image.Image) -> Image.Image:
    """Return the image as its EXIF orientation shows it, or the image itself if it has none."""
    try:
        is_turned = image.getexif().get(0x0112, 1) != 1
    except Exception:  # damaged metadata, for which Pillow raises errors of many types
        return image
    return ImageOps.exif_transpose(image) if is_turned else image


def limit_aspect(image: ImageOrTensor) -> ImageOrTensor:
    """Return the image, center-cropped to an aspect ratio of at most MAX_ASPECT."""
    width, height = image_size(image)
    left, top, right, bottom = _middle(width, height)
    if (right - left, bottom - top) == (width, height):
        return image
    if isinstance(image, Image.Image):
        return image.crop((left, top, right, bottom))
    return image[:, top:bottom, left:right]


def _middle(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of the center of an image, with an aspect ratio of at most MAX_ASPECT."""
    longest = MAX_ASPECT * min(width, height)
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return left, top, left + min(width, longest), top + min(height, longest)


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded network. Threads may share it if none of them trains it."""

    name: str
    network: nn.Module = field(repr=False)
    """In evaluation mode, parameters frozen, float32."""
    labels: list[str] = field(repr=False)
    """Class names in the order of the network's outputs; not always distinct."""
    preparation: Preparation
    task: Task = "classification"
    """The kind of output: class scores, class scores at every pixel, or boxes with classes and scores."""
    notes: tuple[str, ...] = ()
    """Messages about assumptions made and things ignored while loading."""
    score: str | None = None
    """How scores become probabilities: "softmax", "sigmoid", "identity", "log" or "logit"; None: it is detected."""
    tokenize: Tokenize | None = field(default=None, repr=False)
    """Converts sentences to the input of the network's text encoder. The network then returns embeddings of images, and
    sentences are explained instead of classes."""

    @property
    def channels(self) -> int:
        """Channels of the network input."""
        return self.preparation.channels

    @cached_property
    def score_kind(self) -> str:
        """How the scores of a classifier become probabilities: `score`, or what a noise image shows."""
        if self.score is not None:
            return self.score
        device = next((tensor.device for tensor in self.network.parameters()), None)
        noise = torch.rand(1, self.channels, *self.size, generator=torch.Generator().manual_seed(0))
        return detect_score(self.network, noise.to(device), len(self.labels))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the network input in pixels."""
        return self.preparation.size

    @property
    def side(self) -> int:
        """Height and width of the network input in pixels; the longer side if it is not square."""
        return max(self.preparation.size)

    def crop(self, image: Image.Image) -> Image.Image:
        """Return the part of the image that the network receives, upright and as RGB at the original resolution."""
        return self.preparation.crop(upright(image))

    def prepare(self, image: Image.Image | Tensor) -> Tensor:
        """Return the network input of an image, float32 [1, channels, height, width].

        A photo is turned upright, as its EXIF orientation says.

        Errors   ValueError for a PIL image if the network does not have one or three channels, and for other shapes
        """
        return self.preparation.tensor(upright(image) if isinstance(image, Image.Image) else image)
