"""A layer's channels: what they show, and what each is worth to the score."""

from __future__ import annotations

from torch import Tensor, nn

from ..batching import Loop, Progress
from ..passes import activation_and_score, features, opened
from ..registry import method
from ..sites import LayerName
from ..targets import TargetLike
from .score_cams import channel_drops


@method(
    family="features",
    returns="features",
    title="Feature maps",
    reduce="norm",
    paper="Zeiler & Fergus 2014, arXiv:1311.2901",
)
def feature_maps(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, layer: LayerName | None = None
) -> Tensor:
    """Feature maps: the layer's own values, one map a channel. The target plays no part.

    The forward pass ends at the layer.

    Returns  (n, k, h, w), the layer's own values, channels first also where the network keeps them last
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Zeiler & Fergus 2014, arXiv:1311.2901
    """
    return features(model, images, layer)


@method(family="features", returns="channels", title="Channel effects", paper="Morcos et al. 2018, arXiv:1803.06959")
def channel_effects(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    budget: float | None = None,
) -> Tensor:
    """Channel effects: the score that is lost when one channel of the layer is set to zero, for each channel.

    Returns  (n, k), in logits; positive where the channel speaks for the target. Channels not reached when the method
             was stopped are 0.
    Errors   LayerNotFound, LayerRanRepeatedly, NothingSpatial, UnsupportedModel
    Source   Morcos et al. 2018, section 3, arXiv:1803.06959
    """
    with opened(model, images, target) as run:
        place, activations, scores = activation_and_score(run, layer)
        return channel_drops(
            run, place, activations, scores, Loop(batch_size, progress, budget), lambda drops: drops[:, None]
        )
