"""Composite operations written as single ones, to which the running mode then applies its rules.

Each function takes a call and runs under the mode of that call, in LRP, excitation backprop and both runs of DeepLIFT.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.call.attention import operations as attention_ops
from explainers.rules.operations import Call

Dims = tuple[int, ...]
Normalize = Callable[[Tensor, Dims, Tensor | None, Tensor | None, float], Tensor]


def multi_head(call: Call) -> tuple[Tensor, Tensor | None]:
    """Run `F.multi_head_attention_forward` as single operations; the returned weights are constants.

    Errors   UnsupportedOperation for keys other than those of the tokens
    """
    arguments = attention_ops.multi_head_arguments(call.args, call.kwargs)
    if name := attention_ops.extra_keys(arguments):
        raise call.mode.refuse(f"multi-head attention with {name}")

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        weights = None
        if arguments["need_weights"]:
            weights = attention_ops.attention_weights(query.detach(), key.detach(), mask, is_causal)
        return F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal), weights

    with call.mode:
        return attention_ops.multi_head_attention(attend, arguments)


def attention(call: Call) -> Tensor:
    """Run `F.scaled_dot_product_attention` as single operations."""
    with call.mode:
        return attention_ops.scaled_dot_product_attention(*call.args, **call.kwargs)


def _addcmul(call: Call) -> Tensor:
    """Return input + value · a b, or a / b for `addcdiv`."""
    x, a, b, value = call.bind_arguments("input", "tensor1", "tensor2", "value", value=1)
    with call.mode:
        term = a * b if call.name == "addcmul" else a / b
        return x + (term if value == 1 else value * term)


def _addmm(call: Call) -> Tensor:
    """Return beta · input + alpha · a b, summed over the batch for `addbmm`."""
    names = ("input", *(("mat", "vec") if call.name == "addmv" else ("mat1", "mat2")))
    names = ("input", "batch1", "batch2") if "bmm" in call.name else names
    x, a, b = call.bind_arguments(*names)
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)
    with call.mode:
        product = torch.matmul(a, b)
        product = product.sum(0) if call.name == "addbmm" else product
        product = product if alpha == 1 else alpha * product
        return product if beta == 0 else (x if beta == 1 else beta * x) + product


def _lerp(call: Call) -> Tensor:
    """Return start + weight · (end − start)."""
    start, end, weight = call.bind_arguments("input", "end", "weight")
    with call.mode:
        return start + weight * (end - start)


def _norm(call: Call) -> Tensor:
    """Return (Σ |x|^p)^(1/p) over the dimensions, for every spelling of a vector norm and the Frobenius norm."""
    x, names = call.tensors[0], ("x", "order", "dim", "keepdim")
    _, order, dims, keepdim = call.bind_arguments(*names, keepdim=False)
    order = call.kwargs.get("p", call.kwargs.get("ord", order))
    of_matrix = isinstance(dims, (tuple, list)) and len(dims) == 2 if dims is not None else x.ndim == 2
    spelled = getattr(call.function, "__name__", "")
    if order == "nuc" or (spelled == "linalg_norm" and of_matrix and order not in (None, "fro")) or order == 0:
        return cast(Tensor, call.mode.run_without_rule(call))
    order = 2 if order in (None, "fro") else float(order)
    dims = _dimensions(x, dims)
    with call.mode:
        x = x if (dtype := call.kwargs.get("dtype")) is None else x.to(dtype)
        if order == 2:
            return (x * x).sum(dims, keepdim=keepdim).sqrt()
        size = x.abs()
        if math.isinf(order):
            return size.amax(dims, keepdim) if order > 0 else size.amin(dims, keepdim)
        return size.sum(dims, keepdim) if order == 1 else (size**order).sum(dims, keepdim) ** (1 / order)


def _dimensions(x: Tensor, dims: Any) -> tuple[int, ...]:
    if dims is None or dims == () or dims == []:
        return tuple(range(x.ndim))
    return tuple(dims) if isinstance(dims, (tuple, list)) else (dims,)


def _moments(call: Call) -> Any:
    """Return `var` or `std`, together with the mean for `var_mean` and `std_mean`."""
    x, dims, unbiased, keepdim = call.bind_arguments("input", "dim", "unbiased", "keepdim", keepdim=False)
    if isinstance(dims, bool):
        dims, unbiased = None, dims
    dims = _dimensions(x, call.kwargs.get("axis", dims))
    correction = call.kwargs.get("correction")
    correction = (0 if unbiased is False else 1) if correction is None else correction
    count = math.prod(x.shape[dim] for dim in dims)
    with call.mode:
        mean = x.mean(dims, keepdim=True)
        mean = mean + (x - mean).mean(dims, keepdim=True)  # exact for constants, as in torch
        centered = x - mean
        spread = (centered * centered).sum(dims, keepdim=keepdim) / max(count - correction, 0)
        spread = spread.sqrt() if call.name.startswith("std") else spread
        return (spread, mean if keepdim else mean.squeeze(dims)) if call.name.endswith("mean") else spread


def _normalize(call: Call) -> Tensor:
    """Return x / max(|x|, ε)."""
    x, order, dim, eps = call.bind_arguments("input", "p", "dim", "eps", p=2.0, dim=1, eps=1e-12)
    with call.mode:
        return x / torch.norm(x, order, dim, keepdim=True).clamp(min=eps)


def _rms_norm(call: Call) -> Tensor:
    """Return w x / sqrt(mean x² + ε)."""
    x, shape, weight, eps = call.bind_arguments("input", "normalized_shape", "weight", "eps")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    with call.mode:
        x = x / ((x * x).mean(tuple(range(-len(shape), 0)), keepdim=True) + eps).sqrt()
        return x if weight is None else x * weight


def normalize_with(call: Call, normalize: Normalize) -> Tensor:
    """Apply `normalize(x, dims, weight, bias, eps)` to a layer norm, or to a group norm with an axis for the groups."""
    if call.name == "layer_norm":
        names = ("input", "normalized_shape", "weight", "bias", "eps")
        x, shape, weight, bias, eps = call.bind_arguments(*names, eps=1e-5)
        return normalize(x, tuple(range(-len(shape), 0)), weight, bias, eps)
    x, groups, weight, bias, eps = call.bind_arguments("input", "num_groups", "weight", "bias", "eps", eps=1e-5)
    channels = (groups, -1, *[1] * (x.ndim - 2))
    weight, bias = (None if values is None else values.view(channels) for values in (weight, bias))
    return normalize(x.unflatten(1, (groups, -1)), tuple(range(2, x.ndim + 1)), weight, bias, eps).flatten(1, 2)


def _norm_layer(call: Call) -> Tensor:
    """Return w (x − mean) / sqrt(variance + ε) + b."""

    def normalize(x: Tensor, dims: Dims, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        x = x - x.mean(dims, keepdim=True)
        # Again, so that constants become exactly 0 without the rounding error of the first mean.
        x = x - x.detach().mean(dims, keepdim=True)
        x = x * ((x * x).mean(dims, keepdim=True) + eps).rsqrt()
        x = x if weight is None else x * weight
        return x if bias is None else x + bias

    with call.mode:
        return normalize_with(call, normalize)


def _instance_norm(call: Call) -> Tensor:
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    x, mean, variance, weight, bias, own, _, eps = call.bind_arguments(*names, use_input_stats=True, eps=1e-5)
    with call.mode:
        if own:
            return F.group_norm(x, x.shape[1], weight, bias, eps)
        return F.batch_norm(x, mean, variance, weight, bias, eps=eps)


def _cosine_similarity(call: Call) -> Tensor:
    """Return a b / (max(|a|, ε) max(|b|, ε))."""
    a, b, dim, eps = call.bind_arguments("x1", "x2", "dim", "eps", dim=1, eps=1e-8)
    with call.mode:
        a, b = (v / torch.norm(v, 2, dim, keepdim=True).clamp(min=eps) for v in (a, b))
        return (a * b).sum(dim)


def _glu(call: Call) -> Tensor:
    """Return the first half times the sigmoid of the second half."""
    x, dim = call.bind_arguments("input", "dim", dim=-1)
    with call.mode:
        signal, gate = x.chunk(2, dim)
        return signal * gate.sigmoid()


def _softmin(call: Call) -> Tensor:
    x, dim = call.bind_arguments("input", "dim")
    with call.mode:
        return torch.softmax(-x, dim)


def _local_response_norm(call: Call) -> Tensor:
    """Return x / (k + α mean x²)^β, with the mean over neighboring channels."""
    x, size, alpha, beta, k = call.bind_arguments("input", "size", "alpha", "beta", "k", alpha=1e-4, beta=0.75, k=1.0)
    with call.mode:
        squares = F.pad((x * x).flatten(2)[:, None], (0, 0, size // 2, (size - 1) // 2))
        mean = F.avg_pool2d(squares, (size, 1), stride=1)[:, 0].view(x.shape)
        return x / (k + alpha * mean) ** beta


DECOMPOSED: dict[str, Callable[[Call], Any]] = {"multi_head_attention_forward": multi_head, "softmin": _softmin}
DECOMPOSED |= {"scaled_dot_product_attention": attention, "layer_norm": _norm_layer, "group_norm": _norm_layer}
DECOMPOSED |= {"addcmul": _addcmul, "addcdiv": _addcmul, "lerp": _lerp, "norm": _norm, "glu": _glu}
DECOMPOSED |= dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv"), _addmm)
DECOMPOSED |= dict.fromkeys(("var", "std", "var_mean", "std_mean"), _moments)
DECOMPOSED |= {"normalize": _normalize, "rms_norm": _rms_norm, "instance_norm": _instance_norm}
DECOMPOSED |= {"cosine_similarity": _cosine_similarity, "local_response_norm": _local_response_norm}
"""The decompositions by torch's name of the operation."""
