"""The keywords that methods share, each declared once: its type, its default and what it means.

    def my_method(model: nn.Module, images: Tensor, target: TargetLike = None, **cost: Unpack[Cost]) -> Tensor: ...

Type checkers read the keywords of a call from the class (PEP 692). `@method` shows them with their defaults in the
signature, and so in `help`, in forms and in `METHODS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args

from typing_extensions import TypedDict, is_typeddict

from explainers.call.forward_wrapper import Forward
from explainers.call.loop import Progress
from explainers.options import LayerName, Precision, SteadyPrecision
from explainers.targets import ThroughLike


class Call(TypedDict, total=False):
    """Keywords of every method. `@method` applies both, so a method itself does not read them."""

    forward: Forward | None
    """How to run a model that is not called by `model(images)`: a function from images [B, C, H, W] to its output."""
    through: ThroughLike | None
    """Keep only gradients that pass through these channels of a layer, (layer, channels), or through a direction."""


class Limits(Call, total=False):
    """Keywords of a method that runs many variants of each image. `open_run` applies them."""

    batch_size: int | None
    """Number of variants in a batch. None chooses it from the network and the available memory."""
    progress: Progress | None
    """A function that gets a `Partial` after each batch. If it returns False, the method returns the map so far."""
    budget: float | None
    """Seconds from the start of the call, including set-up, after which the method returns the map so far."""


class Cost(Limits, total=False):
    """The same for a method that can run the variants in another precision."""

    precision: Precision
    """Data type in which the variants run."""


class SteadyCost(Limits, total=False):
    """`Cost` of a method whose ranks bfloat16 preserves, so that the precision can also be "auto"."""

    precision: SteadyPrecision


class LayerCall(Call, total=False):
    """Keywords of a method that explains a layer; the method reads `call.get("layer")`."""

    layer: LayerName | None
    """The layer, by name or as a module. None chooses the default layer."""


class LayerLimits(LayerCall, Limits, total=False):
    """The same of a method that runs many variants."""


class LayerCost(LayerCall, Cost, total=False):
    """The same of a method that can run the variants in another precision."""


class LayerSteadyCost(LayerCall, SteadyCost, total=False):
    """The same of a method whose ranks bfloat16 preserves."""


DEFAULTS: dict[str, Any] = {
    "batch_size": None,
    "precision": "float32",
    "progress": None,
    "budget": None,
    "forward": None,
    "through": None,
}
"""The default of each keyword, in the order of signatures. Keywords that your own class adds default to None."""


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature, with the keywords of `**options: Unpack[...]` in place of `**options`."""
    signature = inspect.signature(function)
    own = list(signature.parameters.values())
    if not own or own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    last = own.pop()
    hint = last.annotation
    if isinstance(hint, str) and "Unpack[" in hint:
        with suppress(NameError):  # a name that is imported only for type checkers
            hint = inspect.signature(function, eval_str=True).parameters[last.name].annotation
    first = sum(each.kind is not inspect.Parameter.KEYWORD_ONLY for each in own)  # where `layer` is listed
    annotations: dict[str, Any] = next((each.__annotations__ for each in get_args(hint) if is_typeddict(each)), {})
    if not annotations:
        return signature
    for name in [*(each for each in annotations if each not in DEFAULTS), *DEFAULTS]:
        if name in annotations:
            written = getattr(annotations[name], "__forward_arg__", annotations[name])
            default = DEFAULTS.get(name)
            keyword = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=written)
            own.insert(first if name == "layer" else len(own), keyword)
    return signature.replace(parameters=own)
