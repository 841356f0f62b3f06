"""Class-activation maps whose weights are measured by forward passes, without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from ..batching import Loop, Progress
from ..layers import Place, channel_axis
from ..passes import Branches, Run, activation_and_score, opened, precise
from ..registry import method
from ..sites import LayerName
from ..targets import TargetLike


@method(family="cam", returns="grid", title="Ablation-CAM", paper="Desai & Ramaswamy 2020, WACV")
def ablation_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    relu: Annotated[bool, "Keep only what speaks for the class"] = True,
    batch_size: int | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Ablation-CAM: each channel weighted by the score that is lost when it is set to zero.

    The weights are in logits: score - score without the channel, not divided by the score as in the paper's eq. 3,
    where a negative score would turn the map around.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Desai & Ramaswamy 2020, eqs. 3 and 4, doi:10.1109/WACV45572.2020.9093360
    """
    with opened(model, images, target) as run:
        place, activations, scores = activation_and_score(run, layer)
        a = place.to_maps(precise(activations))

        def weighted(drops: Tensor) -> Tensor:
            maps = torch.einsum("nk,nkhw->nhw", drops, a)
            return maps.relu() if relu else maps

        loop = Loop(batch_size, progress, budget)
        return weighted(channel_drops(run, place, activations, scores, loop, weighted))


def channel_drops(
    run: Run, place: Place, activations: Tensor, scores: Tensor, loop: Loop, shown: Callable[[Tensor], Tensor]
) -> Tensor:
    """Score less score without channel k, for every picture and channel, (n, k); each layer before runs once a
    chunk.
    """
    axis = channel_axis(place.layout)
    count = activations.shape[axis]
    drops = precise(scores.new_zeros(len(scores), count))
    branches = [Branches(run, picture, place) for picture in range(len(scores))]

    def work(channels: range) -> None:
        def silence(copies: Tensor) -> Tensor:
            rows = torch.arange(len(channels), device=copies.device)
            copies.movedim(axis, 1)[rows, torch.tensor(channels, device=copies.device)] = 0
            return copies

        for picture, branch in enumerate(branches):
            found = branch.values(silence, len(channels))
            drops[picture, channels.start : channels.stop] = scores[picture] - found

    at_once = loop.batch_size or max(8, min(count, _VALUES // max(1, activations[0].numel())))
    loop.run(count, at_once, work, lambda: shown(drops))
    return drops


# Values of the layer at once (256 MB in float32): each chunk runs the layers before it again, so few large ones win.
_VALUES = 64_000_000
