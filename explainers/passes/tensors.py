"""Layer outputs as plain tensors: one tensor per layer, not quantized, at least float32, as maps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from explainers.errors import NoSpatialOutput, UnsupportedModel, WrongType, kind_of
from explainers.hooks.records import refuse_transformed
from explainers.layers.layout import LayerLayout, nothing_spatial

_COMPLEX = (
    "{} has complex values, and a map of real numbers would lose a part of them. Choose a layer with real values, or a "
    "target that is real, such as lambda scores: scores.abs()[:, 0]. capture(model, layer) records complex values."
)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Detach a tensor and convert it to float32; float64 is kept.

    Errors   UnsupportedModel for complex numbers, whose imaginary part would be lost
    """
    if tensor.is_complex():
        raise UnsupportedModel(_COMPLEX.format("A tensor of the network"))
    tensor = tensor.detach() if not tensor.is_quantized else tensor.dequantize()
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def cell_axes(maps: Tensor) -> tuple[int, ...]:
    """Return the axes of maps [N, K, h, w] or [N, K, t, h, w] that run over the cells."""
    return tuple(range(2, maps.ndim))


def maps_of(layout: LayerLayout, tensor: Tensor) -> Tensor:
    """Return a layer's tensor as [N, K, h, w], or [N, K, t, h, w] for videos, in float32 or float64.

    Errors   NoSpatialOutput if it has no height and width; UnsupportedModel for complex numbers
    """
    if tensor.is_complex():
        raise UnsupportedModel(_COMPLEX.format(f"Layer {layout.name!r}"))
    maps = layout.to_maps(at_least_float32(tensor))
    if maps.ndim != 2 + len(layout.grid or (0, 0)):
        raise NoSpatialOutput(nothing_spatial(layout.name, tuple(tensor.shape)))
    return maps


def single_tensor(name: str, output: Any) -> Tensor:
    """Return a layer's output, which must be a single tensor; a quantized tensor is dequantized.

    Errors   WrongType if it is a tuple, a dict or anything else; UnsupportedModel inside a transform of torch.func
    """
    if isinstance(output, Tensor):
        refuse_transformed(name, output)
        return output.dequantize() if output.is_quantized else output
    raise WrongType(
        f"Layer {name!r} returns {kind_of(output)}, not a single tensor. Choose a layer inside or after it "
        "from list_layers(model, images)."
    )


def match_quantization(output: Any, edited: Tensor) -> Tensor:
    """Return an edited layer output in the format of the original: quantized with the same scale if `output` is."""
    if not isinstance(output, Tensor) or not output.is_quantized:
        return edited
    if output.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return torch.quantize_per_tensor(edited, output.q_scale(), output.q_zero_point(), output.dtype)
    scales, zeros, axis = output.q_per_channel_scales(), output.q_per_channel_zero_points(), output.q_per_channel_axis()
    return torch.quantize_per_channel(edited, scales, zeros, axis, output.dtype)
