"""Class-activation maps whose weights are measured by forward passes, without a gradient."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from ..batching import Loop, Progress
from ..hooks import LayerName
from ..passes import activation_and_score, opened, precise
from ..registry import method
from ..targets import TargetLike
from .features import channel_drops


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
