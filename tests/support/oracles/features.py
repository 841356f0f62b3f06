"""Oracles of the methods that show a layer's channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.nets import plain, residual

from .attention import attend_by_hand, two_blocks, wide_images
from .oracle import Oracle, each_image


def through(net: nn.Module, layer: nn.Module, x: Tensor, change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """(change(layer output), scores computed from it)."""
    kept = []

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        kept.append(change(output))
        return kept[-1].clone()

    handle = layer.register_forward_hook(hook)
    try:
        scores = net(x)
    finally:
        handle.remove()
    return kept[0], scores


def drops_by_hand(net: nn.Module, layer: nn.Module, x: Tensor, classes: list[int]) -> tuple[Tensor, Tensor]:
    """(score - score without channel k, activations), one image and one channel at a time."""
    drops, kept = [], []
    for image, c in zip(x, classes, strict=True):
        a, full = through(net, layer, image[None], torch.clone)
        row = []
        for k in range(a.shape[1]):
            _, without = through(
                net, layer, image[None], lambda output, k=k: output.index_fill(1, torch.tensor([k]), 0)
            )
            row.append(full[0, c] - without[0, c])
        kept.append(a[0].detach())
        drops.append(torch.stack(row).detach())
    return torch.stack(drops), torch.stack(kept)


def _heads(net: nn.Module, x: Tensor, classes: list[int]) -> Tensor:
    """The class token's row of each head, without the class token's column."""
    return torch.stack([a[:, 0, 1:].reshape(-1, 2, 8) for a in attend_by_hand(net, x)[0][0].detach().unbind(1)], 1)


@each_image
def _principal(net: nn.Module, image: Tensor, c: int) -> Tensor:
    """Eigenvectors of the channels' covariance; the extreme value of each map is positive."""
    cells = net[:3](image[None])[0].detach().flatten(1)
    centred = cells - cells.mean(1, keepdim=True)
    _, vectors = torch.linalg.eigh(centred @ centred.T)
    maps = vectors.flip(1)[:, :4].T @ centred
    return torch.stack([m if m.max() > -m.min() else -m for m in maps]).reshape(4, 6, 8)


ORACLES: dict[str, Oracle] = {
    "feature_maps": Oracle(
        "the first modules called one after another", plain, lambda net, x, c: net[:3](x).detach(), layer="conv2"
    ),
    "attention_heads": Oracle("two blocks written out", two_blocks, _heads, wide_images, [2, 0, 4], layer="blocks.0"),
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
