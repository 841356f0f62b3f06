"""ReLUs that are written as a selection, which rules for rectifiers would otherwise miss.

    x * (x > 0)    torch.where(x > 0, x, 0)    x.masked_fill(x < 0, 0)    x[x < 0] = 0    (x + |x|) / 2

A function mode follows the values that only depend on the sign of a tensor, such as x > 0. Where an operation combines
them with that same tensor, and the result is max(x, 0), it runs `torch.relu` instead. Other selections by a tensor's
own values are activations without a rule, such as a hard threshold or a leaky ReLU; the mode records their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from explainers.rules.operations import tensors

_COMPARISONS = frozenset(
    "gt ge lt le greater greater_equal less less_equal sign sgn signbit heaviside isposinf isneginf".split()
)
_COMBINATIONS = frozenset("mul rmul imul multiply where masked_fill setitem addcmul div true_divide".split())
_SUMS = frozenset("add radd iadd".split())
_IN_PLACE = frozenset("setitem imul iadd".split())


class HandwrittenReLUs(TorchFunctionMode):
    """Runs `torch.relu` for handwritten ReLUs; `others` are operations that apply another activation in this way."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[str] = []
        # By id of the derived tensor, with both tensors, so that neither id is reused during the pass.
        self._signs: dict[int, tuple[Tensor, tuple[Tensor, ...]]] = {}
        self._sizes: dict[int, tuple[Tensor, Tensor]] = {}

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)
        self._signs.clear()
        self._sizes.clear()

    def describe(self) -> str:
        """Return the description of the first of the other activations."""
        return f"an activation other than ReLU, written as {self.others[0]!r} of a value and its own signs"

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, spelled = dict(kwargs or {}), getattr(function, "__name__", "")
        name = spelled.strip("_")
        in_place = name in _IN_PLACE or (spelled.endswith("_") and not spelled.startswith("__"))
        inputs = tensors((args, kwargs))
        signs = [self._signs[id(each)][1] for each in inputs if id(each) in self._signs]
        sources = [each for each in inputs if _is_source(each, signs)] if name in _COMBINATIONS else []
        if sources:
            return self._combine(function, args, kwargs, sources[0], in_place)
        if name in _SUMS and len(inputs) == 2 and kwargs.get("alpha", 1) == 1:
            for value, size in (inputs, inputs[::-1]):
                if id(size) in self._sizes and self._sizes[id(size)][1] is value and _is_size(size, value):
                    return args[0].copy_(2 * torch.relu(value)) if in_place else 2 * torch.relu(value)
        result = function(*args, **kwargs)
        if isinstance(result, Tensor) and inputs:
            self._follow(name, inputs, signs, result)
        return result

    def _follow(self, name: str, inputs: list[Tensor], signs: list[tuple[Tensor, ...]], result: Tensor) -> None:
        """Record that a result depends only on the signs of a tensor, or is its size |x|."""
        if name in _COMPARISONS:
            compared = tuple(each for each in inputs if each.shape == result.shape)
            self._signs[id(result)] = result, signs[0] if signs else compared
        elif signs and (len(signs) == len(inputs) or name in ("to", "type_as", "where")):
            self._signs[id(result)] = result, signs[0]
        elif name in ("abs", "absolute"):
            self._sizes[id(result)] = result, inputs[0]

    def _combine(
        self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], x: Tensor, in_place: bool
    ) -> Any:
        """Run an operation that combines x with its own signs, as a ReLU if it is one."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            expected, copy = x.detach().clamp(min=0), x.detach().clone()
            # In place, it runs on a copy first, whose values are then compared.
            result = function(*(copy if in_place and each is x else each for each in args), **kwargs)
            result = copy if in_place else result
            is_relu = result.shape == expected.shape and torch.equal(result.to(expected.dtype), expected)
        if is_relu:
            return torch.relu_(x) if in_place else torch.relu(x).to(result.dtype)
        if x.requires_grad:
            self.others.append(getattr(function, "__name__", "").strip("_"))
        return function(*args, **kwargs)


def _is_source(x: Tensor, signs: list[tuple[Tensor, ...]]) -> bool:
    """Check whether the signs of x are among these, also if they were taken of a copy of x."""
    if not x.is_floating_point():
        return False
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return any(
            x is source or (x.shape == source.shape and x.dtype == source.dtype and torch.equal(x, source))
            for sources in signs
            for source in sources
        )


def _is_size(size: Tensor, value: Tensor) -> bool:
    """Check whether `size` is still |value|; both may have been modified in place."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return torch.equal(size, value.abs())
