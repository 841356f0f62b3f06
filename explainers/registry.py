"""The table of methods, and the decorator that registers a function in it and validates its calls."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from explainers.errors import BadImages, BadOption, UnsupportedModel, nearest, no_module
from explainers.findings import note_raw, pause_recording
from explainers.hooks.cleanup import restores_state
from explainers.hooks.locate import why_no_hooks
from explainers.network.eval_view import one_call, outside_call
from explainers.network.forward_wrapper import wrap_forward
from explainers.network.quantized import no_gradient, why_no_gradient
from explainers.options import LayerName, Option, options_of
from explainers.passes.loop import Partial, Progress
from explainers.targets import TargetLike, Through

F = TypeVar("F", bound=Callable[..., Any])

MAPS = ("grid", "pixels", "heat")
"""Kinds of results that are one map per image, or pixel attributions that can be reduced to one map."""
_WITH_GRADIENTS = ("cam", "gradient", "backward rule", "attention")


@dataclass(frozen=True)
class Method:
    """One method: its name and title, the kind of its result, and its options."""

    name: str
    title: str
    family: str
    returns: str
    paper: str
    summary: str
    function: Callable[..., Tensor] = field(repr=False)
    options: dict[str, Option] = field(repr=False)
    takes_layer: bool
    signed: bool
    stochastic: bool
    long: bool
    relu: bool | None
    reduce: str
    unit: str
    scale_free: str
    reads_class: bool
    gradients: bool
    needs: Callable[[nn.Module], str | None] | None = field(repr=False)
    caution: str = ""

    def __call__(self, model: nn.Module, images: Tensor, target: TargetLike = None, **options: Any) -> Tensor:
        """Call the method."""
        return self.function(model, images, target, **options)

    @property
    def by_size(self) -> bool:
        """Whether a map is best drawn by magnitude, because each value belongs to a single pixel."""
        return self.returns == "pixels"

    @property
    def gives_map(self) -> bool:
        """Whether the result is one map per image, or pixel attributions that can be reduced to one map."""
        return self.returns in MAPS

    @property
    def planes(self) -> bool:
        """Whether each plane [h, w] of the result is a separate map, so that their sum has no meaning."""
        return self.returns == "features" and not self.reads_class

    def applies(self, model: nn.Module, layer: LayerName | None = None) -> str | None:
        """Return None if the method supports this model, else a message with the reason."""
        if self.takes_layer and (reason := why_no_hooks(model)):
            return reason
        if self.gradients and (reason := why_no_gradient(model)):
            return reason
        return self.needs(model) if self.needs else None


COMMON_KEYWORDS = ("through", "forward")
"""Keywords of every method in addition to its own options: channels that restrict the gradient, and how to run the
model.
"""


class _Methods(dict[str, "Method"]):
    """Methods by name; the old name of a renamed method gives the method, so saved runs still open."""

    def __missing__(self, name: str) -> Method:
        if name not in _RENAMED:
            raise KeyError(name)
        return self[_RENAMED[name]]


METHODS: dict[str, Method] = _Methods()
"""Every method by name, in a fixed order."""

_RENAMED = {"centre_control": "center_control"}
"""Deprecated names of methods, which `find` still accepts."""


def method(
    *,
    family: str,
    returns: str,
    paper: str,
    title: str,
    signed: bool = True,
    reduce: str = "sum",
    unit: str = "logit",
    scale_free: str = "",
    reads_class: bool = True,
    gradients: bool | None = None,
    needs: Callable[[nn.Module], str | None] | None = None,
    caution: str = "",
) -> Callable[[F], F]:
    """Register a function in `METHODS` and validate its arguments before each call.

    `returns` is "grid", "pixels", "heat", "channels" or "features" (shapes in the package docstring); `reduce` is how
    `explain` reduces pixel attributions to one map; `unit` is the unit of the values; `scale_free` is a message for
    methods whose values are shares or ranks by definition and do not grow with the score; `reads_class` is False if the
    result does not depend on the target; `gradients` says whether the method uses gradients, if this differs from the
    default of its family; `needs` returns the reason why the method does not support a model, or None; `caution` is one
    sentence that warns users that the maps measured no better than those of a control, and recommends an alternative.

    A function with an option `relu` returns the map before its final ReLU. The decorator applies the ReLU, also to
    partial maps.
    """

    def register(function: F) -> F:
        options, parameters = options_of(function), inspect.signature(function).parameters
        relu = parameters["relu"].default if "relu" in parameters else None
        uses_gradients = family in _WITH_GRADIENTS if gradients is None else gradients
        validated = _validate_calls(function, options, parameters, uses_gradients)
        METHODS[function.__name__] = Method(
            name=function.__name__,
            title=title,
            family=family,
            returns=returns,
            paper=paper,
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
            function=validated,
            options=options,
            takes_layer="layer" in parameters,
            signed=signed and not relu,
            stochastic="seed" in parameters,
            long="progress" in parameters,
            relu=relu,
            reduce=reduce,
            unit="" if scale_free else unit,
            scale_free=scale_free,
            reads_class=reads_class,
            gradients=uses_gradients,
            needs=needs,
            caution=caution,
        )
        return cast(F, validated)

    return register


def _validate_calls(
    function: Callable[..., Any],
    options: Mapping[str, Option],
    parameters: Mapping[str, inspect.Parameter],
    gradients: bool,
) -> Callable[..., Any]:
    """Wrap a function so that model, images and options are checked first and the final ReLU is applied last.

    The keyword `forward` is handled here: it is merged into the model, so the function does not see it.
    """

    @restores_state
    @functools.wraps(function)
    def method(model: nn.Module, images: Tensor, target: TargetLike = None, **keywords: Any) -> Any:
        if "forward" in keywords:
            model = wrap_forward(model, keywords.pop("forward"), images)
        with one_call(model) as view:
            if view.checked is not images:
                check_images(model, images)
                view.checked = images
            if gradients and view.quantized:
                raise UnsupportedModel(no_gradient(view.quantized))
            rectify, given = _check_keywords(function, options, parameters, keywords)
            if (through := given.pop("through", None)) is not None:
                target = _restrict_target(target, through)
            if given.get("progress") is not None:
                given["progress"] = _wrap_progress(given["progress"], rectify)
            raw = function(model, images, target, **given)
            note_raw(raw)
            return raw.relu() if rectify else raw

    return method


def _check_keywords(
    function: Callable[..., Any],
    options: Mapping[str, Option],
    parameters: Mapping[str, inspect.Parameter],
    keywords: Mapping[str, Any],
) -> tuple[bool, dict[str, Any]]:
    """Return whether to apply the final ReLU, and the keywords for the function, which never applies it itself.

    Errors   BadOption for a keyword that the function does not have, or a value that it does not accept
    """
    for name, value in keywords.items():
        if name in options:
            options[name].check(value)
        elif name not in parameters and name != "through":
            possible = [each for each in parameters if each not in ("model", "images", "target")]
            raise BadOption(
                f"{function.__name__} has no option {name!r}. {nearest(name, [*possible, *COMMON_KEYWORDS])}Available "
                f"options: {', '.join([*possible, *COMMON_KEYWORDS])}."
            )
        elif name == "layer" and not (value is None or isinstance(value, (str, nn.Module))):
            raise TypeError(f"layer is {value!r}; give a name from list_layers(model, images) or the module itself.")
        elif name == "progress" and not (value is None or callable(value)):
            raise BadOption(f"progress={value!r} is not valid. Give a function that takes a Partial, or None.")
    given = dict(keywords)
    rectify = bool(given.pop("relu", "relu" in parameters and parameters["relu"].default))
    return rectify, given


def rectifies(chosen: Method, keywords: Mapping[str, Any]) -> bool:
    """Return whether the method with these keywords ends in a ReLU, for passes that compute several maps at once.

    Errors   BadOption, as for a call of the method
    """
    return _check_keywords(chosen.function, chosen.options, inspect.signature(chosen.function).parameters, keywords)[0]


def _wrap_progress(progress: Progress, rectify: bool) -> Progress:
    """Wrap the caller's function so that it gets partial maps after the ReLU and runs outside this call's context."""

    def report(partial: Partial) -> Any:
        shown = replace(partial, map=partial.map.relu()) if rectify and partial.map is not None else partial
        with outside_call(), pause_recording():
            return progress(shown)

    return report


def _restrict_target(target: TargetLike, through: Any) -> Through:
    if not isinstance(through, (tuple, list)) or len(through) != 2:
        raise BadOption(f"through={through!r} is not valid. Give (layer, channels), for example ('layer3', [17]).")
    return Through(target, through[0], through[1])


def check_images(model: nn.Module, images: Tensor) -> None:
    """Check that the images are a finite float batch [N, C, H, W] with the model's device and dtype.

    Errors   TypeError if model is not an nn.Module or images is not a tensor, BadImages otherwise
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    if not isinstance(images, Tensor):
        raise TypeError(
            f"images is a {type(images).__name__}; give a float tensor [N, C, H, W], normalized for the model."
        )
    if images.ndim != 4 or 0 in images.shape:
        raise BadImages(f"images has shape {tuple(images.shape)}. {_suggest_shape(images)}")
    if images.is_meta or images.layout != torch.strided:
        kind = "on the meta device, which has no values" if images.is_meta else "sparse"
        raise BadImages(f"images is {kind}. Give a dense tensor [N, C, H, W] on the model's device.")
    if not images.is_floating_point():
        raise BadImages(
            f"images is {images.dtype}. Give normalized floats, for example (images.float() / 255 - mean) / std."
        )
    own = None
    for parameter in model.parameters():
        if parameter.is_floating_point():
            own = parameter
            break
    if own is not None and own.device != images.device:
        raise BadImages(
            f"images is on {images.device}, but the model is on {own.device}. Give images.to({str(own.device)!r})."
        )
    # If the sum is finite, so are its terms, and it takes a tenth of the time. If not, it may only have overflowed.
    if not math.isfinite(float(images.sum())) and not bool(torch.isfinite(images).all()):
        n, c, h, w = (int(i) for i in (~torch.isfinite(images)).nonzero()[0])
        raise BadImages(
            f"images contains {images[n, c, h, w].item()} at image {n}, channel {c}, row {h}, column {w}. Give finite "
            f"values."
        )
    if own is not None and own.dtype != images.dtype and not torch.is_autocast_enabled(images.device.type):
        raise BadImages(f"images is {images.dtype}, but the model is {own.dtype}. Give images.to({own.dtype}).")


def _suggest_shape(images: Tensor) -> str:
    """Return a suggestion for images that are empty or have the wrong number of dimensions."""
    shape = tuple(images.shape)
    if 0 in shape:
        return "Give a tensor [N, C, H, W] with at least one image of at least one pixel."
    if images.ndim == 3:
        return "It must have 4 dimensions, [N, C, H, W]. Add the batch dimension: images[None]."
    if images.ndim > 4:
        remedy = "images[0]" if set(shape[:-4]) == {1} and images.ndim == 5 else f"images.reshape(-1, *{shape[-3:]})"
        return (
            f"It must have 4 dimensions, [N, C, H, W]: single images, not clips or batches of batches. Give {remedy}."
        )
    return "It must have 4 dimensions, [N, C, H, W]: images, channels, rows and columns."


def current_name(name: str) -> str:
    """Return the current name of a method that was renamed; any other name is returned as it is."""
    return _RENAMED.get(name, name)


def find(name: str) -> Method:
    """Return the method with that name.

    Errors   BadOption with similar names
    """
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(f"The method {name!r} is deprecated; use {new!r}.", DeprecationWarning, stacklevel=3)
        name = new
    if name not in METHODS:
        raise BadOption(f"Unknown method {name!r}. {nearest(str(name), METHODS)}METHODS lists all {len(METHODS)}.")
    return METHODS[name]
