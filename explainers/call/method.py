"""A call of a method: what is checked before the formula, and what is done with its result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
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
from explainers.dtypes import no_gradient
from explainers.errors import BadImages, BadOption, BadTarget, ExplainerError, UnsupportedModel, WrongType, shorten
from explainers.findings import note_raw, pause_recording
from explainers.hooks.locate import one_layer
from explainers.layers.layout import GridChanged
from explainers.options import Option, unknown_keyword
from explainers.targets import TargetLike

MISSING: Any = object()


def check_calls(
    function: Callable[..., Any],
    options: Mapping[str, Option],
    parameters: Mapping[str, inspect.Parameter],
    *,
    gradients: bool,
    placed: bool,
    reads_class: bool,
    videos: bool,
    stacked: bool,
    attribute_inputs: Callable[..., Any],
) -> Callable[..., Any]:
    """Wrap a method so that model, images and options are checked first and the final ReLU is applied last.

    `placed` methods return the cells of a layer; the layer's placement is recorded with their result. The images of
    `stacked` methods may have a row of masks each. `attribute_inputs` handles several inputs of a network.

    The keywords `forward` and `through` of every method are handled here: they are merged into the model and the
    target, so the function itself always gets None for both.
    """

    @functools.wraps(function)
    def method(model: Any = MISSING, images: Any = MISSING, target: TargetLike = None, **keywords: Any) -> Any:
        if images is MISSING or model is MISSING:
            raise _missing(function.__name__, parameters, keywords, "model" if model is MISSING else "images")
        if isinstance(images, tuple):
            return attribute_inputs(method, function.__name__, model, images, target, keywords)
        if "forward" in keywords:
            model = wrap_forward(model, keywords.pop("forward"), images)
        with one_call(model) as view:
            again = functools.partial(method, model)
            run_some = functools.partial(run_some_images, again, images, target, keywords, stacked=stacked)
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
            rectify, given = check_keywords_of(function, options, parameters, keywords)
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
                raw, view.placement = run_each_image(again, images, target, keywords, stacked=stacked)
                return raw
            except Exception as error:
                refused = isinstance(error, ExplainerError) and not view.failed  # before any forward pass
                if refused or (rows := finite_outputs(model, view.network, images)) is None:
                    raise
                return run_some(rows)
            finally:
                failed, (view.splits, view.failed) = view.failed, outer
            if packing is not None and gradients:
                _refuse_detached_inputs(model, images, target, packing, raw)
            if failed and bool(failed[0].any()):
                raw = raw.masked_fill(failed[0].view(-1, *[1] * (raw.ndim - 1)), torch.nan)
            if not placed:  # only passes inside the method read a layer
                view.placement = None
            note_raw(raw, view.placement)
            return raw.relu() if rectify else raw

    return method


def check_keywords_of(
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


def _no_videos(name: str, images: Tensor) -> str:
    """Return the message for a method that does not accept videos and volumes."""
    return (
        f"{name} explains images [N, C, H, W], not videos and volumes; images has shape {tuple(images.shape)}. Use "
        "another method, such as grad_cam, integrated_gradients, occlusion or rise."
    )


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
