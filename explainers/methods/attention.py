"""Attention followed from block to block, from the tokens that the score reads back to the patches.

All functions here read the same tensors, block by block, and differ in what they make of them:

    A  attention weights after the softmax   (n, heads, t, t), each row a token's shares among all tokens
    G  d score / d A                         (n, heads, t, t), score in logits unless the target says otherwise

The rows read at the end are those of the tokens that the score reads after the last block (their gradient there is not
zero): the class token, or all patches where they are pooled. Class and register tokens have no place in the map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from explainers.options import Choice, Range
from explainers.passes.attention import attended, mean_token_gradients, why_not
from explainers.registry import method
from explainers.targets import TargetLike

_FUSED: dict[str, Callable[..., Tensor]] = {"mean": Tensor.mean, "max": Tensor.amax, "min": Tensor.amin}


@method(
    family="attention",
    returns="grid",
    title="Attention rollout",
    signed=False,
    reads_class=False,
    scale_free="values are shares of attention, of which every token has one in all, whatever the score is",
    needs=why_not,
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
)
def attention_rollout(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    head_fusion: Annotated[str, Choice("mean", "max", "min", help="how the heads of a block become one")] = "mean",
    discard_ratio: Annotated[float, Range(0, 0.99, 0.05, help="share of each block's weakest weights left out")] = 0.0,
) -> Tensor:
    """Attention rollout: attention multiplied from block to block, each block mixed evenly with what it passes by.

    The class plays no part. Weights below the `discard_ratio` quantile of their block count as 0; rows are brought back
    to a sum of one, so that every head fusion gives shares.

    Returns  (n, h, w) on the grid of the patches, >= 0; with the class and register tokens the shares sum to one
    Errors   UnsupportedModel where the network does not attend among all tokens (convolutions, Swin, MaxViT)
    Source   Abnar & Zuidema 2020, section 3 and eq. 1, arXiv:2005.00928
    """
    seen = attended(model, images, target, gradients=False)
    rolled = _identity(seen.weights[0])
    for a in seen.weights:
        fused = _FUSED[head_fusion](a, dim=1)
        if discard_ratio:
            fused = torch.where(fused < fused.flatten(1).quantile(discard_ratio, dim=1)[:, None, None], 0, fused)
        mixed = fused + _identity(a)
        rolled = mixed / mixed.sum(dim=2, keepdim=True) @ rolled
    return seen.read(rolled)


@method(
    family="attention",
    returns="grid",
    title="Transformer attribution",
    signed=False,
    needs=why_not,
    paper="Chefer, Gur & Wolf 2021, arXiv:2103.15679",
)
def transformer_attribution(model: nn.Module, images: Tensor, target: TargetLike = None) -> Tensor:
    """Transformer attribution: attention that speaks for the class, mean over heads, carried from block to block.

    This is the rule of the generic attention paper (gradient times weight), which needs no relevance propagation; the
    rule of the authors' earlier paper, arXiv:2012.09838, is another.

    Returns  (n, h, w) on the grid of the patches, >= 0, first order in logits
    Errors   UnsupportedModel where the network does not attend among all tokens (convolutions, Swin, MaxViT)
    Source   Chefer, Gur & Wolf 2021 (ICCV), eqs. 5 and 6 and section 3.2, arXiv:2103.15679
    """
    seen = attended(model, images, target, gradients=True)
    relevance = _identity(seen.weights[0])
    for a, g in zip(seen.weights, seen.gradients, strict=True):
        relevance = relevance + (g * a).relu().mean(dim=1) @ relevance
    return seen.read(relevance)


@method(
    family="attention",
    returns="grid",
    title="LeGrad",
    signed=False,
    needs=why_not,
    paper="Bousselham et al. 2024, arXiv:2404.03214",
)
def le_grad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    score: Annotated[str, Choice("logit", "mean_token", help="what every block's attention is asked about")] = "logit",
) -> Tensor:
    """LeGrad: how much more attention to a patch would raise the score, over all heads, tokens and blocks.

    "logit" asks about the model's own score; "mean_token" about the score that the rest of the network gives to the
    mean of all tokens right after the block in question, block by block.

    Returns  (n, h, w) on the grid of the patches, >= 0, in logits per unit of attention
    Errors   UnsupportedModel where the network does not attend among all tokens (convolutions, Swin, MaxViT)
    Source   Bousselham et al. 2024, section 3.2, arXiv:2404.03214
    """
    if score == "mean_token":
        seen = mean_token_gradients(model, images, target)
    else:
        seen = attended(model, images, target, gradients=True)
    blocks = [g.relu().mean(dim=(1, 2)) for g in seen.gradients]
    return seen.to_maps(torch.stack(blocks).mean(dim=0))


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
