"""Relevance instead of gradients: what arrives at a value on the way back is its share of the score.

Linear layers follow a rule of lrp_rules.py. Batch norm is merged into the convolution or linear layer beside it
for the length of the call. Around them, in every spelling:

    activations     hand their relevance on: one input, one output
    sums, means     share it in proportion to what each part adds
    max pools       give it to the winner
    products        give it to the signal; what scales it (a gate, attention weights, 1/σ) counts as a constant
    norms           are linear with their 1/σ constant

Source   Bach et al. 2015; for products, attention and layer norm Arras et al. 2017, Ali et al. 2022 and, for products
         of two signals, Achtibat et al. 2024, section 3.3.2
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers.backward.lrp_rules import (
    FORMULAS,
    Affine,
    RuleMap,
    RuleParameters,
    at_least_float32,
    linear_vjp,
    safe_divide,
    stabilised,
)
from explainers.backward.operations import STRUCTURE, Call, Interception, multi_head, plain_name, with_custom_backward

_WINNERS = (
    "AdaptiveMaxPool1D AdaptiveMaxPool2D AdaptiveMaxPool3D Amax Max Maximum MaxPool2DWithIndices MaxPool2D "
    "MaxPool3DWithIndices MkldnnMaxPool2D"
)
KNOWN = STRUCTURE | frozenset(_WINNERS.split())

RESPONSES = (
    "relu relu6 hardtanh threshold clamp clamp_min clip silu gelu mish hardswish softplus sigmoid hardsigmoid".split()
)
"""Activations whose output is nowhere far below 0, as excitation backprop assumes."""
ACTIVATIONS = [*RESPONSES, *"leaky_relu prelu rrelu elu selu celu tanh softsign".split()]
_GATES = ("sigmoid", "hardsigmoid", "softmax")
_LINEAR = (
    "mean sum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d interpolate"
)
_SUMS = ("add", "sub", "rsub")
_LAYERS = {"linear": "Linear"}
_LAYERS |= {f"conv{n}d": f"Conv{n}d" for n in (1, 2, 3)}
_LAYERS |= {f"conv_transpose{n}d": f"ConvTranspose{n}d" for n in (1, 2, 3)}


class Relevance(Interception):
    """The mode for LRP; with `choose` None for excitation backprop, whose parts count where they are positive."""

    def __init__(
        self, network: nn.Module, method: str, choose: RuleMap | None, settings: RuleParameters, contrast: bool = False
    ):
        super().__init__(network, method, KNOWN)
        self.choose, self.settings, self.contrast = choose, settings, contrast
        self._count = 0
        self._affine: dict[int, tuple[weakref.ref[Tensor], int, Affine, int]] = {}
        self._norms: dict[int, tuple[weakref.ref[Tensor], int, Tensor, Tensor, Tensor]] = {}
        rules: dict[str, Callable[[Call], Any]] = dict.fromkeys(_LAYERS, self._layer)
        rules |= dict.fromkeys(_LINEAR.split(), self._linear)
        rules |= dict.fromkeys(ACTIVATIONS if choose else RESPONSES, self._activation)
        rules |= dict.fromkeys(("matmul", "bmm", "mm", "einsum"), self._bilinear)
        rules |= {"batch_norm": self._batch_norm, "neg": self._activation}
        rules |= dict.fromkeys(_SUMS, self._add) | dict.fromkeys(("div", "rdiv"), self._div) | {"mul": self._mul}
        if choose is not None:
            rules |= {"softmax": self._softmax, "scaled_dot_product_attention": self._attention}
            rules |= {"multi_head_attention_forward": multi_head, "layer_norm": self._layer_norm}
            rules |= {"group_norm": self._group_norm}
        self.rules = {name: self._if_it_depends(rule) for name, rule in rules.items()}

    def forget(self) -> None:
        super().forget()
        self._affine.clear()
        self._norms.clear()

    @staticmethod
    def _if_it_depends(rule: Callable[[Call], Any]) -> Callable[[Call], Any]:
        return lambda call: rule(call) if call.depends else call.call_original()

    # Layers with weights

    def _layer(self, call: Call) -> Tensor:
        names = "stride padding dilation groups".split()
        if "transpose" in call.name:
            names = "stride padding output_padding groups dilation".split()
        x, weight, bias, *rest = call.bind_arguments("input", "weight", "bias", *names)
        if weight.requires_grad or (bias is not None and bias.requires_grad):
            raise self.refuse(f"{call.name} with weights that depend on the picture")
        options = {name: value for name, value in zip(names, rest, strict=True) if value is not None}
        function: Any = F.linear if call.name == "linear" else getattr(torch, call.name)
        # A picture without the batch dimension has its channels first.
        shape = (-1,) if call.name == "linear" else (-1, *[1] * (weight.ndim - 2))
        name, kind = self.layer()
        affine = Affine(
            lambda given, w: function(given, w, **options),
            x,
            weight,
            None if bias is None else bias.view(shape),
            name,
            (_LAYERS[call.name], kind),
            x._version,
        )
        affine = self._with_norm_before(affine, call.name, options)
        position, self._count = self._count, self._count + 1
        result = self._through(affine, call.call_original(), position)
        if "transpose" not in call.name:
            self._affine[id(result)] = weakref.ref(result), result._version, affine, position
        return result

    def _through(self, affine: Affine, output: Tensor, position: int) -> Tensor:
        """The layer's output with the way back that its rule says; `position` counts the layers with weights."""
        formula = FORMULAS[self.choose(affine, position == 0) if self.choose else "excitation"]
        output, x = output.detach(), affine.x
        kept = replace(affine, x=x.detach())
        settings, contrast = self.settings, self.contrast

        def vjp(arriving: Tensor) -> list[Tensor]:
            a, relevance = kept.at_least_float32(), at_least_float32(arriving)
            found = formula(a, relevance, settings)
            if contrast and position == self._count - 1:
                found = found - formula(replace(a, weight=-a.weight), relevance, settings)
            return [found.to(arriving.dtype)]

        return with_custom_backward(lambda _: output, vjp, x)

    def _with_norm_before(self, affine: Affine, operation: str, options: dict[str, Any]) -> Affine:
        """w (s x + t) + b = (w s) x + (w t + b): a batch norm right before the layer, merged."""
        found = self._norms.get(id(affine.x))
        if found is None or not _unchanged(affine.x, *found[:2]):
            return affine
        if operation not in ("linear", "conv2d") or (operation == "linear" and affine.x.ndim != 2):
            return affine
        before, scale, shift = found[2:]
        groups = int(options.get("groups", 1))
        by_output = scale.view(groups, -1).repeat_interleave(len(affine.weight) // groups, 0)
        weight = affine.weight * by_output.view(*affine.weight.shape[:2], *[1] * (affine.weight.ndim - 2))
        constant = shift.view(1, -1, *[1] * (before.ndim - 2)).expand_as(before[:1])
        moved = affine.apply(constant, affine.weight)
        bias = moved if affine.bias is None else moved + affine.bias
        return replace(affine, x=before, weight=weight, bias=bias, version=before._version)

    def _batch_norm(self, call: Call) -> Tensor:
        names = "input running_mean running_var weight bias training momentum eps".split()
        x, mean, variance, weight, bias, training, _, eps = call.bind_arguments(*names, eps=1e-5)
        if training or mean is None:
            raise self.refuse("batch norm with the statistics of its own batch")
        scale = (variance + eps).rsqrt() * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        scale, shift = scale.to(x.dtype), shift.to(x.dtype)
        output = call.call_original()
        found = self._affine.get(id(x))
        if found and _unchanged(x, *found[:2]) and x.ndim == found[2].weight.ndim:
            before, position = found[2:]
            down = (-1, *[1] * (x.ndim - 2))
            moved = shift.view(down) if before.bias is None else before.bias * scale.view(down) + shift.view(down)
            merged = before.weight * scale.view(-1, *[1] * (before.weight.ndim - 1))
            return self._through(replace(before, weight=merged, bias=moved), output, position)
        if self.choose is None:
            # One input, one output: the winner is known.
            result = with_custom_backward(lambda _: output.detach(), lambda arriving: [arriving], x)
        else:
            name, kind = self.layer()
            down = (1, -1, *[1] * (x.ndim - 2))
            kinds = ("BatchNorm", kind)
            alone = Affine(lambda v, w: v * w, x, scale.view(down), shift.view(down), name, kinds, x._version)
            result = self._through(alone, output, -1)
        self._norms[id(result)] = weakref.ref(result), result._version, x, scale, shift
        return result

    # One input

    def _activation(self, call: Call) -> Tensor:
        function, given = call.out_of_place(), call.tensors
        if any(each.requires_grad for each in given[1:]):
            raise self.refuse(f"{call.name} of two values that depend on the picture")
        result = with_custom_backward(lambda x: function(x, *given[1:]), lambda arriving: [arriving], given[0])
        result.grad_fn.gate = call.name in _GATES  # type: ignore[union-attr]
        return result

    def _softmax(self, call: Call) -> Tensor:
        """As a factor it is a constant; as the network's last layer it has no rule."""
        x, dim = call.args[0], call.bind_arguments("input", "dim")[1]

        def vjp(arriving: Tensor) -> list[Tensor]:
            raise self.refuse(
                "softmax on the way from the scores", "which is no sum of parts. Explain the logits", name
            )

        name = self.layer()[0]
        result = with_custom_backward(lambda given: torch.softmax(given, dim), vjp, x)
        result.grad_fn.gate = True  # type: ignore[union-attr]
        return result

    def _linear(self, call: Call) -> Tensor:
        """A sum with fixed weights >= 0: a mean, a pool."""
        return self._shares(call.out_of_place(), call.tensors[0])

    def _shares(self, function: Callable[[Tensor], Tensor], x: Tensor, bias: Tensor | None = None) -> Tensor:
        """f(x) + bias of a linear f, with R_i = x_i sum_j (f_ij / z_j) R_j."""
        kept, positive, epsilon = x.detach().clone(), self.choose is None, self.settings.epsilon

        def vjp(arriving: Tensor) -> list[Tensor]:
            z, back = linear_vjp(function, at_least_float32(kept).clamp(min=0) if positive else at_least_float32(kept))
            z = z if bias is None else stabilised(z + at_least_float32(bias), epsilon)
            return [back(safe_divide(at_least_float32(arriving), z)).to(arriving.dtype)]

        def compute(given: Tensor) -> Tensor:
            found = function(given)
            return found if bias is None else found + bias

        return with_custom_backward(compute, vjp, x)

    def _layer_norm(self, call: Call) -> Tensor:
        names = ("input", "normalized_shape", "weight", "bias", "eps")
        x, shape, weight, bias, eps = call.bind_arguments(*names, eps=1e-5)
        return self._normed(x, tuple(range(-len(shape), 0)), weight, bias, eps)

    def _group_norm(self, call: Call) -> Tensor:
        x, groups, weight, bias, eps = call.bind_arguments("input", "num_groups", "weight", "bias", "eps", eps=1e-5)
        down = (groups, -1, *[1] * (x.ndim - 2))
        parts = x.unflatten(1, (groups, -1))
        weight, bias = (None if each is None else each.view(down) for each in (weight, bias))
        return self._normed(parts, tuple(range(2, parts.ndim)), weight, bias, eps).flatten(1, 2)

    def _normed(
        self, x: Tensor, dims: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        with torch.no_grad():
            scale = (at_least_float32(x).var(dims, unbiased=False, keepdim=True) + eps).rsqrt()
            scale = scale if weight is None else scale * at_least_float32(weight)

        def linear(given: Tensor) -> Tensor:
            return (given - given.mean(dims, keepdim=True)) * scale.to(given.dtype)

        return self._shares(linear, x, None if bias is None else bias.to(x.dtype))

    # Two inputs

    def _add(self, call: Call) -> Tensor:
        a, b, alpha = call.bind_arguments("input", "other", "alpha", alpha=1)
        if call.name == "rsub":
            a, b, alpha = b, a, -1
        elif call.name == "sub":
            alpha = -alpha
        x, y = a, b * alpha if alpha != 1 else b
        parts = [at_least_float32(part) if isinstance(part, Tensor) else torch.as_tensor(part) for part in (x, y)]
        inputs = [each for each in (a, b) if isinstance(each, Tensor)]
        if self.choose is None:
            parts = _exciting(parts, [isinstance(each, Tensor) and each.requires_grad for each in (a, b)])
        whole = parts[0] + parts[1]
        shares = [safe_divide(part.to(whole).expand_as(whole), whole) for part in parts]
        shares = [s for s, each in zip(shares, (a, b), strict=True) if isinstance(each, Tensor)]
        shapes = [each.shape for each in inputs]

        def vjp(arriving: Tensor) -> list[Tensor]:
            each = zip(shares, shapes, strict=True)
            return [(at_least_float32(arriving) * s).sum_to_size(shape).to(arriving.dtype) for s, shape in each]

        total = (x + y).detach()
        return with_custom_backward(lambda *_: total, vjp, *inputs)

    def _mul(self, call: Call) -> Tensor:
        """The relevance goes to the signal, and half to each where neither factor is a gate."""
        a, b = call.bind_arguments("input", "other")
        given = [each for each in (a, b) if isinstance(each, Tensor)]
        signals = [each for each in given if each.requires_grad]
        if len(signals) == 2 and a is not b:
            gates = [_is_gate(each) for each in signals]
            if gates[0] != gates[1]:
                signals = [signals[gates.index(False)]]
            elif a.numel() != b.numel():
                signals = [max(signals, key=Tensor.numel)]
        product, shapes = (a * b).detach(), [each.shape for each in signals]

        def vjp(arriving: Tensor) -> list[Tensor]:
            return [(arriving / len(shapes)).sum_to_size(shape) for shape in shapes]

        return with_custom_backward(lambda *_: product, vjp, *signals)

    def _div(self, call: Call) -> Tensor:
        """What divides counts as a constant."""
        a = call.args[0]
        below = call.name == "rdiv" or not (isinstance(a, Tensor) and a.requires_grad)
        if below or call.kwargs.get("rounding_mode"):
            raise self.refuse("a division by what depends on the picture")
        quotient, shape = call.out_of_place()(*(each.detach() for each in call.tensors)), a.shape
        return with_custom_backward(lambda _: quotient, lambda arriving: [arriving.sum_to_size(shape)], a)

    def _bilinear(self, call: Call) -> Tensor:
        """A product of matrices: constant weights, attention weights, or half to each of two signals."""
        function, given = call.out_of_place(), call.tensors
        signals = [i for i, each in enumerate(given) if each.requires_grad]
        gates = [i for i in signals if _is_gate(given[i])]
        if len(signals) == 2 and len(gates) == 1:
            signals = [i for i in signals if i not in gates]
        if self.choose is None:
            raise self.refuse(call.name, "whose factors are no weights of excitation")
        fixed = [each.detach().clone() for each in given]

        def of(i: int) -> Callable[[Tensor], Tensor]:
            return lambda x: function(*(x if k == i else each.to(x.dtype) for k, each in enumerate(fixed)))

        found = [self._shares(of(i), given[i]) for i in signals]
        if len(found) == 1:
            return found[0]
        return with_custom_backward(
            lambda *_: function(*fixed), lambda arriving: [arriving / len(found)] * len(found), *found
        )

    def _attention(self, call: Call) -> Tensor:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        query, key, value, mask, _, causal, scale, shared = call.bind_arguments(
            *names, is_causal=False, enable_gqa=False
        )
        query, key = query.detach().clone(), key.detach().clone()
        mask = None if mask is None else mask.detach()
        own = mask.to if mask is not None and mask.dtype != torch.bool else None

        def weighted(given: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(
                query.to(given.dtype),
                key.to(given.dtype),
                given,
                own(given.dtype) if own else mask,
                is_causal=causal,
                scale=scale,
                enable_gqa=shared,
            )

        return self._shares(weighted, value)


def _exciting(parts: list[Tensor], own: list[bool]) -> list[Tensor]:
    """What each term adds where it is positive; a constant adds nothing, and all of the sum is the other's."""
    if not all(own):
        return [
            torch.ones_like(part) if mine else torch.zeros_like(part) for part, mine in zip(parts, own, strict=True)
        ]
    return [part.clamp(min=0) for part in parts]


def _unchanged(tensor: Tensor, known: weakref.ref[Tensor], version: int) -> bool:
    return known() is tensor and tensor._version == version


def _is_gate(tensor: Tensor) -> bool:
    """Whether a sigmoid or softmax made it, seen through reshaping."""
    node = tensor.grad_fn
    while node is not None:
        if plain_name(node) == "Custom":
            return bool(node.gate)  # type: ignore[attr-defined]
        if plain_name(node) not in STRUCTURE or len(node.next_functions) != 1:
            return False
        node = node.next_functions[0][0]
    return False
