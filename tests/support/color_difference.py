"""L*a*b* colors, straight from their definition."""

from __future__ import annotations

import torch
from torch import Tensor

# https://www.w3.org/Graphics/Color/sRGB, D65
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]


def linear(colors: Tensor) -> Tensor:
    """Linear RGB in [0, 1] of sRGB from 0 to 255, `[..., 3]`."""
    values = colors.double() / 255
    return torch.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colors: Tensor, *, is_linear: bool = False) -> Tensor:
    """CIE L*a*b* of sRGB from 0 to 255, or of linear RGB, `[..., 3]`."""
    values = colors if is_linear else linear(colors)
    xyz = values @ torch.tensor(TO_XYZ, dtype=torch.float64).T / torch.tensor([0.95047, 1.0, 1.08883])
    f = torch.where(xyz > (6 / 29) ** 3, xyz.clamp(min=1e-9) ** (1 / 3), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return torch.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)
