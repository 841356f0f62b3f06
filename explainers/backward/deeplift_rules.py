"""The rules of DeepLIFT: for each operation that is not linear, multipliers m with  sum_i m_i Δx_i = Δy  exactly.

    elementwise f      m = Δf / Δx per element, and the gradient where nothing changed       (the rescale rule)
    max pool           Δmax to the winner of the pair, by its own Δx
    product a b        m_a = (b + b') / 2 and m_b = (a + a') / 2: both orders of change, averaged
    norms, softmax     what they are made of: products, elementwise powers, exponentials and log sum exp

A rule gets the picture's call and the baseline's tensors in the same places.

Source   Shrikumar et al. 2017, eqs. 1 to 3 and 9 (rescale), arXiv:1704.02685. Products: the two-player Shapley value
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.backward.lrp_rules import at_least_float32
from explainers.backward.operations import Call, with_custom_backward
from explainers.passes import attention_ops

ELEMENTWISE = (
    "abs celu clamp clamp_max clamp_min clip cos elu erf exp expm1 gelu hardshrink hardsigmoid hardswish hardtanh "
    "leaky_relu log log1p log2 log_sigmoid mish pow prelu rdiv reciprocal relu relu6 rpow rsqrt selu sigmoid silu sin "
    "softplus softshrink softsign sqrt square tanh tanhshrink threshold"
)
_POOLS = "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"

Rule = Callable[[Call, list[Tensor]], Any]


# One input


def slope(function: Callable[[Tensor], Tensor], x: Tensor, before: Tensor) -> Tensor:
    """Δf / Δx per element; where x hardly changed, relative to itself, the mean of the gradients at both ends."""
    x, before = at_least_float32(x), at_least_float32(before)
    change = x - before
    still = (change.abs() <= torch.finfo(x.dtype).eps ** 0.5 * torch.maximum(x.abs(), before.abs())) | (x == before)
    with torch.no_grad():
        quotient = (function(x) - function(before)) / torch.where(still, 1, change)
    if not bool(still.any()):
        return quotient
    gradients = [_gradient(function, at) for at in (x, before)]
    return torch.where(still, sum(gradients, torch.zeros_like(x)) / 2, quotient)


def _gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = at.detach().clone().requires_grad_()
        return torch.autograd.grad(function(leaf).sum(), leaf)[0]


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor, before: Tensor) -> Tensor:
    """f(x), with the rescale rule as its way back."""
    steep = slope(function, x, before)
    return with_custom_backward(function, lambda arriving: [(at_least_float32(arriving) * steep).to(arriving.dtype)], x)


def _elementwise(call: Call, before: list[Tensor]) -> Tensor:
    given = call.tensors
    if any(each.requires_grad for each in given[1:]):
        raise call.mode.refuse(f"{call.name} of two values that depend on the picture")
    function, others = call.out_of_place(), [each.detach() for each in given[1:]]
    return elementwise(lambda x: function(x, *(each.to(x.dtype) for each in others)), given[0], before[0])


def _winners(now: Tensor, then: Tensor, winner: Tensor, winner_before: Tensor) -> tuple[Tensor, Tensor]:
    """Where the change of a maximum belongs, as indices into the last dimension, and its share m_p of Δx_p there.

    To the picture's winner p where the maximum grew, to the baseline's where it fell; to one that won both times where
    there is one, since a constant baseline is nothing but ties. There |Δx_p| >= |Δmax|: no quotient is above 1.
    """
    now, then = at_least_float32(now), at_least_float32(then)
    top, top_before = now.gather(-1, winner), then.gather(-1, winner_before)
    at = torch.where(top >= top_before, winner, winner_before)
    at = torch.where(now.gather(-1, winner_before) == top, winner_before, at)
    at = torch.where(then.gather(-1, winner) == top_before, winner, at)
    moved = (now - then).gather(-1, at)
    return at, torch.where(moved == 0, 1, (top - top_before) / torch.where(moved == 0, 1, moved))


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
        flat = [each.flatten(-dims) for each in (x.detach(), before[0], winner, winner_before)]
        at, steep = _winners(flat[0], flat[1], flat[2], flat[3])

    def vjp(arriving: Tensor) -> list[Tensor]:
        back = torch.zeros(flat[0].shape, dtype=steep.dtype, device=steep.device)
        return [
            back.scatter_add_(-1, at, at_least_float32(arriving).flatten(-dims) * steep).view(shape).to(arriving.dtype)
        ]

    return with_custom_backward(lambda _: top, vjp, x)


def _max(call: Call, before: list[Tensor]) -> Tensor:
    """As a max pool over the given dimensions."""
    x, dims, keep = call.bind_arguments("input", "dim", "keepdim", keepdim=False)
    sign = 1 if call.name == "amax" else -1
    chosen = [d % x.ndim for d in (dims if isinstance(dims, (tuple, list)) else (dims,))]
    order = [d for d in range(x.ndim) if d not in chosen] + chosen
    now, then = (sign * each.permute(order).flatten(-len(chosen)) for each in (x, before[0]))
    with torch.no_grad():
        top, winner = now.detach().max(-1, keepdim=True)
        at, steep = _winners(now, then, winner, then.argmax(-1, keepdim=True))

    def vjp(arriving: Tensor) -> list[Tensor]:
        back = torch.zeros(now.shape, dtype=steep.dtype, device=steep.device)
        return [back.scatter_(-1, at, at_least_float32(arriving)[..., None] * steep).to(arriving.dtype)]

    found = sign * with_custom_backward(lambda _: top[..., 0], vjp, now)
    return found if not keep else found.view([1 if d in chosen else n for d, n in enumerate(x.shape)])


# Several inputs


def fixed_weights(call: Call) -> Any:
    if any(each.requires_grad for each in call.tensors[1:]):
        raise call.mode.refuse(f"{call.name} with weights that depend on the picture")
    return call.call_original()


def product(function: Callable[..., Tensor], given: Sequence[Tensor], before: Sequence[Tensor]) -> Tensor:
    """A function linear in each of two arguments, with what the other is on average as the multiplier of each."""
    means = [(at_least_float32(x) + at_least_float32(y)) / 2 for x, y in zip(given, before, strict=True)]

    def vjp(arriving: Tensor) -> list[Tensor]:
        with torch.enable_grad(), torch.autocast(arriving.device.type, enabled=False):
            leaves = [mean.clone().requires_grad_() for mean in means]
            found = function(*leaves)
        return [each.to(arriving.dtype) for each in torch.autograd.grad(found, leaves, at_least_float32(arriving))]

    return with_custom_backward(function, vjp, *given)


def _product(call: Call, before: list[Tensor]) -> Tensor:
    """Linear as it is where one factor alone depends on the picture."""
    given = call.tensors
    factors = given[1:] if call.name in ("baddbmm", "addmm") else given[:2]
    if sum(each.requires_grad for each in factors) < 2 and not any(each.requires_grad for each in given[2:]):
        return call.call_original() if not call.in_place else call.out_of_place()(*given)
    if len(given) > 2:
        raise call.mode.refuse(f"{call.name} of more than two values that depend on the picture")
    return product(call.out_of_place(), given, before)


def _quotient(call: Call, before: list[Tensor]) -> Tensor:
    a, b = call.args[:2]
    if call.kwargs.get("rounding_mode"):
        raise call.mode.refuse("division with rounding")
    if not isinstance(b, Tensor) or not b.requires_grad:
        return call.out_of_place()(*call.tensors)
    below = before[-1]
    turned = elementwise(torch.reciprocal, b, below)
    if not isinstance(a, Tensor) or not a.requires_grad:
        return a * turned
    return product(torch.mul, (a, turned), (before[0], below.reciprocal()))


def _logsumexp_of(x: Tensor, before: Tensor, dim: int) -> Tensor:
    """log sum exp x, with m_i = L(exp x_i, exp x'_i) / L(S, S'), the logarithmic means L(a, b) = (a − b) / log(a / b).

    Exact, since sum_i L(exp x_i, exp x'_i) Δx_i = S − S'. All is written in shares of the larger sum, with nothing that
    overflows or cancels however far picture and baseline are apart.
    """
    now, then = at_least_float32(x), at_least_float32(before)
    rise = now.logsumexp(dim, keepdim=True) - then.logsumexp(dim, keepdim=True)
    change = torch.where(now == then, 0, now - then)
    grew = change >= 0
    larger = torch.where(
        grew, now.softmax(dim) * rise.clamp(max=0).exp(), then.softmax(dim) * (-rise).clamp(max=0).exp()
    )
    steep = larger * _of_one(change.abs()) / _of_one(rise.abs())

    def vjp(arriving: Tensor) -> list[Tensor]:
        return [(at_least_float32(arriving) * steep).to(arriving.dtype)]

    return with_custom_backward(lambda given: given.logsumexp(dim, keepdim=True), vjp, x)


def _of_one(gap: Tensor) -> Tensor:
    """L(1, exp(−gap)) = (1 − exp(−gap)) / gap, and 1 where the gap is 0."""
    return torch.where(gap == 0, 1, -torch.expm1(-gap) / torch.where(gap == 0, 1, gap))


def _exponentials(x: Tensor, before: Tensor, dim: int) -> Tensor:
    """Softmax, as exp(x − log sum exp x)."""
    return elementwise(torch.exp, x - _logsumexp_of(x, before, dim), before.log_softmax(dim))


def _softmax(call: Call, before: list[Tensor]) -> Tensor:
    return _exponentials(call.tensors[0], before[0], call.bind_arguments("input", "dim")[1])


def _log_softmax(call: Call, before: list[Tensor]) -> Tensor:
    x, dim = call.bind_arguments("input", "dim")
    return x - _logsumexp_of(x, before[0], dim)


def _logsumexp(call: Call, before: list[Tensor]) -> Tensor:
    x, dim, keep = call.bind_arguments("input", "dim", "keepdim", keepdim=False)
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    if not isinstance(dim, int):
        raise call.mode.refuse("logsumexp over several dimensions")
    found = _logsumexp_of(x, before[0], dim)
    return found if keep else found.squeeze(dim)


def _attention(call: Call, before: list[Tensor]) -> Tensor:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    query, key, value, mask, _, causal, scale, grouped = call.bind_arguments(*names, is_causal=False, enable_gqa=False)
    if mask is not None and mask.requires_grad:
        raise call.mode.refuse("attention with a mask that depends on the picture")
    query_before, key_before, value_before = before[:3]
    if grouped:
        key, value, key_before, value_before = (
            attention_ops.repeat_heads(query, keys) for keys in (key, value, key_before, value_before)
        )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    turned, turned_before = key.transpose(-2, -1) * scale, key_before.transpose(-2, -1) * scale
    scores, scores_before = _pair(torch.matmul, (query, turned), (query_before, turned_before))
    mask = attention_ops.causal_mask(scores) if causal else mask
    if mask is not None:
        mask = attention_ops.additive_mask(mask, scores.dtype)
        scores, scores_before = scores + mask, scores_before + mask
    weights = _exponentials(scores, scores_before, -1)
    return _pair(torch.matmul, (weights, value), (scores_before.softmax(-1), value_before))[0]


def _pair(
    function: Callable[..., Tensor], given: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """A product of the picture's factors, with the baseline's beside it."""
    return product(function, given, before), function(*before)


# Norms


def standardised(x: Tensor, before: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    """(x − mean) / sqrt(variance + eps): a difference, its square, a power, a product."""
    centred, centred_before = x - x.mean(dims, keepdim=True), before - before.mean(dims, keepdim=True)
    squares, squares_before = _pair(torch.mul, (centred, centred), (centred_before, centred_before))
    spread, spread_before = squares.mean(dims, keepdim=True), squares_before.mean(dims, keepdim=True)
    scale = elementwise(lambda v: (v + eps).rsqrt(), spread, spread_before)
    return product(torch.mul, (centred, scale), (centred_before, (spread_before + eps).rsqrt()))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm(call: Call, before: list[Tensor]) -> Tensor:
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    x, shape, weight, bias, eps = call.bind_arguments(*names, eps=1e-5)
    return _scaled(standardised(x, before[0], tuple(range(-len(shape), 0)), eps), weight, bias)


def _group_norm(call: Call, before: list[Tensor]) -> Tensor:
    x, groups, weight, bias, eps = call.bind_arguments("input", "num_groups", "weight", "bias", "eps", eps=1e-5)
    return _grouped(x, before[0], groups, weight, bias, eps)


def _grouped(x: Tensor, before: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    x, before = x.unflatten(1, (groups, -1)), before.unflatten(1, (groups, -1))
    found = standardised(x, before, tuple(range(2, x.ndim)), eps).flatten(1, 2)
    down = (-1, *[1] * (found.ndim - 2))
    return _scaled(found, None if weight is None else weight.view(down), None if bias is None else bias.view(down))


def _instance_norm(call: Call, before: list[Tensor]) -> Tensor:
    names = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
    x, _, _, weight, bias, own, _, eps = call.bind_arguments(*names, use_input_stats=True, eps=1e-5)
    if not own:
        return call.call_original()
    return _grouped(x, before[0], x.shape[1], weight, bias, eps)


def _batch_norm(call: Call, before: list[Tensor]) -> Tensor:
    if call.bind_arguments("input", "running_mean", "running_var", "weight", "bias", "training", training=False)[5]:
        raise call.mode.refuse("batch norm with the statistics of its own batch")
    return call.call_original()


def _normalize(call: Call, before: list[Tensor]) -> Tensor:
    """x / max(|x|, eps)."""
    x, power, dim, eps = call.bind_arguments("input", "p", "dim", "eps", p=2.0, dim=1, eps=1e-12)
    if power != 2:
        raise call.mode.refuse(f"normalize with p={power}")
    squares, squares_before = _pair(torch.mul, (x, x), (before[0], before[0]))
    total, total_before = squares.sum(dim, keepdim=True), squares_before.sum(dim, keepdim=True)

    def turned(v: Tensor) -> Tensor:
        return v.sqrt().clamp(min=eps).reciprocal()

    return product(torch.mul, (x, elementwise(turned, total, total_before)), (before[0], turned(total_before)))


def _glu(call: Call, before: list[Tensor]) -> Tensor:
    x, dim = call.bind_arguments("input", "dim", dim=-1)
    (signal, gate), (signal_before, gate_before) = x.chunk(2, dim), before[0].chunk(2, dim)
    open_run = elementwise(torch.sigmoid, gate, gate_before)
    return product(torch.mul, (signal, open_run), (signal_before, gate_before.sigmoid()))


def _same_way(call: Call, before: list[Tensor]) -> Tensor:
    """A choice is linear where picture and baseline choose alike."""
    for now, then in zip(call.tensors, before, strict=True):
        if now.dtype == torch.bool and not torch.equal(now, then):
            raise call.mode.refuse(call.name, "which chooses otherwise for the picture than for the baseline")
    return call.call_original() if not call.in_place else call.out_of_place()(*call.tensors)


RULES: dict[str, Rule] = dict.fromkeys(ELEMENTWISE.split(), _elementwise)
RULES |= dict.fromkeys(_POOLS.split(), _max_pool) | {"mul": _product, "div": _quotient}
RULES |= dict.fromkeys(("matmul", "bmm", "mm", "einsum", "baddbmm", "addmm", "bilinear"), _product)
RULES |= {"softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp, "normalize": _normalize}
RULES |= {"scaled_dot_product_attention": _attention, "layer_norm": _layer_norm, "group_norm": _group_norm}
RULES |= {"instance_norm": _instance_norm, "batch_norm": _batch_norm, "glu": _glu}
RULES |= {"where": _same_way, "masked_fill": _same_way, "amax": _max, "amin": _max}
LAYERS = ["linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))]
"""Linear as they are, with weights that do not depend on the picture."""
