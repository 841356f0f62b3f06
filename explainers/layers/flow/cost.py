"""The estimated cost of a forward pass. It depends only on the operations and their shapes, not on a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

_MATRIX_PRODUCTS = frozenset("mm addmm bmm baddbmm".split())
_FUSED_ATTENTION = frozenset(("_native_multi_head_attention", "_transformer_encoder_layer_fwd"))
"""An attention, or a whole block, as one operation with its matrices of weights."""
_PER_MULTIPLICATION, _PER_BYTE = 1e-11, 2e-10
"""Seconds on two CPU cores. Torchvision's classifiers at 64 and 224 px take half to twice the estimate."""


class Cost(NamedTuple):
    """Multiplications of a pass, bytes that its operations write, and bytes of the largest tensor."""

    multiplications: int = 0
    written: int = 0
    largest: int = 0

    def plus(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Return the cost after another operation, of which `outputs` are the new tensors."""
        sizes = [output.numel() * output.element_size() for output in outputs]
        products = _multiplications(name, inputs, outputs[0]) if outputs else 0
        return Cost(self.multiplications + products, self.written + sum(sizes), max([self.largest, *sizes]))

    def minus(self, earlier: Cost) -> Cost:
        """Return the cost since an earlier point of the pass; the largest tensor is that of the whole pass."""
        return Cost(self.multiplications - earlier.multiplications, self.written - earlier.written, self.largest)

    def per_image(self, count: int) -> Cost:
        """Return the cost for one of `count` images."""
        return Cost(*(value // count for value in self))

    @property
    def seconds(self) -> float:
        """The typical duration on two CPU cores."""
        return self.multiplications * _PER_MULTIPLICATION + self.written * _PER_BYTE


def _multiplications(name: str, inputs: Sequence[Tensor], output: Tensor) -> int:
    """Return the number of multiplications of a convolution, matrix product or attention; 0 for other operations."""
    if name in _MATRIX_PRODUCTS and len(inputs) > 1:
        return output.numel() * inputs[-1].shape[-2]
    if name.startswith("_scaled_dot_product") and len(inputs) > 2:
        return 2 * inputs[0].numel() * inputs[1].shape[-2]
    if name in _FUSED_ATTENTION:
        tokens, length, width = inputs[0].numel() // inputs[0].shape[-1], *inputs[0].shape[-2:]
        weights = sum(each.numel() for each in inputs[1:] if each.ndim == 2 and each.numel() >= width * width)
        return tokens * (weights + 2 * length * width)
    if "conv" in name and len(inputs) > 1 and inputs[1].ndim == inputs[0].ndim:
        weight, is_transposed = inputs[1], inputs[1].shape[0] != output.shape[1]
        return (inputs[0] if is_transposed else output).numel() * weight[0].numel()
    return 0
