"""Moments of a gradient, from which its statistics are computed after they were transferred."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from explainers.dtypes import float64_device

# Values converted at a time on the CPU: their float64 copy fits into the cache, and torch does not start more threads.
BLOCK = 2**15


def moments(gradient: Tensor, statistics: Sequence[str]) -> Tensor:
    """Return (Euclidean norm, real and imaginary part of the sum, largest magnitude, count of nonzeros).

    They are on the gradient's device, and zero if not needed. In float64, squares of large float32 values do not
    overflow, and computing `std` as a difference is accurate enough. On a device without float64, the norm of the
    values minus their mean follows as a sixth number, because that difference would cancel in float32.
    """
    wanted, flat = set(statistics), gradient.flatten()
    if not flat.numel():
        return torch.zeros(5, dtype=torch.float64)
    if flat.device.type == "cpu":
        return torch.tensor(_on_cpu(flat, wanted), dtype=torch.float64)
    if float64_device(flat.device) != flat.device:
        return _in_float32(flat)
    return _in_float64(flat, wanted)


def statistics_of(values: Sequence[float], size: int, statistics: Sequence[str]) -> dict[str, float]:
    """Return the named statistics of a gradient with `size` values from its moments."""
    norm, real, imaginary, largest, filled, *centered = values
    total = math.hypot(real, imaginary) if imaginary else real
    spread = centered[0] ** 2 if centered else norm * norm - total * total / max(size, 1)
    named = {
        "norm": norm,
        "mean": total / max(size, 1),
        # NaN propagates, since comparisons with it are false.
        "std": 0.0 if size < 2 or spread < 0 else math.sqrt(spread / (size - 1)) if spread < math.inf else math.nan,
        "max": largest,
        "zero_fraction": 1 - filled / size if size else 0.0,
    }
    return {name: named[name] for name in statistics}


def _real_parts(flat: Tensor) -> tuple[Tensor, ...]:
    """Return the real and the imaginary part of complex values, or the values themselves."""
    return torch.view_as_real(flat).unbind(-1) if flat.is_complex() else (flat,)


def _on_cpu(flat: Tensor, wanted: set[str]) -> list[float]:
    """Return the moments as numbers: on the CPU, reading one does not wait, and costs less than another operation."""
    parts = _real_parts(flat)
    sums, squares = [0.0, 0.0], 0.0
    if {"norm", "mean", "std"} & wanted:
        buffer = torch.empty(min(flat.numel(), BLOCK), dtype=torch.float64)  # once, since new memory is slow
        for k, part in enumerate(parts):
            for block in part.split(BLOCK):
                values = buffer[: block.numel()].copy_(block)
                sums[k] += values.sum().item()
                squares += torch.dot(values, values).item()  # faster than vector_norm, and as exact
    low, high = 0.0, 0.0
    if "max" in wanted:
        low, high = (end.item() for end in (flat.to(torch.complex128).abs() if flat.is_complex() else flat).aminmax())
    count = int(flat.count_nonzero()) if "zero_fraction" in wanted else 0
    return [math.sqrt(squares), *sums, abs(low) if abs(low) > high else high, count]


def _in_float64(flat: Tensor, wanted: set[str]) -> Tensor:
    zero = torch.zeros((), dtype=torch.float64, device=flat.device)
    found = [zero, zero, zero, zero, zero]
    parts = _real_parts(flat)
    size = torch.hypot(*parts) if len(parts) == 2 else flat
    if {"norm", "std"} & wanted:
        found[0] = torch.linalg.vector_norm(size, dtype=torch.float64)
    if {"mean", "std"} & wanted:
        found[1 : 1 + len(parts)] = [part.sum(dtype=torch.float64) for part in parts]
    if "max" in wanted:
        low, high = size.aminmax()
        found[3] = torch.maximum(-low, high).to(torch.float64)
    if "zero_fraction" in wanted:
        found[4] = flat.count_nonzero().to(torch.float64)
    return torch.stack(found)


def _in_float32(flat: Tensor) -> Tensor:
    """Return all moments of values that are divided by the largest, whose squares neither overflow nor vanish."""
    parts = torch.stack([part.float() for part in _real_parts(flat)])
    largest = torch.hypot(*parts).amax() if len(parts) == 2 else parts.abs().amax()
    scale = largest.where(largest.isfinite() & (largest > 0), 1.0)
    parts = parts / scale
    sums, zero = parts.sum(1) * scale, torch.zeros_like(scale)
    norm, centered = (each.square().sum().sqrt() * scale for each in (parts, parts - parts.mean(1, keepdim=True)))
    return torch.stack([norm, sums[0], sums[1] if len(parts) == 2 else zero, largest, flat.count_nonzero(), centered])
