"""What a keyword of a method may be; read by the app's form, by the API and by the methods' own check.

    def smooth_grad(..., samples: Annotated[int, Range(1, 500)] = 25)

is the whole declaration: type, range and default stand in the signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from torch import Tensor, nn

from explainers.errors import BadOption, nearest

LayerName = str | nn.Module


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both allowed; `step` is the control's step, `help` its hint."""

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
    """One keyword of a method. `kind`: "int", "float", "bool", "choice"; a `default` of None means chosen from the
    picture.
    """

    name: str
    default: Any
    kind: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: tuple[str, ...] = ()
    help: str = ""
    pair: bool = False
    """Two numbers, (height, width), are possible too."""
    only_names: bool = False
    """Nothing but one of `choices`; else a number or a tensor may stand there, which the method checks."""

    def check(self, value: Any) -> None:
        """Raise `BadOption` unless `value` is possible."""
        if value is None and self.default is None:
            return
        if self.kind == "choice":
            if value not in self.choices if isinstance(value, str) else self.only_names:
                hint = nearest(str(value), self.choices)
                raise BadOption(
                    f"{self.name}={value!r} is not possible. {hint}Choose one of {', '.join(self.choices)}."
                )
        elif self.kind == "bool":
            if not isinstance(value, bool):
                raise BadOption(f"{self.name}={value!r} is not possible. Give True or False.")
        else:
            self._check_number(value)

    def _check_number(self, value: Any) -> None:
        values = value if self.pair and isinstance(value, (tuple, list)) else (value,)
        wanted = int if self.kind == "int" else (int, float)
        low, high = self.low, self.high
        for each in values:
            fits = isinstance(each, wanted) and not isinstance(each, bool)
            if not fits or not (low is None or low <= each) or not (high is None or each <= high):
                word = "a whole number" if self.kind == "int" else "a number"
                raise BadOption(f"{self.name}={value!r} is not possible. Give {word} from {low:g} to {high:g}.")


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """The annotated keywords of `function`, in the order of its signature."""
    hints = get_type_hints(function, include_extras=True)
    found: dict[str, Option] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name)
        if get_origin(hint) is Annotated:
            found[name] = _option(name, parameter.default, get_args(hint))
    return found


def _option(name: str, default: Any, annotation: tuple[Any, ...]) -> Option:
    kind, bounds = annotation[0], annotation[1]
    if isinstance(bounds, Choice):
        return Option(name, default, "choice", choices=bounds.values, help=bounds.help, only_names=kind is str)
    if isinstance(bounds, str):
        return Option(name, default, "bool", help=bounds)
    possible = get_args(kind) or (kind,)
    whole = int in possible
    step = bounds.step if bounds.step is not None else (1 if whole else None)
    pair = any(get_origin(each) is tuple for each in possible)
    word = "int" if whole else "float"
    return Option(name, default, word, bounds.low, bounds.high, step, help=bounds.help, pair=pair)


Precision = Annotated[
    str, Choice("float32", "bf16", help="bf16 may be faster, and is coarser: docs/figures.md has the drift")
]
SteadyPrecision = Annotated[
    str, Choice("float32", "bf16", "auto", help="auto: bf16 where this machine is clearly faster at it; ranks stay")
]
"""Of methods whose maps keep their ranks in bf16, by more than 0.999 on a trained network (benchmarks/drift.py): they
alone may leave the choice to the machine.
"""
Seed = Annotated[int, Range(0, 2**31 - 1, help="other random numbers")]

Baseline = str | float | Tensor | None
"""What a pixel is replaced by: None or a number (model's units), a tensor that broadcasts to the images, or a name."""
