"""The rules of DeepLIFT: for each nonlinear operation, multipliers m with  sum_i m_i Δx_i = Δy  exactly.

    elementwise f      m = Δf / Δx, and the gradient where Δx = 0                  (the rescale rule)
    max pool           Δmax to the winner, by its own Δx
    product a b        m_a = (b + b') / 2 and m_b = (a + a') / 2: the mean over both orders of change
    norms, softmax     decomposed into products, elementwise powers, exponentials and log sum exp

A rule gets the call on the image and the baseline's tensors in the same places; a' is the baseline's a.

Source   Shrikumar et al. 2017, eqs. 1 to 3 and 9 (rescale), arXiv:1704.02685. Products: the two-player Shapley value
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.backward.operations import Call, with_custom_backward
from explainers.backward.vjp import vjp
from explainers.passes import attention_ops
from explainers.passes.run import at_least_float32

ELEMENTWISE = (
    "abs celu clamp clamp_max clamp_min clip cos elu erf exp expm1 gelu hardshrink hardsigmoid hardswish hardtanh "
    "leaky_relu log log1p log2 log_sigmoid mish pow prelu rdiv reciprocal relu relu6 rpow rsqrt selu sigmoid silu sin "
    "softplus softshrink softsign sqrt square tanh tanhshrink threshold"
)
_POOLS = "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"

Rule = Callable[[Call, list[Tensor]], Any]


# One input


def slope(function: Callable[[Tensor], Tensor], x: Tensor, before: Tensor) -> Tensor:
    """Δf / Δx per element; where Δx is relatively tiny, the mean of the gradients at both ends."""
    x, before = at_least_float32(x), at_least_float32(before)
    change = x - before
    tiny = (change.abs() <= torch.finfo(x.dtype).eps ** 0.5 * torch.maximum(x.abs(), before.abs())) | (x == before)
    with torch.no_grad():
        quotient = (function(x) - function(before)) / torch.where(tiny, 1, change)
    if not bool(tiny.any()):
        return quotient
    gradients = [_gradient(function, at) for at in (x, before)]
    return torch.where(tiny, sum(gradients, torch.zeros_like(x)) / 2, quotient)


def _gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """df / dx per element of an elementwise f."""
    value, backward = vjp(function, at)
    return backward(torch.ones_like(value))


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor, before: Tensor) -> Tensor:
    """f(x) with the rescale rule."""
    multipliers = slope(function, x, before)
    return with_custom_backward(function, lambda g: [(at_least_float32(g) * multipliers).to(g.dtype)], x)


def _elementwise(call: Call, before: list[Tensor]) -> Tensor:
    x, *others = call.tensors
    if any(other.requires_grad for other in others):
        raise call.mode.refuse(f"{call.name} of two values that depend on the image")
    function = call.out_of_place()
    return elementwise(lambda x: function(x, *(other.detach().to(x.dtype) for other in others)), x, before[0])


def _winners(x: Tensor, before: Tensor, winner: Tensor, winner_before: Tensor) -> tuple[Tensor, Tensor]:
    """The element p of the last dimension that gets Δmax, as an index, and its multiplier m_p = Δmax / Δx_p.

    The image's winner where the maximum grew, the baseline's where it fell, and one that won both times where there is
    one: in a constant baseline all elements tie. There |Δx_p| >= |Δmax|, so no multiplier is above 1.
    """
    x, before = at_least_float32(x), at_least_float32(before)
    top, top_before = x.gather(-1, winner), before.gather(-1, winner_before)
    at = torch.where(top >= top_before, winner, winner_before)
    at = torch.where(x.gather(-1, winner_before) == top, winner_before, at)
    at = torch.where(before.gather(-1, winner) == top_before, winner, at)
    change = (x - before).gather(-1, at)
    return at, torch.where(change == 0, 1, (top - top_before) / torch.where(change == 0, 1, change))


def _max_pool(call: Call, before: list[Tensor]) -> Any:
    """Δmax = m_p Δx_p at the window's winner p."""
    if call.kwargs.get("return_indices"):
        raise call.mode.refuse(f"{call.name} that returns indices")
    function, x = getattr(F, call.name), call.tensors[0]
    args, kwargs = call.args[1:], {**call.kwargs, "return_indices": True}
    kwargs.pop("input", None)
    dims, shape = int(call.name[-2]), x.shape
    with torch.no_grad():
        top, winner = function(x.detach(), *args, **kwargs)
        _, winner_before = function(before[0], *args, **kwargs)
        flat = [tensor.flatten(-dims) for tensor in (x.detach(), before[0], winner, winner_before)]
        at, multipliers = _winners(flat[0], flat[1], flat[2], flat[3])

    def scatter(g: Tensor) -> list[Tensor]:
        gradient = torch.zeros(flat[0].shape, dtype=multipliers.dtype, device=multipliers.device)
        gradient.scatter_add_(-1, at, at_least_float32(g).flatten(-dims) * multipliers)
        return [gradient.view(shape).to(g.dtype)]

    return with_custom_backward(lambda _: top, scatter, x)


def _max(call: Call, before: list[Tensor]) -> Tensor:
    """`amax` and `amin`, as a max pool over their dimensions."""
    x, dims, keepdim = call.bind_arguments("input", "dim", "keepdim", keepdim=False)
    sign = 1 if call.name == "amax" else -1
    reduced = [d % x.ndim for d in (dims if isinstance(dims, (tuple, list)) else (dims,))]
    order = [d for d in range(x.ndim) if d not in reduced] + reduced
    values, values_before = (sign * tensor.permute(order).flatten(-len(reduced)) for tensor in (x, before[0]))
    with torch.no_grad():
        top, winner = values.detach().max(-1, keepdim=True)
        at, multipliers = _winners(values, values_before, winner, values_before.argmax(-1, keepdim=True))

    def scatter(g: Tensor) -> list[Tensor]:
        gradient = torch.zeros(values.shape, dtype=multipliers.dtype, device=multipliers.device)
        return [gradient.scatter_(-1, at, at_least_float32(g)[..., None] * multipliers).to(g.dtype)]

    result = sign * with_custom_backward(lambda _: top[..., 0], scatter, values)
    return result.view([1 if d in reduced else n for d, n in enumerate(x.shape)]) if keepdim else result


# Several inputs


def constant_weights(call: Call) -> Any:
    if any(tensor.requires_grad for tensor in call.tensors[1:]):
        raise call.mode.refuse(f"{call.name} with weights that depend on the image")
    return call.call_original()


def product(function: Callable[..., Tensor], factors: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """A function linear in each of two factors; the multiplier of one is the mean of the other."""
    means = [(at_least_float32(a) + at_least_float32(b)) / 2 for a, b in zip(factors, before, strict=True)]

    def backward(g: Tensor) -> list[Tensor]:
        with torch.enable_grad(), torch.autocast(g.device.type, enabled=False):
            leaves = [mean.clone().requires_grad_() for mean in means]
            value = function(*leaves)
        return [gradient.to(g.dtype) for gradient in torch.autograd.grad(value, leaves, at_least_float32(g))]

    return with_custom_backward(function, backward, *factors)


def _product(call: Call, before: list[Tensor]) -> Tensor:
    """A product; linear where one factor alone depends on the image."""
    inputs = call.tensors
    factors = inputs[1:] if call.name in ("baddbmm", "addmm") else inputs[:2]
    if sum(factor.requires_grad for factor in factors) < 2 and not any(other.requires_grad for other in inputs[2:]):
        return call.call_original() if not call.in_place else call.out_of_place()(*inputs)
    if len(inputs) > 2:
        raise call.mode.refuse(f"{call.name} of more than two values that depend on the image")
    return product(call.out_of_place(), inputs, before)


def _quotient(call: Call, before: list[Tensor]) -> Tensor:
    """a / b as a times 1 / b."""
    a, b = call.args[:2]
    if call.kwargs.get("rounding_mode"):
        raise call.mode.refuse("division with rounding")
    if not isinstance(b, Tensor) or not b.requires_grad:
        return call.out_of_place()(*call.tensors)
    inverse = elementwise(torch.reciprocal, b, before[-1])
    if not isinstance(a, Tensor) or not a.requires_grad:
        return a * inverse
    return product(torch.mul, (a, inverse), (before[0], before[-1].reciprocal()))


def _logsumexp_of(x: Tensor, before: Tensor, dim: int) -> Tensor:
    """log sum exp x, with m_i = L(exp x_i, exp x'_i) / L(S, S'), the logarithmic means L(a, b) = (a − b) / log(a / b).

    Exact, since sum_i L(exp x_i, exp x'_i) Δx_i = S − S'. Written in fractions of the larger sum, which neither
    overflow nor cancel however far image and baseline are apart.
    """
    now, then = at_least_float32(x), at_least_float32(before)
    rise = now.logsumexp(dim, keepdim=True) - then.logsumexp(dim, keepdim=True)
    change = torch.where(now == then, 0, now - then)
    larger = torch.where(
        change >= 0, now.softmax(dim) * rise.clamp(max=0).exp(), then.softmax(dim) * (-rise).clamp(max=0).exp()
    )
    multipliers = larger * _logarithmic_mean(change.abs()) / _logarithmic_mean(rise.abs())
    return with_custom_backward(
        lambda x: x.logsumexp(dim, keepdim=True), lambda g: [(at_least_float32(g) * multipliers).to(g.dtype)], x
    )


def _logarithmic_mean(gap: Tensor) -> Tensor:
    """L(1, exp(−gap)) = (1 − exp(−gap)) / gap, and 1 where the gap is 0."""
    return torch.where(gap == 0, 1, -torch.expm1(-gap) / torch.where(gap == 0, 1, gap))


def _softmax_of(x: Tensor, before: Tensor, dim: int) -> Tensor:
    """exp(x − log sum exp x)."""
    return elementwise(torch.exp, x - _logsumexp_of(x, before, dim), before.log_softmax(dim))


def _softmax(call: Call, before: list[Tensor]) -> Tensor:
    return _softmax_of(call.tensors[0], before[0], call.bind_arguments("input", "dim")[1])


def _log_softmax(call: Call, before: list[Tensor]) -> Tensor:
    x, dim = call.bind_arguments("input", "dim")
    return x - _logsumexp_of(x, before[0], dim)


def _logsumexp(call: Call, before: list[Tensor]) -> Tensor:
    x, dim, keepdim = call.bind_arguments("input", "dim", "keepdim", keepdim=False)
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(dim, int):
        raise call.mode.refuse("logsumexp over several dimensions")
    result = _logsumexp_of(x, before[0], dim)
    return result if keepdim else result.squeeze(dim)


def _attention(call: Call, before: list[Tensor]) -> Tensor:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    query, key, value, mask, _, causal, scale, grouped = call.bind_arguments(*names, is_causal=False, enable_gqa=False)
    if mask is not None and mask.requires_grad:
        raise call.mode.refuse("attention with a mask that depends on the image")
    query_before, key_before, value_before = before[:3]
    if grouped:
        key, value, key_before, value_before = (
            attention_ops.repeat_heads(query, heads) for heads in (key, value, key_before, value_before)
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    keys, keys_before = key.transpose(-2, -1) * scale, key_before.transpose(-2, -1) * scale
    scores, scores_before = _pair(torch.matmul, (query, keys), (query_before, keys_before))
    mask = attention_ops.causal_mask(scores) if causal else mask
    if mask is not None:
        mask = attention_ops.additive_mask(mask, scores.dtype)
        scores, scores_before = scores + mask, scores_before + mask
    weights = _softmax_of(scores, scores_before, -1)
    return _pair(torch.matmul, (weights, value), (scores_before.softmax(-1), value_before))[0]


def _pair(
    function: Callable[..., Tensor], factors: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The product on the image, and that on the baseline."""
    return product(function, factors, before), function(*before)


# Norms


def standardised(x: Tensor, before: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """(x − mean) / sqrt(variance + eps) over `dims`, of a difference, its square, a power and a product."""
    centred, centred_before = x - x.mean(dims, keepdim=True), before - before.mean(dims, keepdim=True)
    squares, squares_before = _pair(torch.mul, (centred, centred), (centred_before, centred_before))
    variance, variance_before = squares.mean(dims, keepdim=True), squares_before.mean(dims, keepdim=True)
    scale = elementwise(lambda v: (v + eps).rsqrt(), variance, variance_before)
    return product(torch.mul, (centred, scale), (centred_before, (variance_before + eps).rsqrt()))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm(call: Call, before: list[Tensor]) -> Tensor:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    x, shape, weight, bias, eps = call.bind_arguments(*names, eps=1e-5)
    return _affine(standardised(x, before[0], tuple(range(-len(shape), 0)), eps), weight, bias)


def _group_norm(call: Call, before: list[Tensor]) -> Tensor:
    x, groups, weight, bias, eps = call.bind_arguments("input", "num_groups", "weight", "bias", "eps", eps=1e-5)
    return _grouped(x, before[0], groups, weight, bias, eps)


def _grouped(x: Tensor, before: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    x, before = x.unflatten(1, (groups, -1)), before.unflatten(1, (groups, -1))
    result = standardised(x, before, tuple(range(2, x.ndim)), eps).flatten(1, 2)
    shape = (-1, *[1] * (result.ndim - 2))
    return _affine(result, None if weight is None else weight.view(shape), None if bias is None else bias.view(shape))


def _instance_norm(call: Call, before: list[Tensor]) -> Tensor:
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    x, _, _, weight, bias, use_input_stats, _, eps = call.bind_arguments(*names, use_input_stats=True, eps=1e-5)
    if not use_input_stats:
        return call.call_original()
    return _grouped(x, before[0], x.shape[1], weight, bias, eps)


def _batch_norm(call: Call, before: list[Tensor]) -> Tensor:
    if call.bind_arguments("input", "running_mean", "running_var", "weight", "bias", "training", training=False)[5]:
        raise call.mode.refuse("batch norm with batch statistics")
    return call.call_original()


def _normalize(call: Call, before: list[Tensor]) -> Tensor:
    """x / max(|x|, eps)."""
    x, power, dim, eps = call.bind_arguments("input", "p", "dim", "eps", p=2.0, dim=1, eps=1e-12)
    if power != 2:
        raise call.mode.refuse(f"normalize with p={power}")
    squares, squares_before = _pair(torch.mul, (x, x), (before[0], before[0]))
    total, total_before = squares.sum(dim, keepdim=True), squares_before.sum(dim, keepdim=True)

    def inverse_norm(v: Tensor) -> Tensor:
        return v.sqrt().clamp(min=eps).reciprocal()

    scale = elementwise(inverse_norm, total, total_before)
    return product(torch.mul, (x, scale), (before[0], inverse_norm(total_before)))


def _glu(call: Call, before: list[Tensor]) -> Tensor:
    x, dim = call.bind_arguments("input", "dim", dim=-1)
    (signal, gate), (signal_before, gate_before) = x.chunk(2, dim), before[0].chunk(2, dim)
    gate = elementwise(torch.sigmoid, gate, gate_before)
    return product(torch.mul, (signal, gate), (signal_before, gate_before.sigmoid()))


def _select(call: Call, before: list[Tensor]) -> Tensor:
    """Linear where the condition is that of the baseline."""
    for tensor, tensor_before in zip(call.tensors, before, strict=True):
        if tensor.dtype == torch.bool and not torch.equal(tensor, tensor_before):
            raise call.mode.refuse(call.name, "whose condition differs between input and baseline")
    return call.call_original() if not call.in_place else call.out_of_place()(*call.tensors)


RULES: dict[str, Rule] = dict.fromkeys(ELEMENTWISE.split(), _elementwise)
RULES |= dict.fromkeys(_POOLS.split(), _max_pool) | {"mul": _product, "div": _quotient}
RULES |= dict.fromkeys(("matmul", "bmm", "mm", "einsum", "baddbmm", "addmm", "bilinear"), _product)
RULES |= {"softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp, "normalize": _normalize}
RULES |= {"scaled_dot_product_attention": _attention, "layer_norm": _layer_norm, "group_norm": _group_norm}
RULES |= {"instance_norm": _instance_norm, "batch_norm": _batch_norm, "glu": _glu}
RULES |= {"where": _select, "masked_fill": _select, "amax": _max, "amin": _max}
LAYERS = ["linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))]
"""Linear operations, as long as their weights do not depend on the image."""
