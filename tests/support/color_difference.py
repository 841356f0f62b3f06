"""Perceptual color metrics: CIEDE2000 and colorfulness, straight from their definitions."""

from __future__ import annotations

import math

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


def ciede2000(first: list[float], second: list[float]) -> float:
    """The difference of two L*a*b* colors; 1 is just noticeable.

    Source   Sharma, Wu, Dalal 2005, "The CIEDE2000 color-difference formula", eqs. 2 to 22
    """
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean_c = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean_c**7 / (mean_c**7 + 25**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = (math.degrees(math.atan2(b, a)) % 360 if (a or b) else 0.0 for a, b in ((a1, b1), (a2, b2)))
    dl, dc = l2 - l1, c2 - c1
    turn = h2 - h1
    if c1 * c2 == 0:
        turn = 0
    elif turn > 180:
        turn -= 360
    elif turn < -180:
        turn += 360
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    light, c = (l1 + l2) / 2, (c1 + c2) / 2
    if c1 * c2 == 0:
        h = h1 + h2
    elif abs(h1 - h2) <= 180:
        h = (h1 + h2) / 2
    else:
        h = (h1 + h2 + 360) / 2 if h1 + h2 < 360 else (h1 + h2 - 360) / 2
    cosine = [math.cos(math.radians(angle)) for angle in (h - 30, 2 * h, 3 * h + 6, 4 * h - 63)]
    t = 1 - 0.17 * cosine[0] + 0.24 * cosine[1] + 0.32 * cosine[2] - 0.20 * cosine[3]
    twist = 30 * math.exp(-(((h - 275) / 25) ** 2))
    rc = 2 * math.sqrt(c**7 / (c**7 + 25**7))
    sl = 1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2)
    sc, sh = 1 + 0.045 * c, 1 + 0.015 * c * t
    rt = -math.sin(math.radians(2 * twist)) * rc
    return math.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * (dc / sc) * (dh / sh))


def colorfulness(pixels: Tensor) -> float:
    """Colorfulness of an image `[..., 3]`, 0 for grey.

    Source   Hasler & Suesstrunk 2003, "Measuring colorfulness in natural images", eq. 1 ff (M^(3))
    """
    red, green, blue = pixels.double().flatten(0, -2).T
    rg, yb = red - green, (red + green) / 2 - blue
    spread = math.hypot(float(rg.std(correction=0)), float(yb.std(correction=0)))
    return spread + 0.3 * math.hypot(float(rg.mean()), float(yb.mean()))
