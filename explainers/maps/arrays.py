"""Maps that are given as arrays or lists, as tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from explainers.errors import BadOption

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
