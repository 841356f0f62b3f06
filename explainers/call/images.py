"""Checks of images: before a call, and after a failed pass for the number of channels and the order of axes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from explainers.errors import BadImages, ExplainerError, WrongType, is_out_of_memory, kind_of

_WORDS = ("channel", "size", "shape", "match", "expected", "dimension", "must be", "assert")


def validate_images(model: nn.Module, images: Tensor) -> None:
    """Check that the images are a finite float batch [N, C, H, W] with the model's device and dtype.

    Videos and volumes are [N, C, T, H, W].

    Errors   WrongType if images is not a tensor, BadImages otherwise
    """
    if not isinstance(images, Tensor):
        raise WrongType(_no_tensor(images))
    if images.ndim not in (4, 5) or 0 in images.shape:
        raise BadImages(f"images has shape {tuple(images.shape)}. {_suggest_shape(images)}")
    if images.is_meta or images.layout != torch.strided:
        kind = "on the meta device, which has no values" if images.is_meta else "sparse"
        raise BadImages(f"images is {kind}. Give a dense tensor [N, C, H, W] on the model's device.")
    if not images.is_floating_point():
        raise BadImages(
            f"images is {images.dtype}. Give normalized floats, for example (images.float() / 255 - mean) / std."
        )
    own = _first_weight(model, images.dtype)
    if own is not None and own.device != images.device:
        raise BadImages(
            f"images is on {images.device}, but the model is on {own.device}. Give images.to({str(own.device)!r})."
        )
    # If the sum is finite, so are its terms, and it takes a tenth of the time. If not, it may only have overflowed.
    if not math.isfinite(float(images.sum())) and not bool(torch.isfinite(images).all()):
        raise BadImages(f"images contains {first_broken_value(images, 'image')}. Give finite values.")
    if own is not None and own.dtype != images.dtype and not torch.is_autocast_enabled(images.device.type):
        raise BadImages(f"images is {images.dtype}, but the model is {own.dtype}. Give images.to({own.dtype}).")


def first_broken_value(images: Tensor, *rows: str) -> str:
    """Return the first value that is not finite with its position: "nan at channel 2, row 3, column 4".

    `rows` are the names of the axes before the channels.
    """
    at = (~torch.isfinite(images)).nonzero()[0].tolist()
    names = (*rows, "channel", *["frame"] * (images.ndim - len(rows) == 4), "row", "column")
    where = ", ".join(f"{name} {index}" for name, index in zip(names, at, strict=True))
    return f"{images[tuple(at)].item()} at {where}"


def _no_tensor(images: object) -> str:
    if isinstance(images, tuple):
        return (
            "images is a tuple, and only methods, explain and list_layers take several inputs. Give one tensor here, "
            "and the others by forward=lambda images: model(images, other)."
        )
    return f"images is {kind_of(images)}; give a float tensor [N, C, H, W], normalized for the model."


def _first_weight(model: nn.Module, dtype: torch.dtype) -> Tensor | None:
    """Return the first floating-point parameter, preferably of this dtype: a network may have several dtypes."""
    first = None
    for parameter in model.parameters():
        if parameter.is_floating_point():
            if parameter.dtype == dtype:
                return parameter
            first = parameter if first is None else first
    return first


def _suggest_shape(images: Tensor) -> str:
    """Return a suggestion for images that are empty or have the wrong number of dimensions."""
    shape = tuple(images.shape)
    if 0 in shape:
        return "Give a tensor [N, C, H, W] with at least one image of at least one pixel."
    if images.ndim == 3:
        return "It must have 4 dimensions, [N, C, H, W]. Add the batch dimension: images[None]."
    if images.ndim > 5:
        return f"It must have 4 dimensions, [N, C, H, W]. Give images.reshape(-1, *{shape[-3:]})."
    return "It must have 4 dimensions, [N, C, H, W]: images, channels, rows and columns."


def check_channel_count(network: nn.Module, images: Tensor, error: Exception) -> None:
    """Raise an error if the network fails for these images, but accepts another number of channels, or other axes.

    Runs only after a call failed, so it may cost a few forward passes of one image.

    Errors   BadImages
    """
    if isinstance(error, ExplainerError) or is_out_of_memory(error):
        return
    if images.ndim == 5:
        _check_axes(network, images, error)
        return
    is_assertion = isinstance(error, AssertionError)
    if not is_assertion and not (
        isinstance(error, (RuntimeError, ValueError, IndexError)) and any(w in str(error).lower() for w in _WORDS)
    ):
        return
    given = images.shape[1]
    one = images[:1].detach()
    if _runs(network, one):
        return
    for count in _candidates(network):
        if count != given and _runs(network, one[:, :1].repeat(1, count, 1, 1)):
            raise BadImages(
                f"images has {given} channel{'s' * (given > 1)}, but the model takes {count}. "
                f"{_remedy(tuple(images.shape), count)}"
            ) from error
    if _runs(network, images[None]):
        raise BadImages(
            f"images has shape {tuple(images.shape)}, but the model takes videos or volumes. For a single video "
            "[C, T, H, W], give images[None]."
        ) from error


def _check_axes(network: nn.Module, images: Tensor, error: Exception) -> None:
    """Raise an error if the network fails for [N, C, T, H, W], but accepts images or videos with another order of axes.

    Errors   BadImages
    """
    shape, one = tuple(images.shape), images[:1].detach()
    if _runs(network, one):
        return
    swapped = one.transpose(1, 2)
    if _runs(network, swapped):
        raise BadImages(
            f"images has shape {shape}, which is read as [N, C, T, H, W], but the model runs with the axes 1 and 2 "
            "swapped. If the images have the time first, give images.transpose(1, 2). If the model takes videos "
            "[N, T, C, H, W], add forward=lambda images: model(images.transpose(1, 2))."
        ) from error
    for count in _candidates(network):
        if count != shape[1] and _runs(network, one[:, :1].repeat(1, count, 1, 1, 1)):
            raise BadImages(
                f"images has {shape[1]} channel{'s' * (shape[1] > 1)}, but the model takes {count}. Give videos "
                f"[N, {count}, T, H, W], normalized as in training."
            ) from error
    if _runs(network, one.flatten(0, 1)) or _runs(network, swapped.flatten(0, 1)):
        advice = "images[0]" if shape[0] == 1 else "images.flatten(0, 1)"
        raise BadImages(
            f"images has shape {shape}, which is read as videos [N, C, T, H, W], but the model takes images "
            f"[N, C, H, W]. For a batch of batches, give {advice}."
        ) from error


def _runs(network: nn.Module, images: Tensor) -> bool:
    try:
        with torch.inference_mode(False), torch.no_grad():
            network(images)
    except Exception:
        return False
    return True


def _candidates(network: nn.Module) -> list[int]:
    """Return the numbers of channels to try: those of the first convolution, of color and of gray images."""
    declared = (getattr(module, "in_channels", None) for module in network.modules())
    first = [count for count in declared if isinstance(count, int)][:1]
    return list(dict.fromkeys([*first, 3, 1, 4]))


def _remedy(shape: tuple[int, ...], count: int) -> str:
    given = shape[1]
    if shape[3] == count:
        return "The last axis looks like the channels: give images.permute(0, 3, 1, 2)."
    if given == 1:
        return f"If these are gray images, repeat the channel before normalization: images.expand(-1, {count}, -1, -1)."
    if (given, count) == (4, 3):
        return "If the fourth channel is transparency, drop it: images[:, :3]."
    if count == 1:
        return "If these are color images, give their mean before normalization: images.mean(1, keepdim=True)."
    return f"Give images [N, {count}, H, W], normalized as in training."
