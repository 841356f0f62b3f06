"""The rules of DeepLIFT: for each nonlinear operation, multipliers m with  sum_i m_i Δx_i = Δy  exactly.

    elementwise f      m = Δf / Δx, and the gradient where Δx = 0                  (the rescale rule)
    max pool           Δmax to the winner, by its own Δx
    product a b        m_a = (b + b') / 2 and m_b = (a + a') / 2: the mean over both orders of change
    quotient a / b     m_a = 1 / b̄ and m_b = −ȳ / b̄, with means b̄ = (b + b') / 2: the product rule of a = y b, solved
    norms, softmax     decomposed into products, quotients, elementwise powers, exponentials and log sum exp

The multipliers of the quotient lie between those at its two ends. For a product with 1 / b they would not: in a layer
norm of a constant baseline, 1 / σ' is 1 / sqrt(eps), and a few such layers give attributions of 1e25 that cancel.

A rule gets the call on the image and the corresponding tensors of the baseline; a' is the value of a on the baseline.

Source   Shrikumar et al. 2017, eqs. 1 to 3 and 9 (rescale), arXiv:1704.02685. Products: the two-player Shapley value
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.call.scores import at_least_float32
from explainers.rules.operations import Call, get_mark, mark, vjp, with_custom_backward

ELEMENTWISE = (
    "abs asinh atan ceil celu clamp clamp_max clamp_min clip cos cosh elu erf erfc exp exp2 expm1 floor gelu "
    "hardshrink hardsigmoid hardswish hardtanh leaky_relu log log10 log1p log2 log_sigmoid mish pow prelu rdiv "
    "reciprocal relu relu6 round rpow rsqrt selu sigmoid sign silu sin sinh softplus softshrink softsign sqrt square "
    "tanh tanhshrink threshold trunc"
)
_POOLS = "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"

Rule = Callable[[Call, list[Tensor]], Any]


# One input


def slope(function: Callable[[Tensor], Tensor], x: Tensor, before: Tensor) -> Tensor:
    """Return Δf / Δx per element, or the mean of the gradients at both ends if Δx is relatively tiny."""
    x, before = at_least_float32(x), at_least_float32(before)
    change = x - before
    tiny = (change.abs() <= torch.finfo(x.dtype).eps ** 0.5 * torch.maximum(x.abs(), before.abs())) | (x == before)
    with torch.no_grad():
        quotient = (function(x) - function(before)) / torch.where(tiny, 1, change)
    if not bool(tiny.any()):
        return quotient
    gradients = [_gradient(function, at) for at in (x, before)]
    mean = sum(gradients, torch.zeros_like(x)) / 2
    # The square root has an infinite slope at 0. If nothing changes there, any finite multiplier is exact.
    return torch.where(tiny, torch.where(mean.isfinite(), mean, 0), quotient)


def _gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return df / dx per element of an elementwise f."""
    value, backward = vjp(function, at)
    return backward(torch.ones_like(value))


def elementwise(function: Callable[[Tensor], Tensor], x: Tensor, before: Tensor) -> Tensor:
    """Return f(x) with the rescale rule as its backward."""
    multipliers = slope(function, x, before)
    return with_custom_backward(function, lambda g: [(at_least_float32(g) * multipliers).to(g.dtype)], x)


def _elementwise(call: Call, before: list[Tensor]) -> Tensor:
    x, *others = call.tensors
    if any(other.requires_grad for other in others):
        raise call.mode.refuse(f"{call.name} of two values that depend on the image")
    function = call.out_of_place()
    result = elementwise(lambda x: function(x, *(other.detach().to(x.dtype) for other in others)), x, before[0])
    # A negative power of x is that of 1 / x.
    exponent = call.bind_arguments("input", "exponent")[1] if call.name == "pow" else 0
    negative = isinstance(exponent, (int, float)) and exponent < 0
    return mark(result, "inverse") if negative or call.name in ("rsqrt", "reciprocal", "rdiv") else result


def _winner(x: Tensor, before: Tensor, winner: Tensor, winner_before: Tensor) -> Tensor:
    """Return the maxima at the indices `winner` of the last dimension, with Δmax = m_p Δx_p at one element p of each.

    This is the image's winner if the maximum increased, the baseline's if it decreased, and preferably an element that
    won both times: in a constant baseline all elements tie. Then |Δx_p| >= |Δmax|, so no multiplier is above 1.
    """
    now, then = at_least_float32(x.detach()), at_least_float32(before)
    top, top_before = now.gather(-1, winner), then.gather(-1, winner_before)
    at = torch.where(top >= top_before, winner, winner_before)
    at = torch.where(now.gather(-1, winner_before) == top, winner_before, at)
    at = torch.where(then.gather(-1, winner) == top_before, winner, at)
    change = (now - then).gather(-1, at)
    multipliers = torch.where(change == 0, 1, (top - top_before) / torch.where(change == 0, 1, change))

    def scatter(g: Tensor) -> list[Tensor]:
        gradient = torch.zeros_like(now).scatter_add_(-1, at, at_least_float32(g) * multipliers)
        return [gradient.to(g.dtype)]

    return with_custom_backward(lambda x: x.gather(-1, winner), scatter, x)


def _max_pool(call: Call, before: list[Tensor]) -> Any:
    if call.kwargs.get("return_indices"):
        raise call.mode.refuse(f"{call.name} that returns indices")
    function, x = getattr(F, call.name), call.tensors[0]
    args, kwargs = call.args[1:], {**call.kwargs, "return_indices": True}
    kwargs.pop("input", None)
    dims = int(call.name[-2])
    _, winner = function(x.detach(), *args, **kwargs)
    _, winner_before = function(before[0], *args, **kwargs)
    flat = [tensor.flatten(-dims) for tensor in (x, before[0], winner, winner_before)]
    return _winner(flat[0], flat[1], flat[2], flat[3]).view(winner.shape)


def _max(call: Call, before: list[Tensor]) -> Any:
    """Treat maxima and minima over dimensions as a max pool, and return indices if torch does."""
    x, dims, keepdim = call.bind_arguments("input", "dim", "keepdim", keepdim=False)
    if isinstance(dims, Tensor) or "other" in call.kwargs:
        return _larger(call, before)
    sign = 1 if call.name in ("amax", "max") else -1
    reduced = [*range(x.ndim)] if dims is None or dims == () else dims if isinstance(dims, (tuple, list)) else [dims]
    reduced = [d % x.ndim for d in reduced]
    order = [d for d in range(x.ndim) if d not in reduced] + reduced
    values, values_before = (sign * tensor.permute(order).flatten(-len(reduced)) for tensor in (x, before[0]))
    winner, winner_before = (each.detach().argmax(-1, keepdim=True) for each in (values, values_before))
    result = sign * _winner(values, values_before, winner, winner_before)[..., 0]
    result = result.view([1 if d in reduced else n for d, n in enumerate(x.shape)]) if keepdim else result
    if call.name in ("amax", "amin") or dims is None:
        return result
    with torch.no_grad():
        original = call.call_original()
    return type(original)((result, original[1]))


def _larger(call: Call, before: list[Tensor]) -> Tensor:
    """Write the larger of a and b as (a + b + |a − b|) / 2; the smaller has the opposite sign."""
    sign = 1 if call.name.startswith("max") else -1
    a, b = call.tensors
    change = sign * slope(torch.abs, at_least_float32(a) - b, at_least_float32(before[0]) - before[1])

    def share(g: Tensor) -> list[Tensor]:
        return [
            (at_least_float32(g) * (1 + own) / 2).sum_to_size(x.shape).to(x.dtype)
            for x, own in ((a, change), (b, -change))
        ]

    return with_custom_backward(call.out_of_place(), share, a, b)


# Several inputs


def constant_weights(call: Call) -> Any:
    if any(tensor.requires_grad for tensor in call.tensors[1:]):
        raise call.mode.refuse(f"{call.name} with weights that depend on the image")
    return call.call_original()


def _product(call: Call, before: list[Tensor]) -> Tensor:
    """The multiplier of one factor is the mean of the other; the product is linear if only one depends on the image."""
    inputs = call.tensors
    if sum(factor.requires_grad for factor in inputs) < 2:
        return call.call_original() if not call.in_place else call.out_of_place()(*inputs)
    if any(factor.is_complex() for factor in inputs):
        raise call.mode.refuse(f"{call.name} of complex numbers")
    if len(inputs) > 2:
        raise call.mode.refuse(f"{call.name} of more than two values that depend on the image")
    if call.name == "mul":
        inverse = [get_mark(factor) == "inverse" for factor in inputs]
        if inverse[0] != inverse[1]:
            first, second = (1, 0) if inverse[0] else (0, 1)
            return scale_by_inverse(inputs[first], inputs[second], before[first], before[second])
    function = call.out_of_place()
    means = [(at_least_float32(a) + at_least_float32(b)) / 2 for a, b in zip(inputs, before, strict=True)]

    def backward(g: Tensor) -> list[Tensor]:
        with torch.enable_grad(), torch.autocast(g.device.type, enabled=False):
            leaves = [mean.clone().requires_grad_() for mean in means]
            value = function(*leaves)
        return [gradient.to(g.dtype) for gradient in torch.autograd.grad(value, leaves, at_least_float32(g))]

    return with_custom_backward(function, backward, *inputs)


def scale_by_inverse(x: Tensor, scale: Tensor, before: Tensor, scale_before: Tensor) -> Tensor:
    """Return x s with s = 1 / b, by the rule for quotients: m_x = 2 s s' / (s + s') and m_s = (x' s' + x s) / (s + s').

    This is a product whose two orders of change have the weights s' / (s + s') and s / (s + s'), or 1/2 each if b
    changes sign.
    """
    a, a_before, s, s_before = (at_least_float32(each) for each in (x, before, scale, scale_before))
    same = (s > 0) == (s_before > 0)
    total = torch.where(same, s + s_before, 1)
    first, second = (torch.where(same, each / total, 0.5) for each in (s_before, s))

    def backward(g: Tensor) -> list[Tensor]:
        g32 = at_least_float32(g)
        return [
            (g32 * (first * s + second * s_before)).sum_to_size(x.shape).to(g.dtype),
            (g32 * (first * a_before + second * a)).sum_to_size(scale.shape).to(g.dtype),
        ]

    return with_custom_backward(torch.mul, backward, x, scale)


def _quotient(call: Call, before: list[Tensor]) -> Tensor:
    """Write a / b as a times 1 / b."""
    a, b = call.bind_arguments("input", "other")
    if call.kwargs.get("rounding_mode"):
        raise call.mode.refuse("division with rounding")
    if not isinstance(b, Tensor) or not b.requires_grad:
        return call.out_of_place()(*call.tensors)
    inverse = mark(elementwise(torch.reciprocal, b, before[-1]), "inverse")
    if not isinstance(a, Tensor) or not a.requires_grad:
        return a * inverse
    return scale_by_inverse(a, inverse, before[0], before[-1].reciprocal())


def _logsumexp_of(x: Tensor, before: Tensor, dim: int) -> Tensor:
    """Return log sum exp x, with multipliers m_i = L(exp x_i, exp x'_i) / L(S, S').

    L(a, b) = (a − b) / log(a / b) is the logarithmic mean.

    This is exact, since sum_i L(exp x_i, exp x'_i) Δx_i = S − S'. It is written in fractions of the larger sum, which
    neither overflow nor cancel for any distance between image and baseline.
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
    """Return L(1, exp(−gap)) = (1 − exp(−gap)) / gap, or 1 for a gap of 0."""
    return torch.where(gap == 0, 1, -torch.expm1(-gap) / torch.where(gap == 0, 1, gap))


def _softmax(call: Call, before: list[Tensor]) -> Tensor:
    """Return exp(x − log sum exp x)."""
    x, dim = call.tensors[0], call.bind_arguments("input", "dim")[1]
    return elementwise(torch.exp, x - _logsumexp_of(x, before[0], dim), before[0].log_softmax(dim))


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


def _batch_norm(call: Call, before: list[Tensor]) -> Tensor:
    if call.bind_arguments("input", "running_mean", "running_var", "weight", "bias", "training", training=False)[5]:
        raise call.mode.refuse("batch norm with batch statistics")
    return call.call_original()


def is_discrete(tensor: Tensor) -> bool:
    """Return whether a tensor contains conditions or indices."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def select(call: Call, before: list[Tensor]) -> Any:
    """Treat a selection as linear if its conditions and indices equal those of the baseline."""
    chosen = list(filter(is_discrete, call.tensors))
    if not all(map(torch.equal, chosen, before)):
        verb = "indices differ" if chosen[0].dtype != torch.bool else "condition differs"
        raise call.mode.refuse(call.name, f"whose {verb} between input and baseline")
    return call.out_of_place()(*call.tensors) if call.in_place else call.call_original()


RULES: dict[str, Rule] = dict.fromkeys(ELEMENTWISE.split(), _elementwise)
RULES |= dict.fromkeys(_POOLS.split(), _max_pool) | {"mul": _product, "div": _quotient}
RULES |= dict.fromkeys("bilinear bmm dot einsum inner matmul mm mv outer tensordot".split(), _product)
RULES |= {"softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp}
RULES |= {"batch_norm": _batch_norm}
RULES |= dict.fromkeys(("amax", "amin", "max", "min"), _max) | dict.fromkeys(("maximum", "minimum"), _larger)
LAYERS = ["linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))]
"""Operations that are linear if their weights do not depend on the image."""
SELECTIONS = ("where", "masked_fill", "masked_select", "gather", "index_select", "take_along_dim", "getitem")
"""Operations that are linear if their conditions and indices do not depend on the image."""
