"""A layer's output as one tensor, and an edited one in the format of the original."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from explainers.errors import WrongType, kind_of
from explainers.hooks.records import refuse_transformed


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
