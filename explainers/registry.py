"""The table of methods, and the decorator that registers a function in it and validates its calls."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from explainers.derived_targets import Through
from explainers.errors import (
    BadImages,
    BadOption,
    BadTarget,
    ExplainerError,
    UnsupportedModel,
    WrongType,
    kind_of,
    nearest,
    shorten,
)
from explainers.findings import note_raw, pause_recording
from explainers.hooks.locate import one_layer, why_no_hooks
from explainers.keywords import signature_of
from explainers.layers.layout import GridChanged
from explainers.layers.profile import forget_profiles
from explainers.network.dtypes import no_gradient, why_no_gradient
from explainers.network.eval_view import check_images, one_call, outside_call, packing_of
from explainers.network.forward_wrapper import wrap_forward
from explainers.network.inputs import SeveralInputs
from explainers.network.view import EvalView
from explainers.options import LayerName, Option, options_of, unknown_keyword
from explainers.passes.each_image import BatchSplit, finite_images, finite_outputs, run_each_image, run_some_images
from explainers.passes.loop import Partial, Progress
from explainers.perturbation.several_inputs import STACKED, attribute_inputs, refuse_detached_inputs
from explainers.targets import TargetLike

F = TypeVar("F", bound=Callable[..., Any])
_MISSING: Any = object()

MAPS = ("grid", "pixels", "heat")
"""Kinds of results that are one map per image, or pixel attributions that can be reduced to one map."""
_AT_LAYERS = ("grid", "features")
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
    videos: bool = True

    def __call__(self, model: nn.Module, images: Tensor, target: TargetLike = None, **options: Any) -> Tensor:
        """Call the method."""
        return self.function(model, images, target, **options)

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of all arguments, `model` first."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def by_size(self) -> bool:
        """Whether drawings show magnitudes: of gradients, whose sign depends on whether a pixel is bright or dark.

        The sign of other attributions has a meaning, evidence for or against the target.
        """
        return self.returns == "pixels" and self.reduce == "abs_max"

    @property
    def gives_map(self) -> bool:
        """Whether the result is one map per image, or pixel attributions that can be reduced to one map."""
        return self.returns in MAPS

    @property
    def together(self) -> bool:
        """Whether several inputs of a network are attributed together, and not one while the others are constant.

        Methods for images, but not for videos, read the rows and columns of one image.
        """
        return self.returns == "pixels" and self.videos and not self.takes_layer

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


MethodName = Literal[
    "grad_cam", "grad_cam_pp", "hires_cam", "element_wise_grad_cam", "layer_cam", "xgrad_cam", "smooth_grad_cam_pp",
    "shapley_cam", "finer_cam", "cam", "eigen_cam", "eigen_grad_cam", "seg_eigen_cam", "kpca_cam", "fem",
    "deep_feature_factorization", "ablation_cam", "score_cam", "ss_cam", "is_cam", "feature_maps", "token_pca",
    "attention_heads", "channel_effects", "saliency", "input_x_gradient", "smooth_grad", "smooth_grad_squared",
    "var_grad", "integrated_gradients", "blur_integrated_gradients", "gradient_shap", "guided_integrated_gradients",
    "forgrad", "layer_integrated_gradients", "internal_influence", "layer_conductance", "xrai", "guided_backprop",
    "deconvnet", "excitation_backprop", "deep_lift", "deep_lift_shap", "lrp", "attn_lrp", "cp_lrp", "guided_grad_cam",
    "refine_cam", "sess", "full_grad", "occlusion", "feature_ablation", "rise", "d_rise", "mc_rise",
    "extremal_perturbation", "vit_cx", "lime", "kernel_shap", "shapley_sampling", "sobol", "hsic", "rex",
    "random_control", "edge_control", "center_control", "attention_rollout", "transformer_attribution", "le_grad",
    "grad_eclip",
]  # fmt: skip
"""The names of all methods, so that editors complete them. Written by `python -m tests.project.test_docs`."""

MethodLike = MethodName | str | Method | Callable[..., Tensor]
"""A method: its name, its function, or its entry in `METHODS`."""


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
    videos: bool = True,
) -> Callable[[F], F]:
    """Register a function in `METHODS` and validate its arguments before each call.

    `returns` is "grid", "pixels", "heat", "channels" or "features" (shapes in the package docstring); `reduce` is how
    `explain` reduces pixel attributions to one map; `unit` is the unit of the values; `scale_free` is a message for
    methods whose values are shares or ranks by definition and do not grow with the score; `reads_class` is False if the
    result does not depend on the target; `gradients` says whether the method uses gradients, if this differs from the
    default of its family; `needs` returns the reason why the method does not support a model, or None; `caution` is one
    sentence that warns users that the maps measured no better than those of a control, and recommends an alternative;
    `videos` says whether the method accepts videos and volumes [N, C, T, H, W].

    A function with an option `relu` returns the map before its final ReLU. The decorator applies the ReLU, also to
    partial maps.
    """

    def register(function: F) -> F:
        shown: Any = function
        shown.__signature__ = signature_of(function)
        options, parameters = options_of(function), shown.__signature__.parameters
        relu = parameters["relu"].default if "relu" in parameters else None
        uses_gradients = family in _WITH_GRADIENTS if gradients is None else gradients
        placed = returns in _AT_LAYERS
        validated = _validate_calls(function, options, parameters, uses_gradients, placed, reads_class, videos)
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
            videos=videos,
        )
        return cast(F, validated)

    return register


def _validate_calls(
    function: Callable[..., Any],
    options: Mapping[str, Option],
    parameters: Mapping[str, inspect.Parameter],
    gradients: bool,
    placed: bool,
    reads_class: bool,
    videos: bool,
) -> Callable[..., Any]:
    """Wrap a function so that model, images and options are checked first and the final ReLU is applied last.

    `placed` methods return the cells of a layer; the layer's placement is recorded with their result.

    The keywords `forward` and `through` of every method are handled here: they are merged into the model and the
    target, so the function itself always gets None for both.
    """

    @functools.wraps(function)
    def method(model: Any = _MISSING, images: Any = _MISSING, target: TargetLike = None, **keywords: Any) -> Any:
        if images is _MISSING or model is _MISSING:
            raise _missing(function.__name__, parameters, keywords, "model" if model is _MISSING else "images")
        if isinstance(images, tuple):
            chosen = METHODS[function.__name__]
            return attribute_inputs(method, chosen, model, images, target, keywords)
        if "forward" in keywords:
            model = wrap_forward(model, keywords.pop("forward"), images)
        with one_call(model) as view:
            again, is_stacked = functools.partial(method, model), function.__name__ in STACKED
            run_some = functools.partial(run_some_images, again, images, target, keywords, stacked=is_stacked)
            if images is None or view.checked is not images:
                try:
                    check_images(model, images)
                except BadImages:
                    if (rows := finite_images(model, images)) is None:
                        raise
                    return run_some(rows)
            if images.ndim == 5 and not videos:
                raise BadImages(_no_videos(function.__name__, images))
            if gradients and view.quantized:
                raise UnsupportedModel(no_gradient(view.quantized))
            rectify, given = _check_keywords(function, options, parameters, keywords)
            if (through := given.pop("through", None)) is not None:
                if not reads_class:
                    raise BadTarget(
                        f"{function.__name__} does not use gradients of the score, so through=(layer, channels) would "
                        "have no effect. Omit through, or choose a gradient method such as grad_cam."
                    )
                target = _restrict_target(target, through)
            packing = packing_of(images) if isinstance(view.model, SeveralInputs) else None
            if given.get("progress") is not None:
                of_layer = view if placed else None
                given["progress"] = _wrap_progress(given["progress"], of_layer, rectify, has_map=packing is None)
            outer, view.splits, view.failed, view.placement = (view.splits, view.failed), True, [], None
            try:
                raw = function(model, images, target, **given)
            except GridChanged:  # by a hook of the user since the network was profiled
                forget_profiles(view)
                raw = function(model, images, target, **given)
            except BatchSplit:
                raw, view.placement = run_each_image(again, images, target, keywords, stacked=is_stacked)
                return raw
            except Exception as error:
                refused = isinstance(error, ExplainerError) and not view.failed  # before any forward pass
                if refused or (rows := finite_outputs(model, view.network, images)) is None:
                    raise
                return run_some(rows)
            finally:
                failed, (view.splits, view.failed) = view.failed, outer
            if packing is not None and gradients:
                refuse_detached_inputs(model, images, target, packing, raw)
            if failed and bool(failed[0].any()):
                raw = raw.masked_fill(failed[0].view(-1, *[1] * (raw.ndim - 1)), torch.nan)
            if not placed:  # only passes inside the method read a layer
                view.placement = None
            note_raw(raw, view.placement)
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
        elif name not in parameters:
            raise _unknown(function.__name__, parameters, name)
        elif name == "progress" and not (value is None or callable(value)):
            raise BadOption(f"progress={shorten(value)} is not valid. Give a function that takes a Partial, or None.")
    given = dict(keywords)
    if not isinstance(given.get("layer"), (str, nn.Module, type(None))):
        given["layer"] = one_layer(given["layer"])
    rectify = bool(given.pop("relu", "relu" in parameters and parameters["relu"].default))
    return rectify, given


def _unknown(function: str, parameters: Iterable[str], name: str) -> BadOption:
    positional = ("model", "images", "target")
    return unknown_keyword(function, name, parameters, [each for each in parameters if each not in positional])


def _missing(
    function: str, parameters: Mapping[str, inspect.Parameter], keywords: Mapping[str, Any], argument: str
) -> Exception:
    """Return the error for a call without model or images, which may be misspelled among the keywords."""
    for name in keywords:
        if name not in parameters:
            return _unknown(function, parameters, name)
    return WrongType(f"{function} needs the argument {argument!r}: {function}(model, images).")


def rectifies(chosen: Method, keywords: Mapping[str, Any]) -> bool:
    """Return whether the method with these keywords ends in a ReLU, for passes that compute several maps at once.

    Errors   BadOption, as for a call of the method
    """
    return _check_keywords(chosen.function, chosen.options, inspect.signature(chosen.function).parameters, keywords)[0]


def _wrap_progress(progress: Progress, view: EvalView | None, rectify: bool, *, has_map: bool) -> Progress:
    """Wrap the caller's function so that it gets maps after the ReLU, and runs outside this call's context.

    `view` has the placement of the maps, if they are those of a layer. Set `has_map` to False if partial maps
    would be those of several inputs in one tensor.
    """

    def report(partial: Partial) -> Any:
        shown = partial if has_map else replace(partial, map=None)
        if shown.map is not None:
            placement = shown.placement if view is None else view.placement
            shown = replace(shown, map=shown.map.relu() if rectify else shown.map, placement=placement)
        with outside_call(), pause_recording():
            return progress(shown)

    return report


def _restrict_target(target: TargetLike, through: Any) -> Through:
    if not isinstance(through, (tuple, list)) or len(through) != 2:
        raise BadOption(
            f"through={shorten(through)} is not valid. Give (layer, channels), for example ('layer3', [17])."
        )
    return Through(target, through[0], through[1])


def _no_videos(name: str, images: Tensor) -> str:
    """Return the message for a method that does not accept videos and volumes."""
    return (
        f"{name} explains images [N, C, H, W], not videos and volumes; images has shape {tuple(images.shape)}. Use "
        "another method, such as grad_cam, integrated_gradients, occlusion or rise."
    )


def find(chosen: MethodLike) -> Method:
    """Return a method by its name or by its function; a `Method` is returned as it is.

    Names match without case, hyphens, underscores and spaces, also titles and `SHORT_NAMES`: "GradCAM", "Grad-CAM++".

    Errors   BadOption with similar names, or for a function that is not a method
    """
    if isinstance(chosen, Method):
        return chosen
    if not isinstance(chosen, str):
        return _find_function(chosen)
    name = chosen if chosen in METHODS else _by_key().get(name_key(chosen), chosen)
    if name not in METHODS:
        raise BadOption(f"Unknown method {shorten(name)}. {nearest(name, METHODS)}METHODS lists all {len(METHODS)}.")
    return METHODS[name]


SHORT_NAMES = {"ig": "integrated_gradients", "shap": "kernel_shap", "gbp": "guided_backprop"}
"""Common abbreviations of methods. SHAP without further words is the method of its paper for any model."""


def name_key(name: str) -> str:
    """Return a name without case, hyphens, underscores and spaces; "++" is "pp", as in Grad-CAM++."""
    return re.sub(r"[^a-z0-9]", "", name.casefold().replace("×", "x").replace("++", "pp"))


def _by_key() -> dict[str, str]:
    """Return the names of all methods by `name_key` of names, titles and abbreviations."""
    titles = {name_key(each.title): name for name, each in METHODS.items()}
    return SHORT_NAMES | titles | {name_key(name): name for name in METHODS}


def find_function(function: object) -> Method | None:
    """Return the method with this function, or None."""
    return next((each for each in METHODS.values() if each.function is function), None)


def _find_function(function: Any) -> Method:
    if (known := find_function(function)) is not None:
        return known
    if isinstance(function, (type, nn.Module)) or not callable(function):
        raise BadOption(f"The method is {kind_of(function)}. Give a name or a function of METHODS, such as 'grad_cam'.")
    raise BadOption(
        f"{shorten(function)} is not a method of this library. Give a name or a function of METHODS, such as "
        "'grad_cam', or register your own function with the decorator explainers.registry.method."
    )
