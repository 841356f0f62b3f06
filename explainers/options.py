"""Declarations of the options of a method, used by the app's form, the API and the methods' own validation.

    def smooth_grad(..., samples: Annotated[int, Range(1, 500)] = 25)

The signature is the complete declaration: it contains the type, the range and the default.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from torch import Tensor, nn
from typing_extensions import is_typeddict

from explainers.errors import BadOption, nearest, shorten

P = ParamSpec("P")
R = TypeVar("R")

LayerName = str | nn.Module


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, both included; `step` is the step of the slider, `help` its tooltip."""

    low: float
    high: float
    step: float | None = None
    help: str = ""


@dataclass(frozen=True)
class Choice:
    """One of the strings in `values`."""

    values: tuple[str, ...]
    help: str = ""

    def __init__(self, *values: str, help: str = "") -> None:
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "help", help)


@dataclass(frozen=True)
class Option:
    """One keyword of a method. `kind`: "int", "float", "bool" or "choice". Default None: the method chooses a value."""

    name: str
    default: Any
    kind: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: tuple[str, ...] = ()
    help: str = ""
    pair: bool = False
    """Whether a pair of numbers, (height, width), is accepted too."""
    only_names: bool = False
    """Whether only `choices` are accepted. If not, a number or a tensor is accepted too, and the method checks it."""

    def check(self, value: Any) -> None:
        """Raise `BadOption` unless `value` is accepted."""
        if value is None and self.default is None:
            return
        if self.kind == "choice":
            if value not in self.choices if isinstance(value, str) else self.only_names:
                check_choice(self.name, value, self.choices)  # raises
            if isinstance(value, float) and not math.isfinite(value):
                raise BadOption(f"{self.name}={shorten(value)} is not finite. Give a finite number.")
        elif self.kind == "bool":
            check_flags(**{self.name: value})
        else:
            self._check_number(value)

    def _check_number(self, value: Any) -> None:
        values = value if self.pair and isinstance(value, (tuple, list)) else (value,)
        types = int if self.kind == "int" else (int, float)
        low, high = self.low, self.high
        for number in values:
            is_number = isinstance(number, types) and not isinstance(number, bool)
            if not is_number or not (low is None or low <= number) or not (high is None or number <= high):
                kind = "an integer" if self.kind == "int" else "a number"
                raise BadOption(
                    f"{self.name}={shorten(value)} is not valid. Give {kind} from {low:.10g} to {high:.10g}."
                )


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Check an option that is one of the strings in `choices`.

    Errors   BadOption
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        hint = nearest(str(value), known)
        raise BadOption(f"{name}={shorten(value)} is not valid. {hint}Choose one of {', '.join(known)}.")


def check_flags(**flags: Any) -> None:
    """Check options by name that are True or False.

    Errors   BadOption
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise BadOption(f"{name}={shorten(value)} is not valid. Give True or False.")


_NAMES_ELSEWHERE = {
    "model": "net network module",
    "images": "image img inputs input input_tensor input_batch batch x",
    "target": "label labels classes class_idx class_index category category_index",
    "layer": "layers layer_name target_layer target_layers",
    "forward": "forward_func forward_fn forward_kwargs additional_forward_args",
    "steps": "n_step n_steps num_steps",
    "samples": "n n_samples nt_samples num_samples n_masks n_perturb_samples",
    "sigma": "std stdevs noise noise_level stdev_spread",
    "window": "sliding_window_shapes patch_size kernel_size window_size",
    "masks": "feature_mask segments",
    "epsilon": "eps",
    "seed": "random_state generator",
    "reduce": "reduction aggregate",
    "batch_size": "internal_batch_size perturbations_per_eval nt_samples_batch_size",
    "progress": "callback show_progress verbose",
    "budget": "timeout time_budget",
}
"""What captum, pytorch-grad-cam and other libraries call a keyword of this library."""


def unknown_keyword(
    function: str, name: str, accepted: Iterable[str], listed: Iterable[str] | None = None
) -> BadOption:
    """Return the error for a keyword that a function does not have, with the most likely one of those it accepts.

    The message lists `listed`, by default all `accepted` keywords.
    """
    accepted = list(accepted)
    options = accepted if listed is None else list(listed)
    same = [own for own, others in _NAMES_ELSEWHERE.items() if own in accepted and name in others.split()]
    close = same or difflib.get_close_matches(name, accepted, n=1, cutoff=0.75)
    hint = f"Did you mean {close[0]!r}? " if close else nearest(name, options)
    return BadOption(f"{function} has no option {name!r}. {hint}Available options: {', '.join(options)}.")


def check_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function answer an unknown keyword by `BadOption` with a suggestion, as methods do."""
    accepted = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
        for name in keywords:
            if name not in accepted:
                raise unknown_keyword(function.__name__, name, accepted)
        return function(*arguments, **keywords)

    return checked


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """Return the annotated keywords of `function`, in the order of its signature."""
    hints = get_type_hints(function, include_extras=True)
    for shared in [each for hint in hints.values() for each in get_args(hint) if is_typeddict(each)]:
        hints |= get_type_hints(shared, include_extras=True)  # of **options: Unpack[...]; see keywords.py
    options: dict[str, Option] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name)
        if type(None) in get_args(hint):  # Python 3.10 adds None to the type if the default is None
            hint = get_args(hint)[0]
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
    """Return the value as an int, or None if it is a bool, a float, or anything with dimensions."""
    # `__index__` accepts NumPy integers and tensors of one integer; a bool is most likely a mistake.
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool") or getattr(value, "ndim", False):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_whole(least: int, **values: Any) -> None:
    """Check options by name that are integers of at least `least`.

    Errors   BadOption
    """
    for name, value in values.items():
        number = whole_number(value)
        if number is None or number < least:
            raise BadOption(f"{name}={shorten(value)} is not valid. Give an integer of at least {least}.")


def check_finite(
    name: str,
    value: Any,
    form: str = "a finite number",
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> None:
    """Check an option that is a finite number, `above` a limit, of at `least` or `most` some value; `form` says so.

    Errors   BadOption
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value <= above or not least <= value <= most:
        raise BadOption(f"{name}={shorten(value)} is not valid. Give {form}.")


def whole_numbers(values: Any) -> tuple[int, ...] | None:
    """Return a list, tuple, range, or one-dimensional array or tensor as ints; None for anything else."""
    if hasattr(values, "dtype") and hasattr(values, "tolist"):  # an array of NumPy or of another library
        values = values.tolist()
    if not isinstance(values, (list, tuple, range)):
        return None
    numbers = tuple(map(whole_number, values))
    return None if None in numbers else numbers  # type: ignore[return-value]


Precision = Annotated[
    str, Choice("float32", "bf16", help="bf16 may be faster and is less precise; see docs/figures.md for the error")
]
SteadyPrecision = Annotated[
    str,
    Choice("float32", "bf16", "auto", help="auto: bf16 if this device computes it faster; ranks are preserved"),
]
"""For methods whose maps keep a rank correlation above 0.999 in bf16 on a trained network (benchmarks/drift.py). Only
these methods accept "auto".
"""
Relu = Annotated[bool, "Keep only positive evidence (ReLU)"]
Seed = Annotated[int, Range(0, 2**31 - 1, help="random seed")]
NoiseSeed = Annotated[int, Range(0, 2**31 - 1, help="random seed of the baseline 'noise'")]
Samples = Annotated[int, Range(1, 1000, help="noisy copies of the image")]
Sigma = Annotated[float, Range(0, 1, 0.01, help="standard deviation of the noise, as a fraction of the image's range")]

Baseline = str | float | Tensor
"""Replacement of a pixel: "zeros", "blur", "mean", "noise", a number (in the model's units), or a tensor that
broadcasts to the images.
"""
