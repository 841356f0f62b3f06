"""Maps and images that are given as arrays, lists or Pillow images, as tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from explainers.errors import BadImages, BadOption, WrongType, kind_of

if TYPE_CHECKING:
    from PIL import Image

VIDEO_FORMS = "Give maps [N, t, h, w] or attributions [N, C, T, H, W]; for a single map m, give m[None]."
FORMS = "Give maps [N, h, w] or attributions [N, C, H, W]; for a single map m, give m[None]."


class Array(Protocol):
    """A numpy array, or anything that converts itself to one."""

    def __array__(self) -> Any: ...


Arrays = Array | Sequence[Tensor | Array]
"""An array [N, h, w] or [N, C, H, W], or a list with one array or tensor for each image."""


def as_tensor(maps: Any, name: str = "maps") -> Any:
    """Convert a numpy array, or a list of arrays, tensors or numbers, to a tensor; return anything else as it is.

    Errors   BadOption for arrays that are not maps
    """
    if isinstance(maps, (list, tuple)):
        return _stack(maps, name)
    if isinstance(maps, Tensor) or not hasattr(maps, "__array__") or callable(maps):
        return maps
    array = maps.__array__()
    if hasattr(maps, "mask"):
        raise BadOption(f"{name} is a masked array. Give values for the masked pixels: {name}.filled(0).")
    try:
        found = torch.from_numpy(array.copy())  # torch refuses negative strides, and warns of read-only arrays
    except (TypeError, ValueError):  # float128, objects, text, the other byte order
        found = None
    if found is None or not (found.is_floating_point() or found.is_complex()):
        raise BadOption(f"{name} is a numpy array of {array.dtype}. Give floats: {name}.astype('float32').")
    return found


def _stack(maps: list[Any] | tuple[Any, ...], name: str) -> Tensor:
    """Return the elements, one for each image, as one tensor."""
    parts = [as_tensor(each, f"{name}[{k}]") for k, each in enumerate(maps)]
    parts = [torch.tensor(float(each)) if isinstance(each, (int, float)) else each for each in parts]
    wrong = next((each for each in parts if not isinstance(each, Tensor)), None)
    if wrong is not None or not parts:
        has = f"an element of type {type(wrong).__name__}" if parts else "no elements"
        raise BadOption(f"{name} is a list with {has}. Give a list of arrays or tensors [h, w], one for each image.")
    shapes = list(dict.fromkeys(tuple(each.shape) for each in parts))
    if len(shapes) > 1:
        raise BadOption(f"{name} is a list of arrays of shapes {shapes[0]} and {shapes[1]}. Give maps of one size.")
    if any(each.layout != torch.strided for each in parts):
        raise BadOption(f"{name} is a list with a sparse tensor. Give dense tensors: map.to_dense().")
    kind = functools.reduce(torch.promote_types, (each.dtype for each in parts))
    return torch.stack([each.to(parts[0].device, kind) for each in parts])


def check_cells(maps: Any, name: str = "maps", first: int = 1) -> None:
    """Check that maps are dense and real, and that no side from the dimension `first` on is 0; accept other types.

    Errors   BadOption
    """
    if not isinstance(maps, Tensor):
        return
    if maps.layout != torch.strided:
        raise BadOption(f"{name} is sparse. Give a dense tensor: {name}.to_dense().")
    if maps.is_complex():
        raise BadOption(f"{name} is complex. Give real values, such as {name}.abs() or {name}.real.")
    if 0 in maps.shape[first:]:
        raise BadOption(f"{name} has shape {tuple(maps.shape)}, without values. Give at least one cell a side.")


def check_dimensions(maps: Any, images: Any) -> Any:
    """Convert maps, and check that arrays have as many dimensions as the images, or one less.

    Errors   BadOption
    """
    found = as_tensor(maps)
    is_video = isinstance(images, Tensor) and images.ndim == 5
    if isinstance(found, Tensor) and found.ndim not in ((4, 5) if is_video else (3, 4)):
        is_list = isinstance(maps, (list, tuple))
        kind = "a tensor" if isinstance(maps, Tensor) else "a list" if is_list else "a numpy array"
        raise BadOption(f"maps is {kind} of shape {tuple(found.shape)}. {VIDEO_FORMS if is_video else FORMS}")
    return found


def pixels(photo: Image.Image | Tensor | Any) -> Tensor:
    """Convert an image to uint8 pixels `[H, W, 3]`, or `[H, W, 4]` with an alpha channel. The result is a copy.

    A tensor or array has shape `[3, H, W]`, `[H, W, 3]` or `[H, W]`, and holds uint8 values or floats from 0 to 1.

    Errors   WrongType if `photo` is not an image or has more than 8 bits per channel; BadImages for another shape or
             for values outside the range
    """
    if isinstance(photo, Tensor) or (hasattr(photo, "__array__") and not hasattr(photo, "convert")):
        # Copied, because arrays of Pillow images are read-only, and torch warns about those.
        return _from_values(photo.detach().cpu() if isinstance(photo, Tensor) else torch.tensor(photo))
    if not all(hasattr(photo, name) for name in ("mode", "convert", "tobytes")):
        raise WrongType(
            f"photo is {kind_of(photo)}. Give a Pillow image, such as PIL.Image.open(path), or its pixels as a "
            "uint8 tensor [3, H, W]."
        )
    if photo.mode.startswith(("I", "F")):
        raise WrongType(f"The image has mode {photo.mode!r}, more than 8 bits per channel. Scale it to 0..255 first.")
    has_alpha = photo.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in photo.info
    photo = photo.convert("RGBA" if has_alpha else "RGB")
    values = torch.frombuffer(bytearray(photo.tobytes()), dtype=torch.uint8)
    return values.view(photo.height, photo.width, -1)


def one_for_each(photos: Any, count: int) -> list[Any]:
    """Return images as a list: a single image, a sequence, or a batch [N, 3, H, W].

    Errors   BadImages if there is not one image for each of the `count` maps
    """
    several = list(photos) if isinstance(photos, Sequence) or getattr(photos, "ndim", 0) == 4 else [photos]
    if len(several) != count:
        raise BadImages(f"{len(several)} images were given for {count} maps. Give one image for each map, in order.")
    return several


def _from_values(values: Tensor) -> Tensor:
    shape = tuple(values.shape)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or not values.numel() or not {1, 3}.intersection((values.shape[0], values.shape[2])):
        batch = " For a batch, give photos[0]." if values.ndim == 4 else ""
        raise BadImages(f"photo has shape {shape}. Give one image: [3, H, W], [H, W, 3] or [H, W].{batch}")
    planes = values if values.shape[0] in (1, 3) else values.permute(2, 0, 1)
    if planes.is_floating_point():
        low, high = float(planes.min()), float(planes.max())
        if not (low >= 0 and high <= 1):  # NaN fails too
            raise BadImages(
                f"photo has values from {low:.3g} to {high:.3g}; it looks normalized for a model. Give the original "
                "image, or undo the normalization to get values from 0 to 1: images * std + mean."
            )
        planes = (planes * 255).round().to(torch.uint8)
    elif planes.dtype != torch.uint8:
        raise WrongType(f"photo has dtype {planes.dtype}. Give uint8 from 0 to 255, or floats from 0 to 1.")
    return planes.expand(3, -1, -1).permute(1, 2, 0).contiguous().clone()


def to_pillow(values: Tensor) -> Image.Image:
    """Convert uint8 pixels to a Pillow image, the inverse of `pixels`, through a shared buffer, without numpy."""
    from PIL import Image  # optional: the library requires only torch

    height, width, channels = values.shape
    buffer = bytearray(values.numel())
    torch.frombuffer(buffer, dtype=torch.uint8).copy_(values.reshape(-1))
    return Image.frombytes("RGBA" if channels == 4 else "RGB", (width, height), bytes(buffer))
