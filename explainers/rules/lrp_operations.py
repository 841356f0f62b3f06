"""The function mode of LRP, in which every operation redistributes relevance instead of gradients.

Layers with weights and batch norm follow lrp_layers.py. All other operations, in every spelling:

    activations     pass relevance on unchanged: one input, one output
    sums, means     R_i = z_i / z R, in proportion to each term
    max pools       to the winner
    products        to the signal; gates (also resized or scaled), attention weights and 1/σ are constants
    norms           linear, with constant 1/σ

Operations that `decompositions` splits into single ones follow the same rules.

Source   Bach et al. 2015; products, attention, layer norm: Arras et al. 2017, Ali et al. 2022; products of two signals:
         Achtibat et al. 2024, section 3.3.2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from explainers.call.scores import at_least_float32
from explainers.rules.decompositions import DECOMPOSED, attention, normalize_with
from explainers.rules.lrp_layers import LayerRelevance, mark_linear
from explainers.rules.lrp_rules import linear_vjp, safe_divide, stabilize
from explainers.rules.operations import STRUCTURE, Call, get_mark, mark, with_custom_backward

_WINNERS = (
    "AdaptiveMaxPool1D AdaptiveMaxPool2D AdaptiveMaxPool3D Amax Amin Kthvalue Max Maximum MaxPool2DWithIndices "
    "MaxPool2D MaxPool3DWithIndices Median Min Minimum MkldnnMaxPool2D Sort Topk"
)

NEARLY_POSITIVE = (
    "relu relu6 hardtanh threshold clamp clamp_min clip silu gelu mish hardswish softplus sigmoid hardsigmoid".split()
)
NEARLY_POSITIVE += ["square", "sqrt", "abs"]
"""Activations with outputs >= 0 or slightly below, as excitation backprop assumes."""
_SIGNED = "leaky_relu prelu rrelu elu selu celu tanh softsign erf hardshrink softshrink tanhshrink"
ACTIVATIONS = [*NEARLY_POSITIVE, *_SIGNED.split()]
_GATES = ("sigmoid", "hardsigmoid")
_POOLS = [f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)]
_LINEAR = ("mean", "sum", "interpolate", "upsample", "fold", *_POOLS)
_EXCITING = ("addcmul", "glu", "lerp", "norm")
"""Decompositions that are also valid for excitation backprop, because their inputs are nearly positive."""
_PRODUCTS = ("matmul", "bmm", "mm", "mv", "dot", "inner", "outer", "tensordot", "einsum")
_SUMS = ("add", "sub", "rsub")


class Relevance(LayerRelevance):
    """The mode of LRP, or without a rule map of excitation backprop, which considers only positive contributions."""

    known = STRUCTURE | frozenset(_WINNERS.split())
    absorbing: tuple[str, ...] = ()
    """Operations that absorb relevance besides biases and ε, in the words of findings."""

    def operations(self) -> dict[str, Callable[[Call], Any]]:
        rules = super().operations() | dict.fromkeys(_LINEAR, self._linear)
        rules |= dict.fromkeys(ACTIVATIONS if self.rule_map else NEARLY_POSITIVE, self._activation)
        rules |= dict.fromkeys(_PRODUCTS, self._bilinear) | {"neg": self._activation, "pow": self._power}
        rules |= dict.fromkeys(_SUMS, self._add) | dict.fromkeys(("div", "rdiv"), self._div) | {"mul": self._mul}
        if self.rule_map is None:
            return {name: DECOMPOSED[name] for name in _EXCITING} | rules
        rules |= dict.fromkeys(("softmax", "rsqrt", "reciprocal"), self._factor)
        rules |= {"layer_norm": self._norm_layer, "group_norm": self._norm_layer}
        return DECOMPOSED | rules | {"scaled_dot_product_attention": self._attention}

    # One input

    def _activation(self, call: Call) -> Tensor:
        function, (x, *others) = call.out_of_place(), call.tensors
        if any(other.requires_grad for other in others):
            raise self.refuse(f"{call.name} of two values that depend on the image")
        result = with_custom_backward(lambda x: function(x, *others), lambda relevance: [relevance], x)
        return mark(result, "gate") if call.name in _GATES else result

    def _power(self, call: Call) -> Tensor:
        """Treat x^p as an activation, or for negative p as a factor."""
        exponent = call.bind_arguments("input", "exponent")[1]
        positive = bool((exponent > 0).all()) if isinstance(exponent, Tensor) else exponent > 0
        if positive:
            return self._activation(call)
        if self.rule_map is None:
            raise self.refuse("pow with a negative exponent")
        return self._factor(call)

    def _factor(self, call: Call) -> Tensor:
        """Treat a softmax or reciprocal as a constant factor; between logits and output it has no rule."""
        name, what, why = self.layer()[0], "a division by a value that depends on the image", ""
        if call.name == "softmax":
            what, why = "a softmax between logits and output", "which has no LRP rule; explain the logits instead"

        def redistribute(relevance: Tensor) -> list[Tensor]:
            raise self.refuse(what, why, name)

        result = with_custom_backward(call.out_of_place(), redistribute, *call.tensors)
        return mark(result, "weights" if call.name == "softmax" else "gate")

    def _linear(self, call: Call) -> Tensor:
        """Apply the rule for a sum with constant weights >= 0, such as a mean or a pool."""
        x = call.tensors[0]
        return mark_linear(self._proportional(call.out_of_place(), x), x, gates=True)

    def _proportional(self, function: Callable[[Tensor], Tensor], x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return f(x) + bias for a linear f, with R_i = x_i sum_j (f_ij / z_j) R_j."""
        detached, positive = x.detach().clone(), self.rule_map is None
        epsilon, zero_bias = self.parameters.epsilon, self.parameters.zero_bias

        def redistribute(relevance: Tensor) -> list[Tensor]:
            values, r = at_least_float32(detached), at_least_float32(relevance)
            if positive:
                return [_redistribute_by_sign(function, values, r).to(relevance.dtype)]
            z, backward = linear_vjp(function, values)
            z = z if bias is None or zero_bias else z + at_least_float32(bias)
            z = z if bias is None else stabilize(z, epsilon)
            return [backward(safe_divide(r, z)).to(relevance.dtype)]

        def compute(x: Tensor) -> Tensor:
            z = function(x)
            return z if bias is None else z + bias

        return mark_linear(with_custom_backward(compute, redistribute, x), x)

    def _norm_layer(self, call: Call) -> Tensor:
        return normalize_with(call, self._normalize)

    def _normalize(
        self, x: Tensor, dims: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        with torch.no_grad():
            scale = (at_least_float32(x).var(dims, unbiased=False, keepdim=True) + eps).rsqrt()
            scale = scale if weight is None else scale * at_least_float32(weight)

        def linear(x: Tensor) -> Tensor:
            return (x - x.mean(dims, keepdim=True)) * scale.to(x.dtype)

        return self._proportional(linear, x, None if bias is None else bias.to(x.dtype))

    # Two inputs

    def _add(self, call: Call) -> Tensor:
        a, b, alpha = call.bind_arguments("input", "other", "alpha", alpha=1)
        if call.name == "rsub":
            a, b, alpha = b, a, -1
        elif call.name == "sub":
            alpha = -alpha
        if (adapted := self.merge_adapter(a, b, alpha)) is not None:
            return adapted
        x, y = a, b * alpha if alpha != 1 else b
        terms = [at_least_float32(term) if isinstance(term, Tensor) else torch.as_tensor(term) for term in (x, y)]
        inputs = [term for term in (a, b) if isinstance(term, Tensor)]
        depends = [isinstance(term, Tensor) and term.requires_grad for term in (a, b)]
        if not all(depends) and (self.rule_map is None or self.parameters.zero_bias):
            terms = [torch.full_like(term, own) for term, own in zip(terms, depends, strict=True)]
        elif self.rule_map is None:
            terms = [term.clamp(min=0) for term in terms]
        z = terms[0] + terms[1]
        shares = [safe_divide(term.to(z).expand_as(z), z) for term in terms]
        shares = [share for share, term in zip(shares, (a, b), strict=True) if isinstance(term, Tensor)]
        shapes = [term.shape for term in inputs]

        def redistribute(relevance: Tensor) -> list[Tensor]:
            r, pairs = at_least_float32(relevance), zip(shares, shapes, strict=True)
            return [(r * share).sum_to_size(shape).to(relevance.dtype) for share, shape in pairs]

        total = (x + y).detach()
        result = with_custom_backward(lambda *_: total, redistribute, *inputs)
        if depends == [True, False]:
            self.adapters.shift(result, a, b, alpha)
        return mark_linear(result, *inputs, gates=True)

    def _mul(self, call: Call) -> Tensor:
        """Redistribute to the signal, or half to each factor if neither is a gate."""
        a, b = call.bind_arguments("input", "other")
        signals = [factor for factor in (a, b) if isinstance(factor, Tensor) and factor.requires_grad]
        if len(signals) == 2 and a is not b:
            gates = [_is_gate(signal) for signal in signals]
            if gates[0] != gates[1]:
                signals = [signals[gates.index(False)]]
            elif a.numel() != b.numel():
                signals = [max(signals, key=Tensor.numel)]
        product, shapes = (a * b).detach(), [signal.shape for signal in signals]

        def redistribute(relevance: Tensor) -> list[Tensor]:
            return [(relevance / len(shapes)).sum_to_size(shape) for shape in shapes]

        result = with_custom_backward(lambda *_: product, redistribute, *signals)
        if len(signals) == 1:
            self.adapters.scale(result, *((a, b) if signals[0] is a else (b, a)))
        return mark_linear(result, a, b, gates=True)

    def _div(self, call: Call) -> Tensor:
        """Treat the denominator as a constant."""
        a = call.args[0]
        inverse = call.name == "rdiv" or not (isinstance(a, Tensor) and a.requires_grad)
        if call.kwargs.get("rounding_mode") or (inverse and self.rule_map is None):
            raise self.refuse("a division by a value that depends on the image")
        if inverse:
            return self._factor(call)
        quotient, shape = call.out_of_place()(*(tensor.detach() for tensor in call.tensors)), a.shape
        result = with_custom_backward(lambda _: quotient, lambda relevance: [relevance.sum_to_size(shape)], a)
        return mark_linear(result, a, gates=True)

    def _bilinear(self, call: Call) -> Tensor:
        """Redistribute to the factor that is neither attention weights nor constant, or half to each of two signals."""
        function, factors = call.out_of_place(), call.tensors
        signals = [i for i, factor in enumerate(factors) if factor.requires_grad]
        gates = [i for i in signals if _is_gate(factors[i])]
        if len(signals) == 2 and len(gates) == 1:
            signals = [i for i in signals if i not in gates]
        if self.rule_map is None:
            raise self.refuse(call.name, "whose factors are not excitatory weights")
        constants = [factor.detach().clone() for factor in factors]

        def linear_in(i: int) -> Callable[[Tensor], Tensor]:
            return lambda x: function(*(x if k == i else constant.to(x.dtype) for k, constant in enumerate(constants)))

        outputs = [self._proportional(linear_in(i), factors[i]) for i in signals]
        if len(outputs) == 1:
            return outputs[0]
        count = len(outputs)
        return with_custom_backward(
            lambda *_: function(*constants), lambda relevance: [relevance / count] * count, *outputs
        )

    def _attention(self, call: Call) -> Tensor:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        query, key, value, mask, _, causal, scale, grouped = call.bind_arguments(
            *names, is_causal=False, enable_gqa=False
        )
        query, key = query.detach().clone(), key.detach().clone()
        mask = None if mask is None else mask.detach()

        def weighted(values: Tensor) -> Tensor:
            dtype = values.dtype
            added = mask if mask is None or mask.dtype == torch.bool else mask.to(dtype)
            return F.scaled_dot_product_attention(
                query.to(dtype), key.to(dtype), values, added, is_causal=causal, scale=scale, enable_gqa=grouped
            )

        return self._proportional(weighted, value)


class AttentionRelevance(Relevance):
    """The mode of AttnLRP, in which relevance also flows through attention weights and gates.

        softmax s of x        R_i = x_i (R_s,i − s_i sum_j R_s,j)     Proposition 3.1; the rest is absorbed
        products of signals   R_a = a_i b_j R_ij / (2 z_ij + ε)       Proposition 3.3; q kᵀ and A v
        gated products        half to each factor                     section 3.3.2
        norms                 linear, with constant 1/σ               Proposition 3.4, as in LRP
        activations           pass relevance on unchanged             section 3.2, as in LRP

    All other operations have the rules of LRP. CP-LRP, with constant attention weights, is the mode of LRP itself.

    Source   Achtibat et al. 2024, arXiv:2402.05602
    """

    absorbing = ("softmaxes",)

    def operations(self) -> dict[str, Callable[[Call], Any]]:
        return super().operations() | {"softmax": self._softmax, "scaled_dot_product_attention": attention}

    def _softmax(self, call: Call) -> Tensor:
        """Return the softmax, with relevance for its logits; a logit of -inf has none."""
        function, (x, *_) = call.out_of_place(), call.tensors
        dim = call.bind_arguments("input", "dim")[1]
        if dim is None:
            raise self.refuse("softmax without a dimension", "which torch has deprecated; set dim")
        with torch.no_grad():
            values, shares = at_least_float32(x).clone(), at_least_float32(function(x))
        values = values.masked_fill(values == -torch.inf, 0)

        def redistribute(relevance: Tensor) -> list[Tensor]:
            r = at_least_float32(relevance)
            return [(values * (r - shares * r.sum(dim, keepdim=True))).to(relevance.dtype)]

        return with_custom_backward(function, redistribute, x)

    def _activation(self, call: Call) -> Tensor:
        """Pass relevance on unchanged, also into a sigmoid, which is a constant gate in LRP."""
        return mark(super()._activation(call), "")

    def _bilinear(self, call: Call) -> Any:
        """Redistribute half to each of two signals, in proportion to the summands of z."""
        function, factors = call.out_of_place(), call.tensors
        signals = [factor for factor in factors if factor.requires_grad]
        if len(factors) != 2 or len(signals) != 2:
            return super()._bilinear(call)
        a, b = (factor.detach().clone() for factor in factors)
        epsilon = self.parameters.epsilon

        def redistribute(relevance: Tensor) -> list[Tensor]:
            left, right, r = at_least_float32(a), at_least_float32(b), at_least_float32(relevance)
            z, to_left = linear_vjp(lambda x: function(x, right), left)
            _, to_right = linear_vjp(lambda x: function(left, x), right)
            s = safe_divide(r, stabilize(2 * z, epsilon))
            return [to_left(s).to(relevance.dtype), to_right(s).to(relevance.dtype)]

        return with_custom_backward(function, redistribute, *factors)


def _redistribute_by_sign(function: Callable[[Tensor], Tensor], values: Tensor, probability: Tensor) -> Tensor:
    """Redistribute means >= 0 to positive inputs, and negative means, excited by negative weights, to negative ones."""
    z, redistribute = linear_vjp(function, values.clamp(min=0))
    z_negative, redistribute_negative = linear_vjp(function, values.clamp(max=0))
    below = z + z_negative < 0
    positive = redistribute(safe_divide(probability.masked_fill(below, 0), z))
    return positive + redistribute_negative(safe_divide(probability.masked_fill(~below, 0), z_negative))


def _is_gate(tensor: Tensor) -> bool:
    """Check whether a tensor is the output of a sigmoid or reciprocal, reshaped or not, or only attention weights."""
    return get_mark(tensor) in ("gate", "weights")
