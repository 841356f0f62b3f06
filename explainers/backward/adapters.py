"""Low-rank adapters (LoRA) as part of their layer: W x + b + s B A x is one affine layer with the weights W + s B A.

Without this, rules other than the epsilon rule treat an adapted network differently from the same network with merged
weights: with adapters of two convolutions and a linear layer, the default map of LRP differed by 85%.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from explainers.backward.lrp_rules import Affine


@dataclass(frozen=True)
class _Term:
    """An affine function of its first layer's input: layers without anything between them, times a constant."""

    output: weakref.ref[Tensor]
    version: int
    layers: tuple[Affine, ...]
    position: int
    factor: Any = 1


class AdapterTerms:
    """The outputs of affine layers in one forward pass that can be terms of an adapted layer."""

    def __init__(self) -> None:
        self._terms: dict[int, _Term] = {}

    def clear(self) -> None:
        self._terms.clear()

    def add_layer(self, output: Tensor, affine: Affine, position: int) -> None:
        """Record the output of a layer, and of the layer before it if nothing is between them."""
        before = self._get(affine.x)
        if before is not None and len(before.layers) == 1 and _follows(before.layers[0], affine):
            self._set(output, (_as_one_layer(before), affine), before.position)
        else:
            self._set(output, (affine,), position)

    def scale(self, output: Tensor, x: Any, factor: Any) -> None:
        """Record output = factor · x for a number or a constant with one element."""
        term = self._get(x)
        is_number = isinstance(factor, (int, float)) or (isinstance(factor, Tensor) and factor.numel() == 1)
        if term is not None and is_number and output.shape == x.shape:
            self._set(output, term.layers, term.position, term.factor * factor)

    def merge(self, a: Any, b: Any, sign: float) -> tuple[Affine, int] | None:
        """Return a + sign · b as one layer with its position if one term is a layer and the other its adapter."""
        terms = self._get(a), self._get(b)
        if terms[0] is None or terms[1] is None or {len(terms[0].layers), len(terms[1].layers)} != {1, 2}:
            return None
        first, second = _as_one_layer(terms[0]), _as_one_layer(terms[1])
        if not _fit(first, second):
            return None
        base = first if len(terms[0].layers) == 1 else second
        bias = first.bias
        if second.bias is not None:
            bias = sign * second.bias if bias is None else bias + sign * second.bias
        weight = first.weight + sign * second.weight
        return replace(base, weight=weight, bias=bias), min(terms[0].position, terms[1].position)

    def _set(self, output: Tensor, layers: tuple[Affine, ...], position: int, factor: Any = 1) -> None:
        self._terms[id(output)] = _Term(weakref.ref(output), output._version, layers, position, factor)

    def _get(self, tensor: Any) -> _Term | None:
        term = self._terms.get(id(tensor))
        output = None if term is None else term.output()
        if term is None or output is None:
            return None
        return term if output is tensor and output._version == term.version else None


def _as_one_layer(term: _Term) -> Affine:
    """Return the term as its first layer with other weights: s B A, and the bias s (B a + b)."""
    first = term.layers[0]
    weight, bias = first.weight, first.bias
    for second in term.layers[1:]:
        pointwise = second.weight.flatten(1)
        weight = (pointwise @ weight.flatten(1)).view(-1, *weight.shape[1:])
        bias = None if bias is None else (pointwise @ bias.flatten()).view(-1, *bias.shape[1:])
        bias = second.bias if bias is None else bias if second.bias is None else bias + second.bias
    return replace(first, weight=term.factor * weight, bias=None if bias is None else term.factor * bias)


def _follows(first: Affine, second: Affine) -> bool:
    """Check whether two layers in a row are one layer of the form of the first."""
    return (
        first.kinds[0] == second.kinds[0]
        and first.groups == 1
        and second.is_pointwise
        and second.weight.shape[1] == len(first.weight)
    )


def _fit(a: Affine, b: Affine) -> bool:
    """Check whether two layers have the same input, form and options."""
    same = a.x is b.x or (a.x.data_ptr() == b.x.data_ptr() and a.x.shape == b.x.shape and a.x.stride() == b.x.stride())
    return (
        same
        and a.version == b.version
        and a.kinds[0] == b.kinds[0]
        and a.weight.shape == b.weight.shape
        and (a.options == b.options)
    )
