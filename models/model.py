"""A network with what belongs to it: what it is fed, what it sees of a photograph, what its outputs are called."""

from __future__ import annotations

from dataclasses import dataclass, field

from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

ELONGATED = 4
"""Longer pictures are cut to this ratio first: a line one pixel high resized as torchvision does it takes gigabytes."""


@dataclass(frozen=True)
class Preparation:
    """Shorter side to `resize`, centre crop of `side`, values to [0, 1], minus `mean`, over `std`, as torchvision."""

    side: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: InterpolationMode = InterpolationMode.BILINEAR

    def tensor(self, photo: Image.Image) -> Tensor:
        """The photograph as the network's input.

        Returns  float32 [1, 3, side, side], equal to what the weights' own `transforms()` gives.
        """
        seen = F.resize(_shortened(photo), [self.resize], interpolation=self.interpolation, antialias=True)
        seen = F.center_crop(seen, [self.side])
        return F.normalize(F.to_tensor(seen), list(self.mean), list(self.std))[None]

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what the network sees of such a picture, in (parts of) its own pixels."""
        scale = self.resize / min(width, height)
        # torchvision rounds the longer side down and the crop's corner to whole pixels of the resized picture.
        w, h = (self.resize if side == min(width, height) else int(side * scale) for side in (width, height))
        left, top = round((w - self.side) / 2), round((h - self.side) / 2)
        across, down = width / w, height / h
        return left * across, top * down, (left + self.side) * across, (top + self.side) * down

    def crop(self, photo: Image.Image) -> Image.Image:
        """That region at the picture's own resolution: a square RGB picture that a map can be laid over."""
        whole = _shortened(photo)
        size = max(1, round(self.side * min(whole.size) / self.resize))
        return whole.resize((size, size), Image.Resampling.BICUBIC, box=self.region(*whole.size))


def _shortened(photo: Image.Image) -> Image.Image:
    """RGB, and the middle alone of a picture more than `ELONGATED` times as long as it is wide."""
    photo = photo.convert("RGB")
    width, height = photo.size
    longest = ELONGATED * min(width, height)
    if max(width, height) <= longest:
        return photo
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return photo.crop((left, top, left + min(width, longest), top + min(height, longest)))


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded network, ready to be asked; safe to share between threads as long as nobody trains it."""

    name: str
    network: nn.Module = field(repr=False)
    """In evaluation mode, parameters frozen, float32."""
    labels: list[str] = field(repr=False)
    """The name of each class, in the order of the network's outputs; now and then two classes share one."""
    preparation: Preparation

    @property
    def side(self) -> int:
        """Height and width of the network's input in pixels."""
        return self.preparation.side

    def crop(self, photo: Image.Image) -> Image.Image:
        """The region of the photograph that the network sees, at the photograph's own resolution (square, RGB)."""
        return self.preparation.crop(photo)

    def prepare(self, photo: Image.Image) -> Tensor:
        """The photograph as the network's input, float32 [1, 3, side, side]."""
        return self.preparation.tensor(photo)
