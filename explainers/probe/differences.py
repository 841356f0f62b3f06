"""Differences between two outputs of a network for the same image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from explainers.dtypes import to_cpu_float64
from explainers.nested import list_tensors

SAME = 1e-4
"""Relative difference between outputs of the same image, above which they are different."""


def row_of(output: Any, index: int, count: int) -> list[Tensor]:
    """Return the part of an output that belongs to one image of a batch of `count`."""
    if is_listed(output, count):
        found = tensors_of(output[index])  # the number of detections may depend on rounding
        return [tensor[:1] for tensor in found] if isinstance(output[index], dict) else found
    rows = (tensor for tensor in tensors_of(output) if tensor.ndim and len(tensor) and len(tensor) % count == 0)
    return [tensor.unflatten(0, (count, -1))[index] for tensor in rows]


def is_listed(output: Any, count: int) -> bool:
    """Return whether an output is a list with one dict or object for each image."""
    return (
        isinstance(output, list)
        and len(output) == count
        and not any(isinstance(each, (Tensor, list, tuple)) for each in output)
    )


def tensors_of(output: Any) -> list[Tensor]:
    found = [tensor.dequantize() if tensor.is_quantized else tensor for tensor in list_tensors(output)]
    return [tensor for tensor in found if tensor.is_floating_point() or tensor.is_complex()]


def shapes_of(output: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors_of(output)]


def differ(output: Any, other: Any) -> bool:
    return difference(tensors_of(output), tensors_of(other)) > tolerance(output)


def tolerance(output: Any) -> float:
    return max([SAME, *(2 * torch.finfo(tensor.dtype).eps for tensor in tensors_of(output))])


def difference(some: list[Tensor], others: list[Tensor]) -> float:
    """Return the largest relative difference between two lists of tensors; 1 if shapes or non-finite values differ."""
    largest = 0.0
    for a, b in zip(some, others, strict=False):
        a, b = a.squeeze(), b.squeeze()  # a network may squeeze the axis of the batch away
        if a.shape != b.shape or not bool((a.isfinite() == b.isfinite()).all()):
            return 1.0
        a, b = (torch.where(each.isfinite(), each, 0).flatten() for each in (a, b))
        a, b = (each.cpu().to(torch.complex128) if a.is_complex() else to_cpu_float64(each) for each in (a, b))
        change, size = float((a - b).norm()), float(a.norm())
        largest = max(largest, change / size if size else float(change > 0))
    return largest
