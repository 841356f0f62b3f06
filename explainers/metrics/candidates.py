"""What is judged: the caller's maps at the images' size, and the controls' maps, each with the way to make it again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.explanation.result import Explanation
from explainers.explanation.run import explain
from explainers.findings import unrecorded
from explainers.maps.resize import reduce_channels, resize
from explainers.methods.controls import centre_map, edge_map, random_map
from explainers.network.eval_view import outside_call
from explainers.passes.loop import Ended, Partial, Progress
from explainers.passes.run import Run, at_least_float32
from explainers.registry import METHODS, Method, find

Maps = Tensor | Explanation | str | Callable[[Tensor], Tensor]
"""Maps [N, h, w] or attributions [N, C, H, W], an `Explanation`, a method's name, or a function of the images."""

RANDOM = 4
"""Random control maps: an even number, of which every second is the negative of the one before."""


@dataclass(eq=False)
class Candidate:
    """One map for each image: the caller's (`name` is "") or a control's.

    `maps` [N, H, W] are at the images' size; `raw` [N, C, H, W] or [N, h, w] as the method gives them; `again` makes
    both of other images [N, C, H, W], raw first, None where that is not known; `mirror` is the candidate whose ranks
    are the reverse.
    """

    name: str
    maps: Tensor
    raw: Tensor
    again: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    explanation: Explanation | None = None
    mirror: int | None = None


def control_maps(images: Tensor, seed: int) -> list[Candidate]:
    """The controls of the images; they stand behind the caller's maps, whose place is 0."""
    makers: list[tuple[str, Callable[[Tensor], Tensor]]] = [("edge", edge_map), ("centre", centre_map)]
    for place in range(RANDOM):
        makers.append(("random", partial(_random, seed=seed + place // 2, negative=bool(place % 2))))
    found = []
    for place, (name, make) in enumerate(makers):
        heat = make(images)
        mirror = place if name == "random" and place % 2 else None
        found.append(Candidate(name, heat, heat, partial(_twice, make), mirror=mirror))
    return found


def _twice(make: Callable[[Tensor], Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
    heat = make(images)
    return heat, heat


def _random(images: Tensor, seed: int, negative: bool) -> Tensor:
    heat = random_map(images, seed=seed)
    return 1 - heat if negative else heat


@dataclass(eq=False)
class OwnMaps:
    """How the caller's maps become a candidate; `grad` is the caller's gradient mode, `magnitude` drops the signs."""

    model: nn.Module
    run: Run
    magnitude: bool
    grad: bool

    def candidate(self, maps: Maps, inside: Progress | None = None) -> Candidate:
        """The caller's maps at the images' size, and how to make them for other images.

        `inside` is asked while a long method makes them; where it answers False, they are its best so far.

        Errors   BadOption
        """
        x = self.run.images
        explanation = maps if isinstance(maps, Explanation) else None
        again: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        if isinstance(maps, str):
            limits = self._limits(inside) if METHODS[maps].long else {}
            explanation = explain(maps, self.model, x, self.run.target, compare=False, **limits)
        if explanation is not None:
            raw, heat = _values(explanation), explanation.map
            again = self._method(explanation)
        elif isinstance(maps, Tensor):
            raw, heat = maps, _flat(maps)
        else:
            function: Any = maps
            again = partial(self._function, function)
            raw, heat = again(x)
        refuse_maps(heat, x)
        made = None if again is None else partial(self._again, again)
        return Candidate("", self._enlarged(heat), at_least_float32(raw).to(x.device), made, explanation)

    def unfinished(self, heat: Tensor) -> Candidate:
        """The best maps so far of a long method."""
        return Candidate("", self._enlarged(_flat(heat)), heat)

    def _again(self, again: Callable[[Tensor], tuple[Tensor, Tensor]], images: Tensor) -> tuple[Tensor, Tensor]:
        raw, heat = again(images)
        return at_least_float32(raw).to(images.device), self._enlarged(heat)

    def _enlarged(self, heat: Tensor) -> Tensor:
        x = self.run.images
        height, width = x.shape[-2:]
        kind = torch.promote_types(at_least_float32(heat).dtype, at_least_float32(x).dtype)
        large = resize(heat.detach().to(x.device, kind), (height, width))
        return large.abs() if self.magnitude else large

    def _limits(self, inside: Progress | None) -> dict[str, Any]:
        """The options of a long method that ends with the call."""
        loop = self.run.loop
        left = math.inf if loop is None else loop.left
        return {"progress": inside} | ({"budget": max(left, 1e-3)} if left < math.inf else {})

    def _method(self, explanation: Explanation) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
        """Raw values and maps of other images by the same method, at the same layer, with the same options."""
        if explanation.method not in METHODS or explanation.keywords is None:
            return None
        method = METHODS[explanation.method]
        same: dict[str, Any] = {name: value for name, value in explanation.options.items() if name in method.options}
        same |= explanation.keywords
        same |= {"reduce": explanation.options["reduce"]} if "reduce" in explanation.options else {}
        same |= {"layer": explanation.layer} if method.takes_layer else {}
        classes = explanation.target if isinstance(explanation.target, list) else self.run.target

        def again(images: Tensor) -> tuple[Tensor, Tensor]:
            limits: dict[str, Any] = {"progress": self._or_end} if method.long else {}
            with unrecorded():
                found = explain(method.name, self.model, images, classes, compare=False, **same, **limits)
            return _values(found), found.map

        return again

    def _or_end(self, partial: Partial) -> None:
        """End a run of a long method with the call: what it has so far is another map, and no change of this one."""
        loop = self.run.loop
        if loop is None:
            return
        stopped = loop.progress is not None and loop.progress(Partial(0.0, None, 0, partial.total)) is False
        if stopped or not loop.affords():
            raise Ended

    def _function(self, function: Callable[[Tensor], Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
        """The caller's function, in the caller's gradient mode and outside of this call."""
        with outside_call(), unrecorded(), torch.set_grad_enabled(self.grad):
            found = function(images.clone())
        if not isinstance(found, Tensor) or found.ndim not in (3, 4):
            given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise BadOption(f"The function of the images gave {given}. Let it return maps [N, h, w].")
        refuse_kind(found)
        found = at_least_float32(found)
        return found, _flat(found)


def _values(explanation: Explanation) -> Tensor:
    """What the method itself gives: after its final ReLU, before channels are reduced."""
    return explanation.raw if explanation.raw.ndim == 4 else explanation.map


def _flat(maps: Tensor) -> Tensor:
    return reduce_channels(maps) if maps.ndim == 4 else maps


def refuse(maps: Any, images: Tensor) -> None:
    """Refuse what are no maps of these images, before any work.

    Errors   TypeError, BadOption
    """
    if isinstance(maps, Explanation):
        if maps.method in METHODS:
            _refuse_no_map(METHODS[maps.method])
        refuse_maps(maps.map, images)
    elif isinstance(maps, str):
        _refuse_no_map(find(maps))
    elif isinstance(maps, Tensor):
        if maps.ndim not in (3, 4):
            raise BadOption(
                f"maps has shape {tuple(maps.shape)}. Give maps [N, h, w] or attributions [N, C, H, W]; a single map m "
                "as m[None]."
            )
        refuse_kind(maps)
        refuse_maps(_flat(maps), images)
    elif isinstance(maps, Method) or maps in [each.function for each in METHODS.values()]:
        name = maps.name if isinstance(maps, Method) else maps.__name__
        raise TypeError(f"maps is the method {name} itself. Give its name: {name!r}.")
    elif not callable(maps):
        raise TypeError(
            f"maps is a {type(maps).__name__}; give a tensor [N, h, w], an Explanation, a method's name or a function "
            "of the images."
        )


def _refuse_no_map(method: Method) -> None:
    if method.returns == "channels":
        raise BadOption(f"{method.name} gives a number for each channel, no map of the image. Evaluate another method.")


def refuse_kind(maps: Tensor) -> None:
    """Refuse sparse and complex tensors.

    Errors   BadOption
    """
    if maps.layout != torch.strided or maps.is_complex():
        kind = "complex" if maps.is_complex() else "sparse"
        raise BadOption(f"The maps are {kind}. Give real numbers in a dense tensor: maps.to_dense(), maps.abs().")


def refuse_maps(maps: Tensor, images: Tensor) -> None:
    """Refuse maps [N, h, w] of another number than there are images, and such as are not finite and real.

    Errors   BadOption
    """
    if maps.ndim != 3 or len(maps) != len(images) or 0 in maps.shape:
        raise BadOption(
            f"The maps are {tuple(maps.shape)} for {len(images)} image{'s' * (len(images) > 1)}. Give one map for "
            f"each: [{len(images)}, h, w]."
        )
    if not maps.is_floating_point():
        raise BadOption(f"The maps are {maps.dtype}. Give floats: maps.float().")
    if not bool(maps.isfinite().all()):
        n, row, column = (~maps.isfinite()).nonzero()[0].tolist()
        raise BadOption(
            f"The map of image {n} holds {maps[n, row, column].item()} at row {row}, column {column}. Give finite maps."
        )
