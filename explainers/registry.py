"""The table of methods, and the decorator that enters a function into it and validates its calls."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from explainers.errors import BadImages, BadOption, UnsupportedModel, nearest, no_module
from explainers.findings import note_raw, unrecorded
from explainers.hooks.locate import why_no_hooks
from explainers.network.eval_view import one_call, outside_call
from explainers.network.forwarded import forwarded
from explainers.network.quantized import no_gradient, why_no_gradient
from explainers.options import LayerName, Option, options_of
from explainers.passes.loop import Partial, Progress
from explainers.targets import TargetLike, Through

F = TypeVar("F", bound=Callable[..., Any])

MAPS = ("grid", "pixels", "heat")
"""Forms of a result that are one map of each image, or attributions of its pixels, which reduce to one."""
_WITH_GRADIENTS = ("cam", "gradient", "backward rule", "attention")


@dataclass(frozen=True)
class Method:
    """One explainer: its names, the form of its result, and its options."""

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
        """The method itself."""
        return self.function(model, images, target, **options)

    @property
    def by_size(self) -> bool:
        """Whether a map is best drawn by magnitude: where each value is that of a single pixel."""
        return self.returns == "pixels"

    @property
    def gives_map(self) -> bool:
        """Whether the result is one map of each image, or attributions of its pixels, which reduce to one."""
        return self.returns in MAPS

    @property
    def planes(self) -> bool:
        """Whether each plane [h, w] of the result is a map by itself, and their sum means nothing."""
        return self.returns == "features" and not self.reads_class

    def applies(self, model: nn.Module, layer: LayerName | None = None) -> str | None:
        """None where the method can explain this model, else a sentence that says why not."""
        if self.takes_layer and (reason := why_no_hooks(model)):
            return reason
        if self.gradients and (reason := why_no_gradient(model)):
            return reason
        return self.needs(model) if self.needs else None


EVERYWHERE = ("through", "forward")
"""Keywords of every method beside its own options: a layer's channels for the gradient, and how the model runs."""

METHODS: dict[str, Method] = {}
"""Every method by name, in a fixed order."""


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
    """Enter a function into `METHODS`, with its wrong uses refused before any work.

    `returns` is "grid", "pixels", "heat", "channels" or "features" (shapes in the package's docstring); `reduce` how
    `explain` draws pixels as one map; `unit` what values are measured in; `scale_free` a sentence where they are shares
    or ranks by definition and do not grow with the score; `reads_class` is False where the target plays no part;
    `gradients` says whether it takes any, where its family usually does not or does; `needs` gives the reason why it
    cannot explain a model, or None; `caution` tells its users, in one sentence, that its maps were measured to be no
    better than those of a control, and what to take for it.

    A function with an option `relu` gives the map before its final ReLU; the decorator applies it, to partial maps too.
    """

    def join(function: F) -> F:
        options, parameters = options_of(function), inspect.signature(function).parameters
        relu = parameters["relu"].default if "relu" in parameters else None
        takes = family in _WITH_GRADIENTS if gradients is None else gradients
        called = _validated(function, options, parameters, takes)
        METHODS[function.__name__] = Method(
            name=function.__name__,
            title=title,
            family=family,
            returns=returns,
            paper=paper,
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
            function=called,
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
            gradients=takes,
            needs=needs,
            caution=caution,
        )
        return cast(F, called)

    return join


def _validated(
    function: Callable[..., Any],
    options: Mapping[str, Option],
    parameters: Mapping[str, inspect.Parameter],
    gradients: bool,
) -> Callable[..., Any]:
    """The function as users call it: model, images and options are checked first, the final ReLU is applied last.

    `forward` says how the model runs where it is not model(images); below here, nothing knows of it.
    """

    @functools.wraps(function)
    def method(model: nn.Module, images: Tensor, target: TargetLike = None, **keywords: Any) -> Any:
        if "forward" in keywords:
            model = forwarded(model, keywords.pop("forward"), images)
        with one_call(model) as view:
            if view.checked is not images:
                check_images(model, images)
                view.checked = images
            if gradients and view.quantized:
                raise UnsupportedModel(no_gradient(view.quantized))
            rectify, given = _checked(function, options, parameters, keywords)
            if (through := given.pop("through", None)) is not None:
                target = _restricted(target, through)
            if given.get("progress") is not None:
                given["progress"] = _outside(given["progress"], rectify)
            raw = function(model, images, target, **given)
            note_raw(raw)
            return raw.relu() if rectify else raw

    return method


def _checked(
    function: Callable[..., Any],
    options: Mapping[str, Option],
    parameters: Mapping[str, inspect.Parameter],
    keywords: Mapping[str, Any],
) -> tuple[bool, dict[str, Any]]:
    """Whether the map is to be rectified, and the keywords for the function, which never rectifies by itself.

    Errors   BadOption for a keyword that the function does not have, or a value that it does not take
    """
    for name, value in keywords.items():
        if name in options:
            options[name].check(value)
        elif name not in parameters and name != "through":
            possible = [each for each in parameters if each not in ("model", "images", "target")]
            raise BadOption(
                f"{function.__name__} has no option {name!r}. {nearest(name, [*possible, *EVERYWHERE])}It takes "
                f"{', '.join([*possible, *EVERYWHERE])}."
            )
        elif name == "layer" and not (value is None or isinstance(value, (str, nn.Module))):
            raise TypeError(f"layer is {value!r}; give a name from list_layers(model, images) or the module itself.")
        elif name == "progress" and not (value is None or callable(value)):
            raise BadOption(f"progress={value!r} is not possible. Give a function of a Partial, or None.")
    given = dict(keywords)
    rectify = bool(given.pop("relu", "relu" in parameters and parameters["relu"].default))
    return rectify, given


def rectifies(chosen: Method, keywords: Mapping[str, Any]) -> bool:
    """Whether the method with these keywords ends in a ReLU, for passes that serve several maps at once.

    Errors   BadOption as a call of the method
    """
    return _checked(chosen.function, chosen.options, inspect.signature(chosen.function).parameters, keywords)[0]


def _outside(progress: Progress, rectify: bool) -> Progress:
    """The caller's function with partial maps as the method gives its last one, and outside of this call's context."""

    def report(partial: Partial) -> Any:
        shown = replace(partial, map=partial.map.relu()) if rectify and partial.map is not None else partial
        with outside_call(), unrecorded():
            return progress(shown)

    return report


def _restricted(target: TargetLike, through: Any) -> Through:
    if not isinstance(through, (tuple, list)) or len(through) != 2:
        raise BadOption(f"through={through!r} is not possible. Give (layer, channels), for example ('layer3', [17]).")
    return Through(target, through[0], through[1])


def check_images(model: nn.Module, images: Tensor) -> None:
    """Refuse what is not a finite float batch [N, C, H, W] on the model's device and dtype.

    Errors   TypeError where model or images are something else altogether, BadImages otherwise
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    if not isinstance(images, Tensor):
        raise TypeError(
            f"images is a {type(images).__name__}; give a float tensor [N, C, H, W], normalised for the model."
        )
    if images.ndim != 4 or 0 in images.shape:
        raise BadImages(f"images has shape {tuple(images.shape)}. {_form_of_images(images)}")
    if images.is_meta or images.layout != torch.strided:
        kind = "on the meta device, which holds no values" if images.is_meta else "sparse"
        raise BadImages(f"images is {kind}. Give a dense tensor [N, C, H, W] on the model's device.")
    if not images.is_floating_point():
        raise BadImages(
            f"images is {images.dtype}. Give normalised floats, for example (images.float() / 255 - mean) / std."
        )
    own = None
    for parameter in model.parameters():
        if parameter.is_floating_point():
            own = parameter
            break
    if own is not None and own.device != images.device:
        raise BadImages(
            f"images is on {images.device}, the model on {own.device}. Give images.to({str(own.device)!r})."
        )
    # A finite sum has finite terms, and takes a tenth of the time; one that is not may merely have overflowed.
    if not math.isfinite(float(images.sum())) and not bool(torch.isfinite(images).all()):
        n, c, h, w = (int(i) for i in (~torch.isfinite(images)).nonzero()[0])
        raise BadImages(
            f"images holds {images[n, c, h, w].item()} at image {n}, channel {c}, row {h}, column {w}. Give finite "
            f"values."
        )
    if own is not None and own.dtype != images.dtype and not torch.is_autocast_enabled(images.device.type):
        raise BadImages(f"images is {images.dtype}, the model {own.dtype}. Give images.to({own.dtype}).")


def _form_of_images(images: Tensor) -> str:
    """What to write instead of images of another number of dimensions, or of none."""
    shape = tuple(images.shape)
    if 0 in shape:
        return "Give a tensor [N, C, H, W] with at least one image of at least one pixel."
    if images.ndim == 3:
        return "It must have 4 dimensions, [N, C, H, W]. Add the batch dimension: images[None]."
    if images.ndim > 4:
        remedy = "images[0]" if set(shape[:-4]) == {1} and images.ndim == 5 else f"images.reshape(-1, *{shape[-3:]})"
        return (
            f"It must have 4 dimensions, [N, C, H, W]: single pictures, not clips or batches of batches. Give {remedy}."
        )
    return "It must have 4 dimensions, [N, C, H, W]: pictures, channels, rows and columns."


def find(name: str) -> Method:
    """The method of that name.

    Errors   BadOption with the nearest names
    """
    if name not in METHODS:
        raise BadOption(f"There is no method {name!r}. {nearest(str(name), METHODS)}METHODS lists all {len(METHODS)}.")
    return METHODS[name]
