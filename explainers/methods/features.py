"""Features of a layer: its channels, their effects on the score, principal components, attention heads."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.at_layer import activation_and_score
from explainers.call.attention.record import attention_at, patches_of, why_not
from explainers.call.current import check_images
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.run import features, open_run
from explainers.dtypes import to_float64
from explainers.keywords import LayerCall, LayerLimits
from explainers.methods.cams.score_cams import channel_drops
from explainers.options import Choice, LayerName, Range, check_keywords
from explainers.registry import method, on_lite0
from explainers.targets import TargetLike

_features = partial(method, family="features", returns="features", unit="", reads_class=False, reduce="norm")


@_features(
    title="Feature maps",
    paper="Zeiler & Fergus 2014, arXiv:1311.2901",
    caution=on_lite0("not significantly better than the image's edges", "Grad-CAM instead"),
)
def feature_maps(model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[LayerCall]) -> Tensor:
    """Feature maps: the layer's output, one map per channel; independent of the target.

    The forward pass stops at the layer.

    `forward` and `through` are as in `explain`.

    Returns  (n, k, h, w), the layer's own values, channels first even if the network has channels last
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Zeiler & Fergus 2014, arXiv:1311.2901

    Example
        >>> feature_maps(model, images, layer="layer4").shape
        torch.Size([1, 512, 7, 7])
    """
    return features(model, images, call.get("layer"))


@_features(
    title="Token PCA",
    paper="Amir et al. 2021, arXiv:2112.05814",
    caution=on_lite0("no better than the image's edges", "Grad-CAM instead"),
)
def token_pca(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    components: Annotated[int, Range(1, 64, help="principal components, largest variance first")] = 3,
    **call: Unpack[LayerCall],
) -> Tensor:
    """Token PCA: the first principal components of an image's tokens (or positions); independent of the target.

    The tokens of one image, or the positions of a convolution, are centered and projected onto their principal axes.
    The sign of a component is arbitrary: each is flipped so that its largest value by magnitude is positive. Components
    beyond the rank are 0.

    `forward` and `through` are as in `explain`.

    Returns  (n, components, h, w), in the layer's own units; a map's sum of squares is the variance explained times the
             number of positions
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Pearson 1901; on the tokens of vision transformers Amir et al. 2021, section 4, arXiv:2112.05814

    Example
        >>> token_pca(vit, images, components=3).shape
        torch.Size([1, 3, 14, 14])
    """
    a = features(model, images, call.get("layer"))
    cells = to_float64(a.flatten(2).transpose(1, 2))
    u, s, _ = torch.linalg.svd(cells - cells.mean(dim=1, keepdim=True), full_matrices=False)
    # Singular values within the rounding error of the activations are set to 0.
    s = torch.where(s > 8 * torch.finfo(a.dtype).eps * cells.norm(dim=(1, 2))[:, None], s, 0)
    scores = (u * s[:, None])[:, :, :components].transpose(1, 2)
    scores = scores * scores.gather(2, scores.abs().argmax(dim=2, keepdim=True)).sign()
    maps = a.new_zeros(len(a), components, *a.shape[2:])
    maps[:, : scores.shape[1]] = scores.unflatten(2, a.shape[2:]).to(a)
    return maps


@_features(
    unit="share", title="Attention heads", reduce="sum", needs=why_not, paper="Caron et al. 2021, arXiv:2104.14294"
)
def attention_heads(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    query: Annotated[
        str, Choice("class", "mean", help="attention of the class token, or the mean over all patches")
    ] = "class",
    **call: Unpack[LayerCall],
) -> Tensor:
    """Attention heads: the attention weights of each head of a block, one map per head; independent of the target.

    `layer` is a layer that contains attention, or whose output attention reads next; by default the last one. If it
    contains several blocks, the heads of the first block come first. "class" is the token before the patches, or the
    mean of the patches if there is no such token.

    `forward` and `through` are as in `explain`.

    Returns  (n, heads, h, w), attention weights: with the class and register tokens each head sums to 1
    Errors   UnsupportedModel if the network has no global attention among tokens (convolutions, Swin, MaxViT);
             LayerNotFound if there is no attention inside the layer or after it
    Source   Caron et al. 2021, figure 1 and section 4.2.2, arXiv:2104.14294

    Example
        >>> attention_heads(vit, images).shape
        torch.Size([1, 12, 14, 14])
    """
    a, grid, extra = attention_at(model, images, call.get("layer"))
    if a.shape[2] != a.shape[3]:  # queries of an attention pooling, which are not tokens
        return patches_of(a.mean(dim=2), grid, extra)
    rows = a[:, :, 0] if query == "class" and extra else a[:, :, extra:].mean(dim=2)
    return patches_of(rows, grid, extra)


@method(family="features", returns="channels", title="Channel effects", paper="Morcos et al. 2018, arXiv:1803.06959")
def channel_effects(model: nn.Module, images: Tensor, target: TargetLike = None, **cost: Unpack[LayerLimits]) -> Tensor:
    """Channel effects: the drop of the score when one channel of the layer is set to zero, for each channel.

        y - y(A_k = 0)

    `forward` is as in `explain`. `through` raises an error, because it restricts gradients and this method only uses
    scores.

    Returns  (n, k), in logits; positive if the channel is evidence for the target. If the method is stopped early,
             the remaining channels are 0. The receptive field of a position, a box in input pixels, is
             `.receptive_field(cell)` of the layer's entry in `list_layers(model, images)`.
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Morcos et al. 2018, section 3, arXiv:1803.06959

    Example
        >>> channel_effects(model, images, 281, layer="layer4").shape
        torch.Size([1, 512])
    """
    with open_run(model, images, target, cost=cost) as run:
        layout, activations, scores = activation_and_score(run, cost.get("layer"))
        return channel_drops(run, layout, activations, scores, lambda drops: drops[:, None])


@check_keywords
@torch.inference_mode(False)
def channel_contributions(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    forward: Forward | None = None,
) -> Tensor:
    """Compute gradient × activation of each channel of a layer: the first-order estimate of `channel_effects`.

        Σ_ij A_k,ij ∂y/∂A_k,ij

    The sum is over the whole output of the layer, including class and register tokens. `forward` is as in `explain`.

    Returns  (n, k) float64, in logits; on the CPU if the device has no float64
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel, BadTarget
    Source   Molchanov et al. 2017, equation 7, arXiv:1611.06440

    Example
        >>> channel_contributions(model, images, 281, layer="layer4").shape
        torch.Size([1, 512])
    """
    check_images(model, images)
    model = model if forward is None else wrap_forward(model, forward, images)
    with open_run(model, images, target) as run:
        layout = run.layer_layout(layer)
        activations, gradients = run.backward.at([layout], run.images)[layout.name]
        products = to_float64(activations.detach()) * to_float64(gradients)
        return products.movedim(layout.channel_axis, 1).flatten(2).sum(2)
