"""Attention in single operations, as torch's fused functions compute it.

    S = q kᵀ / sqrt(d) + mask    [..., L, S]; the mask is 0 where a query may attend, -inf where it may not
    A = softmax(S)               attention weights: rows are the L queries, columns the S keys
    y = A v                      [..., L, d]

Passes that read the weights, and backward rules that need every operation, use these instead of the fused kernels.
Dropout is omitted, so explanations are deterministic.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor | None]]
"""(q, k, v, additive mask, is_causal) -> (A v, A or None); q, k, v are [N, heads, T, d]."""

_MULTI_HEAD = inspect.signature(functional.multi_head_attention_forward)
_EXTRA_KEYS = ("bias_k", "bias_v", "static_k", "static_v", "add_zero_attn")


def repeat_heads(query: Tensor, keys: Tensor) -> Tensor:
    """Repeat the keys or values [..., G, S, d] of grouped-query attention for their query heads."""
    return keys.repeat_interleave(query.shape[-3] // keys.shape[-3], -3)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask to add to the scores; True in a boolean mask means that the query may attend."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -torch.inf)


def attention_weights(
    query: Tensor, key: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Return A [..., L, S]; as in torch, the row of a query that may not attend to any key is 0."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:  # [L, S], True where a query may attend: not to later keys
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is None:
        return scores.softmax(dim=-1)
    mask = additive_mask(attn_mask, scores.dtype)
    no_key = (mask == -torch.inf).all(dim=-1, keepdim=True)
    return (scores + mask.masked_fill(no_key, 0)).softmax(dim=-1).masked_fill(no_key, 0)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    *, keep: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Compute torch's function of this name; `keep` maps weights, queries and keys to weights."""
    if enable_gqa:
        key, value = repeat_heads(query, key), repeat_heads(query, value)
    weights = attention_weights(query, key, attn_mask, is_causal, scale)
    return (weights if keep is None else keep(weights, query, key)) @ value


def multi_head_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of `multi_head_attention_forward` by name, including defaults."""
    bound = _MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def extra_keys(arguments: Mapping[str, Any]) -> str | None:
    """Return the argument that adds keys to those of the tokens, which `multi_head_attention` does not support."""
    return next((name for name in _EXTRA_KEYS if arguments[name] is not None and arguments[name] is not False), None)


def multi_head_attention(attend: Attend, arguments: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Compute `multi_head_attention_forward` with `attend` between the projections, tokens first: [T, N, C] or [T, C].

    Returns  the output, and the weights if requested: [N, T, S], or [N, heads, T, S] if not averaged
    """
    batched = arguments["query"].ndim == 3
    tokens = [arguments[name] if batched else arguments[name].unsqueeze(1) for name in ("query", "key", "value")]
    if arguments["use_separate_proj_weight"]:
        matrices = [arguments[f"{letter}_proj_weight"] for letter in "qkv"]
    else:
        matrices = arguments["in_proj_weight"].chunk(3)
    biases = (None,) * 3 if arguments["in_proj_bias"] is None else arguments["in_proj_bias"].chunk(3)
    q, k, v = (
        functional.linear(x, matrix, bias).unflatten(-1, (arguments["num_heads"], -1)).permute(1, 2, 0, 3)
        for x, matrix, bias in zip(tokens, matrices, biases, strict=True)
    )
    mixed, weights = attend(q, k, v, *_merged_mask(q, arguments))
    mixed = mixed.permute(2, 0, 1, 3).flatten(2)
    output = functional.linear(mixed, arguments["out_proj_weight"], arguments["out_proj_bias"])
    output = output if batched else output.squeeze(1)
    if weights is None or not arguments["need_weights"]:
        return output, None
    weights = weights.mean(dim=1) if arguments["average_attn_weights"] else weights
    return output, weights if batched else weights.squeeze(0)


def _merged_mask(q: Tensor, arguments: Mapping[str, Any]) -> tuple[Tensor | None, bool]:
    """Merge `attn_mask` and `key_padding_mask` into one additive mask, and is_causal; here True masks, unlike above."""
    attn_mask, padding = arguments["attn_mask"], arguments["key_padding_mask"]
    if arguments["is_causal"] and padding is None and not arguments["need_weights"]:
        return None, True
    masks = []
    if attn_mask is not None:
        masks.append(attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, q.shape[:2]))
    if padding is not None:
        masks.append(padding.view(len(q), 1, 1, -1))
    added = [additive_mask(~mask if mask.dtype == torch.bool else mask, q.dtype) for mask in masks]
    return (sum(added[1:], added[0]) if added else None), False
