"""Calls with several inputs of a network: `saliency(model, (image, depth))`.

Methods that attribute pixels explain all inputs together: these are packed into one tensor (call/inputs.py), and the
result is split into one attribution for each. The sum over all of them is complete. Other methods read the rows and
columns of an image, so they explain one input while the others keep their values, one image of the batch after the
other. Those that explain a layer return its map once, on the grid of the first input that the layer depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from explainers.call.each_image import (
    finite_rows,
    is_dense_batch,
    option_of_images,
    progress_of_all,
    run_each_image,
    target_of_images,
)
from explainers.call.inputs import OneInput, Packing, SeveralInputs, check_inputs, with_inputs
from explainers.call.loop import Partial
from explainers.call.method import STACKED, Method
from explainers.errors import BadOption, ExplainerError, NoSpatialOutput, shorten
from explainers.findings import scatter_rows
from explainers.nested import map_tensors
from explainers.perturbation.baselines import baseline_of, refuse_values
from explainers.targets import Target, TargetLike, as_target

T = TypeVar("T")

_OF_INPUT = ("baseline", "baselines", "masks", "low", "high")
"""Options that may be a tuple with one value for each input."""


def attribute_inputs(
    method: Callable[..., Any],
    chosen: Method,
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    target: TargetLike,
    options: Mapping[str, Any],
) -> Any:
    """Return the results of `method`, the function of the `chosen` entry of METHODS, for several inputs.

    Errors   those of the method
    """
    if (some := finite_inputs(inputs, target, options, chosen.name)) is not None:
        rows, kept, kept_target, own = some
        found = method(model, kept, kept_target, **own)
        return map_tensors(found, lambda part: scatter_rows(part, rows, len(inputs[0])))
    if not chosen.together:
        return explain_each_input(method, chosen.returns, model, inputs, target, options, torch.cat)
    packed_model, packed, own = pack_call(chosen.name, model, inputs, options)
    return packed_model.split(method(packed_model, packed, target, **own))


def finite_inputs(
    inputs: tuple[Tensor, ...], target: TargetLike, options: Mapping[str, Any], method: str
) -> tuple[list[int], tuple[Tensor, ...], Target | None, dict[str, Any]] | None:
    """Return the rows that are finite in all inputs, and inputs, target and options of a call with these rows.

    Returns  None if all rows are finite, or none is
    """
    if options.get("forward") is not None or not all(map(is_dense_batch, inputs)):
        return None
    if len(set(map(len, inputs))) != 1 or (rows := finite_rows([each.detach() for each in inputs])) is None:
        return None
    requested = None if target is None else as_target(target, len(inputs[0]))
    own = dict(options)
    for name in _OF_INPUT:
        if isinstance(value := own.get(name), tuple) and len(value) == len(inputs):
            is_stacked = name == "baselines" or method in STACKED
            pairs = zip(value, inputs, strict=True)
            own[name] = tuple(option_of_images(name, each, rows, given, is_stacked) for each, given in pairs)
    if callable(own.get("progress")):
        own["progress"] = progress_of_all(own["progress"], rows, len(inputs[0]))
    kept = tuple(each[rows] for each in inputs)
    return rows, kept, None if requested is None else target_of_images(requested, rows), own


def pack_call(
    method: str, model: nn.Module, inputs: tuple[Tensor, ...], options: Mapping[str, Any]
) -> tuple[SeveralInputs, Tensor, dict[str, Any]]:
    """Return model, images and options of the same call with one tensor; `packing_of` tells methods what it contains.

    Errors   WrongType, BadImages, BadOption
    """
    own = dict(options)
    forward = own.pop("forward", None)
    check_inputs(model, inputs, forward)
    packing = Packing(tuple(tuple(each.shape[1:]) for each in inputs))
    for name in _OF_INPUT:
        if isinstance(value := own.get(name), (tuple, Tensor)):
            is_stacked = name == "baselines" or method in STACKED
            own[name] = _pack_option(name, value, inputs, packing, is_stacked=is_stacked)
    return with_inputs(model, forward, len(inputs[0]), packing), packing.pack(inputs), own


def _pack_option(name: str, value: Any, inputs: tuple[Tensor, ...], packing: Packing, *, is_stacked: bool) -> Tensor:
    if name in ("low", "high"):
        raise BadOption(f"{name} must be a number or None for several inputs, because it holds for all of them.")
    values = _one_for_each(name, value, inputs) if isinstance(value, tuple) else (value,) * len(inputs)
    if not is_stacked:
        if any(isinstance(each, str) and each == "noise" for each in values):
            raise BadOption(f"{name} may be 'noise' only for all inputs together. Give {name}='noise', or tensors.")
        return packing.pack([baseline_of(own, each) for own, each in zip(inputs, values, strict=True)])
    stacks = []
    for own, each in zip(inputs, values, strict=True):
        if not isinstance(each, Tensor) or each.ndim != own.ndim or not len(each):
            raise BadOption(
                f"{name}={shorten(value)} is not valid for several inputs. Give a tuple with a tensor of B baselines "
                f"for each: {', '.join(str(('B', *input.shape[1:])) for input in inputs)}."
            )
        refuse_values(name, each, own)
        try:
            stacks.append(each.detach().to(own).expand(len(each), *own.shape[1:]))
        except RuntimeError as error:
            shape = tuple(own.shape[1:])
            raise BadOption(f"{name} has shape {tuple(each.shape)} for an input of shape {shape}.") from error
    if len({len(each) for each in stacks}) > 1:
        counts = " and ".join(str(len(each)) for each in stacks)
        raise BadOption(f"{name} has {counts} baselines. Give as many for each input; they are used together.")
    return packing.pack(stacks)


def _one_for_each(name: str, value: tuple[Any, ...], inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    if len(value) != len(inputs):
        raise BadOption(f"{name} has {len(value)} values for {len(inputs)} inputs. Give one for each.")
    return value


def explain_each_input(
    method: Callable[..., T],
    returns: str,
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    target: TargetLike,
    options: Mapping[str, Any],
    join: Callable[[list[T]], T],
) -> T | tuple[T, ...]:
    """Return the result of `method(model, images, target, **options)` for each input, while the others are constant.

    `join` concatenates the results of the images of a batch. If the method `returns` the map of a layer, there is a
    single result: that for the first input for which the layer has a grid.

    Errors   those of the method
    """
    forward = options.get("forward")
    check_inputs(model, inputs, forward)
    count, of_layer = len(inputs), returns not in ("pixels", "heat")

    def explain_input(index: int) -> T:
        found: list[T] = []

        def explain_row(image: Tensor, own_target: TargetLike, **own: Any) -> Tensor:
            row = len(found)
            others = tuple(each[row : row + 1].detach() for k, each in enumerate(inputs) if k != index)
            held = with_inputs(model, forward, 1, OneInput(index, others))
            result = method(held, image, own_target, **own)
            found.append(result)
            return result if isinstance(result, Tensor) else result.map  # type: ignore[attr-defined]

        own = {name: value for name, value in options.items() if name != "forward"}
        for name in _OF_INPUT:
            if isinstance(own.get(name), tuple):
                own[name] = _one_for_each(name, own[name], inputs)[index]
        if not of_layer:
            if own.get("budget") is not None:
                own["budget"] = own["budget"] / count
            if own.get("progress") is not None:
                own["progress"] = _share_of(own["progress"], index, count)
        try:
            run_each_image(explain_row, inputs[index], target, own, stacked=False)
        except ExplainerError as error:
            other = " If it depends on another input only, explain that one alone: give the rest by forward=."
            advice = other if isinstance(error, NoSpatialOutput) else ""
            raise type(error)(f"Input {index} of {count}: {error}{advice}") from error
        return join(found)

    if not of_layer:
        return tuple(map(explain_input, range(count)))
    errors = []
    for index in range(count):
        try:
            return explain_input(index)
        except NoSpatialOutput as error:
            errors.append(error)
    raise errors[0]


def _share_of(progress: Callable[[Partial], Any], index: int, count: int) -> Callable[[Partial], Any]:
    """Return the caller's function for one of several inputs, whose fraction is that of the whole call."""
    return lambda partial: progress(replace(partial, fraction=(index + partial.fraction) / count))
