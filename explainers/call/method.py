"""A method and its calls: what is checked before the formula, and what is done with its result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call import graph
from explainers.call.current import check_images, one_call, outside_call, packing_of
from explainers.call.each_image import BatchSplit, finite_images, finite_outputs, run_each_image, run_some_images
from explainers.call.forward_wrapper import wrap_forward
from explainers.call.inputs import Packing, SeveralInputs
from explainers.call.loop import Partial, Progress
from explainers.call.profile import forget_profiles
from explainers.call.run import open_run
from explainers.call.view import EvalView
from explainers.derived_targets import Direction, Through
from explainers.dtypes import no_gradient, quantized_class
from explainers.errors import BadImages, BadOption, BadTarget, ExplainerError, UnsupportedModel, WrongType, shorten
from explainers.findings import note_raw, pause_recording
from explainers.hooks.locate import one_layer, unwrap, why_no_hooks
from explainers.layers.layout import GridChanged
from explainers.options import LayerName, Option, unknown_keyword
from explainers.targets import TargetLike

MISSING: Any = object()

MAPS = ("grid", "pixels", "heat")
"""Kinds of results that are one map per image, or pixel attributions that can be reduced to one map."""

STACKED = ("deep_lift_shap",)
"""Methods for which a tensor as `baseline` is a list of baselines for all images."""


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
        if self.gradients and (name := quantized_class(frozenset(map(type, unwrap(model).modules())))):
            return no_gradient(name)
        return self.needs(model) if self.needs else None


def check_calls(declared: Method, attribute_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method so that model, images and options are checked first and the final ReLU is applied last.

    `attribute_inputs` handles several inputs of a network.

    The keywords `forward` and `through` of every method are handled here: they are merged into the model and the
    target, so the function itself always gets None for both.
    """

    function, name = declared.function, declared.name
    placed = declared.returns in ("grid", "features")  # on the cells of a layer, whose placement is recorded
    stacked = name in STACKED

    @functools.wraps(function)
    def method(model: Any = MISSING, images: Any = MISSING, target: TargetLike = None, **keywords: Any) -> Any:
        if images is MISSING or model is MISSING:
            argument = "model" if model is MISSING else "images"
            for each in keywords:  # the argument may be misspelled
                if each not in declared.parameters:
                    raise _unknown(declared, each)
            raise WrongType(f"{name} needs the argument {argument!r}: {name}(model, images).")
        if isinstance(images, tuple):
            return attribute_inputs(method, declared, model, images, target, keywords)
        if "forward" in keywords:
            model = wrap_forward(model, keywords.pop("forward"), images)
        with one_call(model) as view:
            again = functools.partial(method, model)
            some = functools.partial(run_some_images, again, images, target, keywords, stacked=stacked)
            if images is None or view.checked is not images:
                try:
                    check_images(model, images)
                except BadImages:
                    if (rows := finite_images(model, images)) is None:
                        raise
                    return some(rows)
            if images.ndim == 5 and not declared.videos:
                raise BadImages(
                    f"{name} explains images [N, C, H, W], not videos and volumes; images has shape "
                    f"{tuple(images.shape)}. Use another method, such as grad_cam, integrated_gradients, occlusion or "
                    "rise."
                )
            if declared.gradients and view.quantized:
                raise UnsupportedModel(no_gradient(view.quantized))
            rectify, given = check_keywords_of(declared, keywords)
            if (through := given.pop("through", None)) is not None:
                if not declared.reads_class:
                    raise BadTarget(
                        f"{name} does not use gradients of the score, so through=(layer, channels) would "
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
                raw, view.placement = run_each_image(again, images, target, keywords, stacked=stacked)
                return raw
            except Exception as error:
                refused = isinstance(error, ExplainerError) and not view.failed  # before any forward pass
                if refused or (rows := finite_outputs(model, view.network, images)) is None:
                    raise
                return some(rows)
            finally:
                failed, (view.splits, view.failed) = view.failed, outer
            if packing is not None and declared.gradients:
                _refuse_detached_inputs(model, images, target, packing, raw)
            if failed and bool(failed[0].any()):
                raw = raw.masked_fill(failed[0].view(-1, *[1] * (raw.ndim - 1)), torch.nan)
            if not placed:  # only passes inside the method read a layer
                view.placement = None
            note_raw(raw, view.placement)
            return raw.relu() if rectify else raw

    return method


def check_keywords_of(declared: Method, keywords: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Return whether to apply the final ReLU, and the keywords for the function, which never applies it itself.

    Errors   BadOption for a keyword that the function does not have, or a value that it does not accept
    """
    for name, value in keywords.items():
        if name in declared.options:
            declared.options[name].check(value)
        elif name not in declared.parameters:
            raise _unknown(declared, name)
        elif name == "progress" and not (value is None or callable(value)):
            raise BadOption(f"progress={shorten(value)} is not valid. Give a function that takes a Partial, or None.")
    given = dict(keywords)
    if not isinstance(given.get("layer"), (str, nn.Module, type(None))):
        given["layer"] = one_layer(given["layer"])
    return bool(given.pop("relu", declared.relu)), given


def _unknown(declared: Method, name: str) -> BadOption:
    return unknown_keyword(declared.name, name, declared.parameters, declared.parameters[3:])


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
    if isinstance(through, Direction):
        return Through(target, through.layer, through)
    if not isinstance(through, (tuple, list)) or len(through) != 2:
        raise BadOption(
            f"through={shorten(through)} is not valid. Give (layer, channels), for example ('layer3', [17]), or a "
            "Direction or Concept of a layer."
        )
    return Through(target, through[0], through[1])


def _refuse_detached_inputs(
    model: nn.Module, images: Tensor, target: TargetLike, packing: Packing, map: Tensor
) -> None:
    """Raise an error if the score depends on an input without a gradient, so that its attribution is 0 by mistake.

    Errors   UnsupportedModel
    """
    silent = [index for index, part in enumerate(packing.split(map)) if not bool(part.any())]
    if not silent or isinstance(target, Through):
        return
    with pause_recording(), open_run(model, images, target) as run:
        gradients, rows = packing.split(run.backward.gradient(run.images)), range(len(images))
        for index in silent:
            if bool(gradients[index].any()):
                continue

            def scores(changed: Tensor, index: int = index) -> Tensor:
                parts = [*packing.split(run.images)]
                parts[index] = packing.split(changed)[index]
                return run.scoring.score(run.forward(packing.pack(parts)), rows)

            with torch.no_grad():
                graph.refuse_detached(run.view.network, run.images, scores, (), name=f"input {index}")
