"""The evaluated maps: the caller's and those of the controls, at the images' size, and how to compute them again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import outside_call
from explainers.call.loop import Partial, Progress, StopLoop
from explainers.call.method import Method
from explainers.call.run import Run
from explainers.call.scores import at_least_float32
from explainers.errors import BadOption, WrongType, kind_of
from explainers.explanation.result import Explanation
from explainers.explanation.run import explain
from explainers.findings import pause_recording
from explainers.maps.arrays import Arrays, as_tensor
from explainers.maps.resize import reduce_channels, resize
from explainers.perturbation.control_maps import center_map, edge_map, random_map
from explainers.placement import place
from explainers.registry import METHODS, find, find_function

Maps = Tensor | Explanation | str | Method | Callable[..., Tensor]
"""Maps [N, h, w] or attributions [N, C, H, W], an `Explanation`, a method by its name or function, or a function of the
images.
"""

RANDOM = 8
"""Number of random control maps. It is even, because every second map is the negative of the one before.

It decides how small a difference on one image can be significant. With 8 maps and the default metrics, the critical
difference is about 3.8 standard deviations of random maps; with infinitely many it would be 2.6, with 4 about 11.
"""


@dataclass(eq=False)
class Candidate:
    """One map for each image: the caller's (`name` is "") or a control's.

    `maps` [N, H, W] have the images' size; `raw` [N, C, H, W] or [N, h, w] is the method's result; `again` computes
    both for other images [N, C, H, W], raw first, None if unknown; `mirror` is the index of the candidate with reversed
    ranks.
    """

    name: str
    maps: Tensor
    raw: Tensor
    again: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    explanation: Explanation | None = None
    mirror: int | None = None


def control_maps(images: Tensor, seed: int) -> list[Candidate]:
    """Return the controls of the images. They follow the caller's maps, which have index 0."""
    makers: list[tuple[str, Callable[[Tensor], Tensor]]] = [("edge", edge_map), ("center", center_map)]
    makers += [("random", partial(random_map, seed=seed + k // 2)) for k in range(RANDOM)]
    found = []
    for k, (name, make) in enumerate(makers):
        is_negative = name == "random" and k % 2 == 1
        again = partial(_raw_and_map, make, is_negative)
        heat, raw = again(images)
        found.append(Candidate(name, heat, raw, again, mirror=k if is_negative else None))
    return found


def _raw_and_map(make: Callable[[Tensor], Tensor], is_negative: bool, images: Tensor) -> tuple[Tensor, Tensor]:
    heat = 1 - make(images) if is_negative else make(images)
    return heat, heat


@dataclass(eq=False)
class OwnMaps:
    """Converts the caller's maps to a candidate; `grad` is the caller's gradient mode, `magnitude` drops the signs."""

    model: nn.Module
    run: Run
    magnitude: bool
    grad: bool

    def candidate(self, maps: Maps, inside: Progress | None = None) -> Candidate:
        """Return the caller's maps at the images' size, and how to compute them for other images.

        `inside` is the progress function of a long method. If it returns False, the maps are the best so far.

        Errors   BadOption
        """
        x = self.run.images
        explanation = maps if isinstance(maps, Explanation) else None
        again: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        if isinstance(maps, str):
            limits: dict[str, Any] = {"progress": inside} if METHODS[maps].long else {}
            if limits and self.run.loop.left < math.inf:  # a long method stops when the call stops
                limits["budget"] = max(self.run.loop.left, 1e-3)
            explanation = explain(maps, self.model, x, self.run.scoring.target, compare=False, **limits)
        if explanation is not None:
            raw, heat = _values(explanation), explanation.placed
            again = self._rerun_method(explanation)
        elif isinstance(maps, Tensor):
            raw, heat = maps, _reduce(maps, x)
        else:
            again = partial(self._call_function, maps)  # type: ignore[arg-type]
            raw, heat = again(x)
        check_shape_and_values(heat, x)
        resized = None if again is None else partial(self._again, again)
        return Candidate("", self._resize(heat), at_least_float32(raw).to(x.device), resized, explanation)

    def unfinished(self, partial: Partial) -> Candidate:
        """Return the best maps so far of a long method."""
        assert partial.map is not None
        heat = place(partial.map, partial.placement)
        return Candidate("", self._resize(_reduce(heat, self.run.images)), heat)

    def _again(self, again: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor) -> tuple[Tensor, Tensor]:
        raw, heat = again(images)
        return at_least_float32(raw).to(images.device), self._resize(heat)

    def _resize(self, heat: Tensor) -> Tensor:
        x = self.run.images
        kind = torch.promote_types(at_least_float32(heat).dtype, at_least_float32(x).dtype)
        large = resize(heat.detach().to(x.device, kind), tuple(x.shape[2:]))
        return large.abs() if self.magnitude else large

    def _rerun_method(self, explanation: Explanation) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
        """Return a function that runs the same method on other images, with the same layer and options."""
        if explanation.method not in METHODS or explanation.keywords is None:
            return None
        method = METHODS[explanation.method]
        same = {name: value for name, value in explanation.options.items() if name in (*method.options, "reduce")}
        same |= explanation.keywords | ({"layer": explanation.layer} if method.takes_layer else {})
        classes = explanation.target if isinstance(explanation.target, list) else self.run.scoring.target

        def again(images: Tensor) -> tuple[Tensor, Tensor]:
            limits: dict[str, Any] = {"progress": self._stop_with_call} if method.long else {}
            with pause_recording():
                found = explain(method.name, self.model, images, classes, compare=False, **same, **limits)
            return _values(found), found.placed

        return again

    def _stop_with_call(self, partial: Partial) -> None:
        """Abort a run of a long method when the call stops: its partial map cannot be compared with the full one."""
        progress = self.run.loop.progress
        stopped = progress is not None and progress(Partial(0.0, None, 0, partial.total)) is False
        if stopped or self.run.loop.left <= 0:
            raise StopLoop

    def _call_function(self, function: Callable[[Tensor], Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
        """Call the caller's function in the caller's gradient mode and outside this call's context."""
        with outside_call(), pause_recording(), torch.set_grad_enabled(self.grad):
            found = as_tensor(function(images.clone()))
        if not isinstance(found, Tensor) or found.ndim not in (images.ndim - 1, images.ndim):
            given = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"type {type(found).__name__}"
            form = "[N, h, w]" if images.ndim == 4 else "[N, t, h, w]"
            raise BadOption(f"The function given as maps returned a result of {given}. It must return maps {form}.")
        check_dense_and_real(found)
        found = at_least_float32(found)
        return found, _reduce(found, images)


def _values(explanation: Explanation) -> Tensor:
    """Return the method's result after its final ReLU and before the reduction of channels."""
    return explanation.raw if explanation.raw.ndim == explanation.map.ndim + 1 else explanation.map


def _reduce(maps: Tensor, images: Tensor) -> Tensor:
    return reduce_channels(maps) if maps.ndim == images.ndim else maps


def name_method(maps: Maps | Arrays) -> Maps | Arrays:
    """Return the name of a method that was given by name, function or entry in `METHODS`; other maps as they are."""
    if isinstance(maps, str):
        return find(maps).name
    known = maps if isinstance(maps, Method) else find_function(maps)
    return maps if known is None else known.name


def check_maps(maps: Any, images: Tensor) -> None:
    """Check, before any computation, that `maps` is valid for these images.

    Errors   WrongType, BadOption
    """
    if isinstance(maps, Explanation):
        if maps.method in METHODS:
            _check_method(METHODS[maps.method])
        check_shape_and_values(maps.map, images)
    elif isinstance(maps, str):
        _check_method(find(maps))
    elif isinstance(maps, Tensor):
        check_dense_and_real(maps)
        check_shape_and_values(_reduce(maps, images), images)
    elif not callable(maps):
        raise WrongType(
            f"maps is {kind_of(maps)}; give a tensor or numpy array [N, h, w], an Explanation, a method's name or a "
            "function of the images."
        )


def _check_method(method: Method) -> None:
    if method.returns == "channels":
        raise BadOption(
            f"{method.name} returns one value per channel, which is not a map of the image. Evaluate another method."
        )


def check_dense_and_real(maps: Tensor) -> None:
    """Check that the maps are neither sparse nor complex.

    Errors   BadOption
    """
    if maps.layout != torch.strided or maps.is_complex():
        kind = "complex" if maps.is_complex() else "sparse"
        raise BadOption(f"The maps are {kind}. Give real numbers in a dense tensor: maps.to_dense(), maps.abs().")


def check_shape_and_values(maps: Tensor, images: Tensor) -> None:
    """Check that maps [N, h, w] are one per image, and finite floats.

    Errors   BadOption
    """
    if maps.ndim != images.ndim - 1 or len(maps) != len(images) or 0 in maps.shape:
        kind, cells = ("image", "h, w") if images.ndim == 4 else ("video", "t, h, w")
        raise BadOption(
            f"The maps have shape {tuple(maps.shape)} for {len(images)} {kind}{'s' * (len(images) > 1)}. Give one map "
            f"per {kind}: [{len(images)}, {cells}]."
        )
    if not maps.is_floating_point():
        raise BadOption(f"The maps are {maps.dtype}. Give floats: maps.float().")
    if not bool(maps.isfinite().all()):
        n, *at = (~maps.isfinite()).nonzero()[0].tolist()
        names = ("frame", "row", "column")[-len(at) :]
        where = ", ".join(f"{name} {index}" for name, index in zip(names, at, strict=True))
        broken = [f"{k}" for k, each in enumerate(maps) if not bool(each.isfinite().all())]
        others = "" if len(broken) == len(maps) else f", or leave out the images {', '.join(broken)}"
        raise BadOption(f"The map of image {n} contains {maps[(n, *at)].item()} at {where}. Give finite maps{others}.")
