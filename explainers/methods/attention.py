"""Attention propagated from block to block, from the tokens that the score reads back to the patches.

All methods here read the same tensors of each block and combine them differently:

    A  attention weights after the softmax   (n, heads, t, t), each row a distribution over all tokens
    G  ∂y / ∂A                               (n, heads, t, t), y in logits unless the target says otherwise

The result uses the rows of the tokens that the score reads after the last block, i.e. those with a nonzero gradient:
the class token, or all patches if they are pooled. If attention pools them (SigLIP, AIMv2), its rows are those of the
pooling's queries, which are applied to the result of the blocks. Class and register tokens have no position in the map.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.attention.record import mean_token_gradients, record_attention, why_not
from explainers.keywords import Call
from explainers.options import Choice, Range
from explainers.registry import method
from explainers.targets import TargetLike

_attention = partial(method, family="attention", returns="grid", signed=False, needs=why_not)
_FUSED: dict[str, Callable[..., Tensor]] = {"mean": Tensor.mean, "max": Tensor.amax, "min": Tensor.amin}


@_attention(
    title="Attention rollout",
    reads_class=False,
    scale_free="values are attention weights, which sum to 1 for every token regardless of the score",
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
)
def attention_rollout(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    head_fusion: Annotated[str, Choice("mean", "max", "min", help="reduction over the heads of a block")] = "mean",
    discard_ratio: Annotated[
        float, Range(0, 0.99, 0.05, help="fraction of each block's lowest weights set to 0")
    ] = 0.0,
    **call: Unpack[Call],
) -> Tensor:
    """Attention rollout: the product of the blocks' attention matrices with residual connections, 0.5 A + 0.5 I.

        R = Π_blocks normalize_rows(fuse_heads(A) + I)

    The map does not depend on the class. Weights below the `discard_ratio` quantile of their block are set to 0. Rows
    are renormalized, so that every head fusion gives distributions.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) on the grid of the patches, >= 0; with the class and register tokens it sums to 1
    Errors   UnsupportedModel if the network has no global attention among tokens (convolutions, Swin, MaxViT)
    Source   Abnar & Zuidema 2020, section 3 and eq. 1, arXiv:2005.00928

    Example
        >>> attention_rollout(vit, images).shape
        torch.Size([1, 14, 14])
    """
    attention = record_attention(model, images, target, gradients=False)
    rollout = _identity(attention.weights[0])
    for a in attention.weights:
        rollout = _rows(_fuse(a, head_fusion, discard_ratio) + _identity(a)) @ rollout
    if attention.pool is None:
        return attention.read(rollout)
    return attention.read(rollout, _rows(_fuse(attention.pool, head_fusion, discard_ratio)))


def _fuse(a: Tensor, head_fusion: str, discard_ratio: float) -> Tensor:
    """Reduce the heads of [N, heads, queries, keys], and set the lowest weights to 0."""
    fused = _FUSED[head_fusion](a, dim=1)
    if discard_ratio:
        fused = torch.where(fused < fused.flatten(1).quantile(discard_ratio, dim=1)[:, None, None], 0, fused)
    return fused


def _rows(matrix: Tensor) -> Tensor:
    """Scale every row to the sum 1."""
    return matrix / matrix.sum(dim=2, keepdim=True)


@_attention(title="Transformer attribution", paper="Chefer, Gur & Wolf 2021, arXiv:2103.15679")
def transformer_attribution(
    model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[Call]
) -> Tensor:
    """Transformer attribution: positive gradient-weighted attention, averaged over heads, propagated over blocks.

        R ← R + mean_heads(ReLU(G ∘ A)) R,  R = I before the first block

    This is the rule of the generic attention paper, without relevance propagation. The authors' earlier paper,
    arXiv:2012.09838, uses a different one.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) on the grid of the patches, >= 0, first order in logits
    Errors   UnsupportedModel if the network has no global attention among tokens (convolutions, Swin, MaxViT)
    Source   Chefer, Gur & Wolf 2021 (ICCV), eqs. 5 and 6 and section 3.2, arXiv:2103.15679

    Example
        >>> transformer_attribution(vit, images, 281).shape
        torch.Size([1, 14, 14])
    """
    attention = record_attention(model, images, target, gradients=True)
    relevance = _identity(attention.weights[0])
    for a, g in zip(attention.weights, attention.gradients, strict=True):
        relevance = relevance + (g * a).relu().mean(dim=1) @ relevance
    if attention.pool is None or attention.pool_gradient is None:
        return attention.read(relevance)
    return attention.read(relevance, (attention.pool_gradient * attention.pool).relu().mean(dim=1))


@_attention(title="LeGrad", paper="Bousselham et al. 2024, arXiv:2404.03214")
def le_grad(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    score: Annotated[str, Choice("logit", "mean_token", help="score that is differentiated in every block")] = "logit",
    **call: Unpack[Call],
) -> Tensor:
    """LeGrad: the positive gradient of the score at the attention weights, mean over heads, tokens and blocks.

        mean_blocks mean_heads,tokens ReLU(∂y/∂A)

    "logit" differentiates the model's own score y. "mean_token" differentiates, for each block, the score that the rest
    of the network gives to the mean of all tokens right after the block. Attention that pools the tokens at the end
    counts as one more block for "logit".

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) on the grid of the patches, >= 0, in logits per unit of attention
    Errors   UnsupportedModel if the network has no global attention among tokens (convolutions, Swin, MaxViT)
    Source   Bousselham et al. 2024, section 3.2, arXiv:2404.03214

    Example
        >>> le_grad(vit, images, 281).shape
        torch.Size([1, 14, 14])
    """
    if score == "mean_token":
        attention = mean_token_gradients(model, images, target)
    else:
        attention = record_attention(model, images, target, gradients=True)
    gradients = [*attention.gradients, *([] if attention.pool_gradient is None else [attention.pool_gradient])]
    blocks = [g.relu().mean(dim=(1, 2)) for g in gradients]
    return attention.to_maps(torch.stack(blocks).mean(dim=0))


@_attention(title="Grad-ECLIP", paper="Zhao et al. 2024, arXiv:2502.18816")
def grad_eclip(model: nn.Module, images: Tensor, target: TargetLike = None, **call: Unpack[Call]) -> Tensor:
    """Grad-ECLIP: the gradient at the last attention, with similarities of queries and keys instead of its weights.

        ReLU(Σ_queries λ Σ_heads G),  λ = (c - min c) / (max c - min c),  c = cos(query, key)

    G = ∂y/∂A is the gradient at the last attention's output times the values, which is the paper's channel weight
    times value. λ spreads more evenly over the patches than the softmax; its extrema are those of each query over the
    patches. The paper defines the method for a class token; tokens that are pooled, and the queries of attention
    pooling, are summed. It was made for CLIP: give `Similarity(text_embedding(model, tokens)[0])` as the target.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) on the grid of the patches, >= 0, in the unit of the score
    Errors   UnsupportedModel if the network has no global attention among tokens, or writes it without torch's function
    Source   Zhao et al. 2024 (ICML), section 3.2, arXiv:2502.18816

    Example
        >>> grad_eclip(vit, images, 281).shape
        torch.Size([1, 14, 14])
    """
    attention = record_attention(model, images, target, gradients=True, similarity=True)
    g = attention.gradients[-1] if attention.pool_gradient is None else attention.pool_gradient
    assert attention.similarity is not None, "requested"
    cosine = attention.similarity[..., attention.extra_tokens :]
    low, high = cosine.amin(-1, keepdim=True), cosine.amax(-1, keepdim=True)
    looseness = torch.where(high > low, (cosine - low) / (high - low), 1)
    contributions = g.sum(dim=1)[..., attention.extra_tokens :] * looseness
    return contributions.sum(dim=1).relu().unflatten(-1, attention.grid)


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
