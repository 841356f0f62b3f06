"""Low-rank adapters as part of their layer: LoRA, W x + b + s B A x, is one affine layer with the weights W + s B A.

DoRA, W x + b + (m - 1) (W x + b - b) + m s B A x, is one with the weights m (W + s B A), for one m per output channel.

Without this, rules other than the epsilon rule treat an adapted network differently from the same network with merged
weights: with adapters of two convolutions and a linear layer, the default map of LRP differed by 85%.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from explainers.rules.lrp_rules import Affine
from explainers.rules.operations import Outputs

Positions = tuple[int, int]
"""The numbers of the first and the last layer with weights that one affine layer stands for."""


@dataclass(frozen=True)
class _Term:
    """An affine function of a layer's input, as one layer: the layer with the weights `base`, an adapter, or their sum.

    `is_single` is True for one layer, which the second layer of an adapter may follow.
    """

    affine: Affine
    positions: Positions
    base: Tensor | None = None
    is_adapted: bool = False
    is_single: bool = False


class AdapterTerms(Outputs[_Term]):
    """The outputs in one forward pass that can be terms of an adapted layer."""

    def add_layer(self, output: Tensor, affine: Affine, position: int, weight: Tensor) -> None:
        """Record the output of a layer with these weights, and of the layer before it if nothing is between them."""
        before = self.get(affine.x)
        if before is not None and before.is_single and _follows(before.affine, affine):
            self[output] = _Term(_after(before.affine, affine), (before.positions[0], position), is_adapted=True)
        else:
            self[output] = _Term(affine, (position, position), base=weight, is_single=True)

    def scale(self, output: Tensor, x: Any, factor: Any) -> None:
        """Record output = factor · x for a number, or a constant with one element for all or for each channel."""
        term = self.get(x)
        if term is None or output.shape != x.shape or (value := _by_channel(term.affine, factor)) is None:
            return
        weight, bias = term.affine.weight * value.unsqueeze(1), term.affine.bias
        affine = replace(term.affine, weight=weight, bias=None if bias is None else bias * value)
        self[output] = replace(term, affine=affine)

    def shift(self, output: Tensor, x: Any, constant: Any, sign: float) -> None:
        """Record output = x + sign · constant for a number, or a constant as in `scale`."""
        term = self.get(x)
        if term is None or output.shape != x.shape or (value := _by_channel(term.affine, constant)) is None:
            return
        bias = 0 if term.affine.bias is None else term.affine.bias
        self[output] = replace(term, affine=replace(term.affine, bias=bias + sign * value))

    def merge(self, a: Any, b: Any, sign: float) -> tuple[Affine, Positions] | None:
        """Return a + sign · b as one layer with its positions, if one is a layer and the other its adapter."""
        first, second = self.get(a), self.get(b)
        if first is None or second is None or not (first.is_adapted or second.is_adapted):
            return None
        bases = [term.base for term in (first, second) if term.base is not None]
        if not bases or not _is_same(bases[0], bases[-1]) or not _fit(first.affine, second.affine):
            return None
        one, two = first.affine, second.affine
        bias = one.bias
        if two.bias is not None:
            bias = sign * two.bias if bias is None else bias + sign * two.bias
        named = one if first.base is not None else two
        pairs = zip(first.positions, second.positions, strict=True)
        start, end = (choose(pair) for choose, pair in zip((min, max), pairs, strict=True))
        return replace(named, weight=one.weight + sign * two.weight, bias=bias), (start, end)

    def add_merged(self, output: Tensor, affine: Affine, positions: Positions, a: Any, b: Any) -> None:
        """Record the output of `merge` of a and b, to which more adapters may be added."""
        base = next(term.base for term in (self.get(a), self.get(b)) if term is not None and term.base is not None)
        self[output] = _Term(affine, positions, base=base, is_adapted=True)


def _by_channel(affine: Affine, constant: Any) -> Tensor | None:
    """Return a constant that is added to the output of a layer, or multiplied by it, in the shape of the layer's bias.

    None if it depends on the image, or is not constant over positions and rows.
    """
    channels = (len(affine.weight), *[1] * (affine.weight.ndim - 2))
    if isinstance(constant, (int, float)):
        return affine.weight.new_full(channels, constant)
    if not isinstance(constant, Tensor) or constant.requires_grad:
        return None
    if constant.numel() == 1:
        return constant.reshape([1] * len(channels)).expand(channels)
    shape = [1] * (len(channels) - constant.ndim) + [*constant.shape]
    is_constant = shape[-len(channels) :] == [*channels] and constant.numel() == channels[0]
    return constant.reshape(channels) if is_constant else None


def _after(first: Affine, second: Affine) -> Affine:
    """Return two layers in a row as the first one with other weights, B A, and the bias B a + b."""
    pointwise = second.weight.flatten(1)
    weight = (pointwise @ first.weight.flatten(1)).view(-1, *first.weight.shape[1:])
    bias = second.bias
    if first.bias is not None:
        own = (pointwise @ first.bias.flatten()).view(-1, *first.bias.shape[1:])
        bias = own if bias is None else own + bias
    return replace(first, weight=weight, bias=bias)


def _follows(first: Affine, second: Affine) -> bool:
    """Check whether two layers in a row are one layer of the form of the first."""
    return (
        first.kinds[0] == second.kinds[0]
        and first.groups == 1
        and second.is_pointwise
        and second.weight.shape[1] == len(first.weight)
    )


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _fit(a: Affine, b: Affine) -> bool:
    """Check whether two layers have the same input, form and options."""
    return (
        (a.x is b.x or _is_same(a.x, b.x))
        and a.version == b.version
        and a.kinds[0] == b.kinds[0]
        and a.weight.shape == b.weight.shape
        and a.options == b.options
    )
