"""Truths of the methods with changed backward rules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from nets import plain
from torch import Tensor, nn

from .cams import zhou
from .oracle import Oracle


def rule_by_hand(net: nn.Module, x: Tensor, classes: list[int], gate: bool) -> Tensor:
    """Backwards through `plain`: only positive gradients pass a ReLU, and with `gate` only where it was open."""
    with torch.no_grad():
        z1 = net.conv1(x)
        z2 = net.conv2(z1.relu())
        g = (net.head.weight[classes] / z2[0, 0].numel())[:, :, None, None].expand_as(z2)
        g = g.clamp(min=0) * ((z2 > 0) if gate else 1)
        g = F.conv_transpose2d(g, net.conv2.weight, stride=2, padding=1, output_padding=1)
        g = g.clamp(min=0) * ((z1 > 0) if gate else 1)
        return F.conv_transpose2d(g, net.conv1.weight, padding=1)


def _guided_cam(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    cam = zhou(net, x, classes)
    # Nearest from (6, 8) to (12, 16): every cell becomes a 2x2 square.
    return cam.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, None] * rule_by_hand(net, x, classes, gate=True)


ORACLES: dict[str, Oracle] = {
    "guided_backprop": Oracle(
        "Springenberg et al. 2015 as transposed convolutions",
        plain,
        lambda net, x, c: rule_by_hand(net, x, c, gate=True),
    ),
    "deconvnet": Oracle(
        "Zeiler and Fergus 2014 as transposed convolutions",
        plain,
        lambda net, x, c: rule_by_hand(net, x, c, gate=False),
    ),
    "guided_grad_cam": Oracle(
        "product of the two closed forms", plain, _guided_cam, layer="relu2", options={"interpolate": "nearest"}
    ),
}
