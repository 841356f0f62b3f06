"""What values a keyword of a method accepts; read by the app's form, by the API and by the methods' own check.

    def smooth_grad(..., samples: Annotated[int, Range(1, 500)] = 25)

is the whole declaration: type, range and default are in the signature.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from torch import Tensor, nn

from explainers.errors import BadOption, nearest

LayerName = str | nn.Module


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; `step` is the slider's step, `help` its tooltip."""

    low: float
    high: float
    step: float | None = None
    help: str = ""


@dataclass(frozen=True)
class Choice:
    """One of `values`."""

    values: tuple[str, ...]
    help: str = ""

    def __init__(self, *values: str, help: str = "") -> None:
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "help", help)


@dataclass(frozen=True)
class Option:
    """One keyword of a method. `kind`: "int", "float", "bool" or "choice"; a `default` of None: the method chooses."""

    name: str
    default: Any
    kind: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: tuple[str, ...] = ()
    help: str = ""
    pair: bool = False
    """A pair of numbers, (height, width), is accepted too."""
    only_names: bool = False
    """Only one of `choices`; else a number or a tensor is accepted too, which the method checks."""

    def check(self, value: Any) -> None:
        """Raise `BadOption` unless `value` is accepted."""
        if value is None and self.default is None:
            return
        if self.kind == "choice":
            if value not in self.choices if isinstance(value, str) else self.only_names:
                hint = nearest(str(value), self.choices)
                raise BadOption(
                    f"{self.name}={value!r} is not possible. {hint}Choose one of {', '.join(self.choices)}."
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise BadOption(f"{self.name}={value!r} is not finite. Give a finite number.")
        elif self.kind == "bool":
            if not isinstance(value, bool):
                raise BadOption(f"{self.name}={value!r} is not possible. Give True or False.")
        else:
            self._check_number(value)

    def _check_number(self, value: Any) -> None:
        values = value if self.pair and isinstance(value, (tuple, list)) else (value,)
        types = int if self.kind == "int" else (int, float)
        low, high = self.low, self.high
        for number in values:
            fits = isinstance(number, types) and not isinstance(number, bool)
            if not fits or not (low is None or low <= number) or not (high is None or number <= high):
                word = "a whole number" if self.kind == "int" else "a number"
                raise BadOption(f"{self.name}={value!r} is not possible. Give {word} from {low:.10g} to {high:.10g}.")


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The annotated keywords of `function`, in the order of its signature."""
    hints = get_type_hints(function, include_extras=True)
    options: dict[str, Option] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name)
        if get_origin(hint) is Annotated:
            options[name] = _option(name, parameter.default, get_args(hint))
    return options


def _option(name: str, default: Any, annotation: tuple[Any, ...]) -> Option:
    kind, bounds = annotation[0], annotation[1]
    if isinstance(bounds, Choice):
        return Option(name, default, "choice", choices=bounds.values, help=bounds.help, only_names=kind is str)
    if isinstance(bounds, str):
        return Option(name, default, "bool", help=bounds)
    types = get_args(kind) or (kind,)
    integer = int in types
    step = bounds.step if bounds.step is not None else (1 if integer else None)
    pair = any(get_origin(member) is tuple for member in types)
    number = "int" if integer else "float"
    return Option(name, default, number, bounds.low, bounds.high, step, help=bounds.help, pair=pair)


def whole_number(value: Any) -> int | None:
    """The value as an int, None where it is none: no bool, no float, nothing with a dimension."""
    # `__index__` admits the integers of NumPy and tensors of one integer; a bool is a mistake.
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool") or getattr(value, "ndim", False):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole_numbers(values: Any) -> tuple[int, ...] | None:
    """A list, tuple, range, array or tensor of one dimension as ints; None where it is anything else."""
    if hasattr(values, "dtype") and hasattr(values, "tolist"):  # an array of NumPy or of another library
        values = values.tolist()
    if not isinstance(values, (list, tuple, range)):
        return None
    numbers = tuple(map(whole_number, values))
    return None if None in numbers else numbers  # type: ignore[return-value]


Precision = Annotated[
    str, Choice("float32", "bf16", help="bf16 may be faster and is less precise: drift in docs/figures.md")
]
SteadyPrecision = Annotated[
    str,
    Choice(
        "float32", "bf16", "auto", help="auto: bf16 where it is clearly faster on this machine; ranks are preserved"
    ),
]
"""For methods whose maps keep a rank correlation above 0.999 in bf16 on a trained network (benchmarks/drift.py): only
these have "auto".
"""
Relu = Annotated[bool, "Keep positive evidence only (ReLU)"]
Seed = Annotated[int, Range(0, 2**31 - 1, help="random seed")]

Baseline = str | float | Tensor | None
"""What replaces a pixel: None (zeros), a number (model's units), a tensor that broadcasts to the images, or a name."""
