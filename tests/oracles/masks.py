"""Truths of the perturbation methods."""

from __future__ import annotations

import torch
from nets import Weighted, settle
from torch import Tensor, nn

from .oracle import Oracle


def occlusion_by_hand(
    net: nn.Module,
    x: Tensor,
    classes: list[int],
    window: tuple[int, int],
    stride: tuple[int, int],
    baseline: float = 0.0,
) -> Tensor:
    """Mean, over the windows that cover a pixel, of score lost / pixels covered; windows at the border are clipped."""
    n, _, height, width = x.shape
    total, covers = torch.zeros(n, height, width, dtype=x.dtype), torch.zeros(height, width, dtype=x.dtype)
    with torch.no_grad():
        full = net(x)
        for y in starts(height, window[0], stride[0]):
            for z in starts(width, window[1], stride[1]):
                hidden = x.clone()
                hidden[:, :, y : y + window[0], z : z + window[1]] = baseline
                area = hidden[0, 0, y : y + window[0], z : z + window[1]].numel()
                lost = (full - net(hidden))[range(n), classes]
                total[:, y : y + window[0], z : z + window[1]] += lost[:, None, None] / area
                covers[y : y + window[0], z : z + window[1]] += 1
    return total / covers


def starts(size: int, window: int, stride: int) -> list[int]:
    """Window starts: on by `stride` until a window reaches the border."""
    found = [0]
    while found[-1] + window < size:
        found.append(found[-1] + stride)
    return found


def _linear_occlusion(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """A linear model loses exactly the window's w x; windows of 5x4 on 12x16, clipped to 2 rows at the lower border."""
    parts = (net.fc.weight[classes].view_as(x) * x).sum(1).detach()
    result = torch.zeros_like(parts)
    for y in range(0, 12, 5):
        for z in range(0, 16, 4):
            cell = parts[:, y : y + 5, z : z + 4]
            result[:, y : y + 5, z : z + 4] = cell.mean((1, 2), keepdim=True)
    return result


def _weighted() -> nn.Module:
    return settle(Weighted((3, 12, 16), 6).double())


ORACLES: dict[str, Oracle] = {
    "occlusion": Oracle(
        "closed form of a linear model", _weighted, _linear_occlusion, options={"window": (5, 4), "stride": (5, 4)}
    ),
}
