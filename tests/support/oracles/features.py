"""Oracles of the methods that show a layer's channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.support.nets import plain, residual

from .attention import attend_by_hand, two_blocks, wide_images
from .oracle import Oracle


class _Silencer:
    """A forward hook that sets one channel of the output to zero and records the result."""

    def __init__(self) -> None:
        self.channel: int | None = None
        self.output: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        self.output = output.clone()
        if self.channel is not None:
            self.output[:, self.channel] = 0
        return self.output.clone()


def drops_by_hand(net: nn.Module, layer: nn.Module, x: Tensor, classes: list[int]) -> tuple[Tensor, Tensor]:
    """(score - score without channel k, activations), one image and one channel at a time."""
    drops, kept = [], []
    for image, c in zip(x, classes, strict=True):
        silencer = _Silencer()
        handle = layer.register_forward_hook(silencer)
        with torch.no_grad():
            full = net(image[None])[0, c]
            kept.append(silencer.output[0])
            row = []
            for k in range(len(kept[-1])):
                silencer.channel = k
                row.append(full - net(image[None])[0, c])
        handle.remove()
        drops.append(torch.stack(row))
    return torch.stack(drops), torch.stack(kept)


def _heads(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """The class token's row of each head, without the class token's column."""
    return torch.stack([a[:, 0, 1:].reshape(-1, 2, 8) for a in attend_by_hand(net, x)[0][0].detach().unbind(1)], 1)


def _principal(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """Eigenvectors of the channels' covariance, image by image; the extreme value of each map is positive."""
    rows = []
    for cells in net[:3](x).detach().flatten(2):
        centred = cells - cells.mean(1, keepdim=True)
        _, vectors = torch.linalg.eigh(centred @ centred.T)
        maps = vectors.flip(1)[:, :4].T @ centred
        rows.append(torch.stack([m if m.max() > -m.min() else -m for m in maps]).reshape(4, 6, 8))
    return torch.stack(rows)


ORACLES: dict[str, Oracle] = {
    "feature_maps": Oracle(
        "the first modules called one after another", plain, lambda net, x, c: net[:3](x).detach(), layer="conv2"
    ),
    "attention_heads": Oracle(
        "two blocks written out",
        two_blocks,
        _heads,
        wide_images,
        [2, 0, 4],
        layer="blocks.0",
        bites=lambda expected: bool(expected.std() > 1e-3),
    ),
    "token_pca": Oracle(
        "eigenvectors of the covariance matrix", plain, _principal, layer="conv2", options={"components": 4}
    ),
    "channel_effects": Oracle(
        "a loop over single channels",
        residual,
        lambda net, x, c: drops_by_hand(net, net.layer1.bn2, x, c)[0],
        layer="layer1.bn2",
    ),
}
