"""Truths of what shows a layer's channels."""

from __future__ import annotations

from typing import Any

import torch
from nets import plain, residual
from torch import Tensor, nn

from .oracle import Oracle


class _Silencer:
    """A forward hook that sets one channel of the output to zero, and keeps what it handed on."""

    def __init__(self) -> None:
        self.channel: int | None = None
        self.output: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        self.output = output.clone()
        if self.channel is not None:
            self.output[:, self.channel] = 0
        return self.output.clone()


def drops_by_hand(net: nn.Module, layer: nn.Module, x: Tensor, classes: list[int]) -> tuple[Tensor, Tensor]:
    """(score - score without channel k, activations), one picture and one channel at a time."""
    drops, kept = [], []
    for picture, c in zip(x, classes, strict=True):
        silencer = _Silencer()
        handle = layer.register_forward_hook(silencer)
        with torch.no_grad():
            full = net(picture[None])[0, c]
            kept.append(silencer.output[0])
            row = []
            for k in range(len(kept[-1])):
                silencer.channel = k
                row.append(full - net(picture[None])[0, c])
        handle.remove()
        drops.append(torch.stack(row))
    return torch.stack(drops), torch.stack(kept)


ORACLES: dict[str, Oracle] = {
    "feature_maps": Oracle(
        "the first modules called one after another", plain, lambda net, x, c: net[:3](x).detach(), layer="conv2"
    ),
    "channel_effects": Oracle(
        "a loop over single channels",
        residual,
        lambda net, x, c: drops_by_hand(net, net.layer1.bn2, x, c)[0],
        layer="layer1.bn2",
    ),
}
