"""The table of methods, and `explain`, which runs one and returns it with everything around it."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from .diagnosis import Finding, diagnose, statistics
from .errors import BadImages, BadOption, nearest
from .explanation import Explanation
from .layers import known_layers
from .maps import reduce_channels
from .options import Option, options_of
from .recording import Record, recording
from .sites import LayerName, frozen_graph, no_inner_hooks, unwrap
from .targets import LogProbability, Probability, TargetLike, Through, described

F = TypeVar("F", bound=Callable[..., Any])
_COST = ("batch_size", "progress", "budget")


@dataclass(frozen=True)
class Method:
    """One explainer: what it is called, what it gives back, and what its keywords may be."""

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
    scale_free: str
    needs: Callable[[nn.Module], str | None] | None = field(repr=False)

    def __call__(self, model: nn.Module, images: Tensor, target: TargetLike = None, **options: Any) -> Tensor:
        """The method itself."""
        return self.function(model, images, target, **options)

    def applies(self, model: nn.Module, layer: LayerName | None = None) -> str | None:
        """None where the method can explain this model, else the reason why not, in a sentence."""
        if self.takes_layer and (kind := frozen_graph(unwrap(model))):
            return no_inner_hooks(kind)
        return self.needs(model) if self.needs else None


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
    scale_free: str = "",
    needs: Callable[[nn.Module], str | None] | None = None,
) -> Callable[[F], F]:
    """Enter a function into `METHODS`, with its wrong uses refused before any work.

    `returns` is "grid", "pixels", "heat", "channels" or "features" (shapes in the package's docstring); `reduce` how
    `explain` draws pixels as one map; `scale_free` a sentence where values are shares or ranks by definition and do not
    grow with the score; `needs` gives the reason why the method cannot explain a model, or None.
    """

    def join(function: F) -> F:
        options = options_of(function)
        names = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(model: nn.Module, images: Tensor, target: TargetLike = None, **given: Any) -> Any:
            check_images(model, images)
            if (through := given.pop("through", None)) is not None:
                target = _restricted(target, through)
            for name, value in given.items():
                if name not in names:
                    possible = [each for each in names if each not in ("model", "images", "target")]
                    hint = nearest(name, possible)
                    raise BadOption(
                        f"{function.__name__} has no option {name!r}. {hint}It takes {', '.join(possible) or 'none'}."
                    )
                if name in options:
                    options[name].check(value)
            return function(model, images, target, **given)

        METHODS[function.__name__] = Method(
            name=function.__name__,
            title=title,
            family=family,
            returns=returns,
            paper=paper,
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
            function=checked,
            options=options,
            takes_layer="layer" in names,
            signed=signed and not ("relu" in names and names["relu"].default),
            stochastic="seed" in names,
            long="progress" in names,
            relu=names["relu"].default if "relu" in names else None,
            reduce=reduce,
            scale_free=scale_free,
            needs=needs,
        )
        return cast(F, checked)

    return join


def _restricted(target: TargetLike, through: Any) -> Through:
    if not isinstance(through, (tuple, list)) or len(through) != 2:
        raise BadOption(f"through={through!r} is not possible. Give (layer, channels), for example ('layer3', [17]).")
    return Through(target, through[0], through[1])


def check_images(model: nn.Module, images: Tensor) -> None:
    """Refuse what is not a finite float batch [N, C, H, W] on the model's device and dtype.

    Errors   TypeError where model or images are something else altogether, BadImages otherwise
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}; give an nn.Module that maps images [N, C, H, W] to scores [N, K]."
        )
    if not isinstance(images, Tensor):
        raise TypeError(
            f"images is a {type(images).__name__}; give a float tensor [N, C, H, W], normalised for the model."
        )
    if images.ndim != 4 or 0 in images.shape:
        remedy = (
            "Add the batch dimension: images[None]."
            if images.ndim == 3
            else "Give a tensor [N, C, H, W] with at least one image."
        )
        raise BadImages(f"images has shape {tuple(images.shape)}. {remedy}")
    if not images.is_floating_point():
        raise BadImages(
            f"images is {images.dtype}. Give normalised floats, for example images.float() / 255 less mean, over "
            f"deviation."
        )
    if not bool(torch.isfinite(images).all()):
        n, c, h, w = (int(i) for i in (~torch.isfinite(images)).nonzero()[0])
        raise BadImages(
            f"images holds {images[n, c, h, w].item()} at image {n}, channel {c}, row {h}, column {w}. Give finite "
            f"values."
        )
    own = next((p for p in model.parameters() if p.is_floating_point()), None)
    if own is not None and own.device != images.device:
        raise BadImages(
            f"images is on {images.device}, the model on {own.device}. Give images.to({str(own.device)!r})."
        )
    if own is not None and own.dtype != images.dtype and not torch.is_autocast_enabled(images.device.type):
        raise BadImages(f"images is {images.dtype}, the model {own.dtype}. Give images.to({own.dtype}).")


def find(name: str) -> Method:
    """The method of that name.

    Errors   BadOption with the nearest names
    """
    if name not in METHODS:
        raise BadOption(f"There is no method {name!r}. {nearest(str(name), METHODS)}METHODS lists all {len(METHODS)}.")
    return METHODS[name]


def explain(
    method: str,
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    reduce: str | None = None,
    **options: Any,
) -> Explanation:
    """Run one method and return its map with scores, statistics and findings, from the same pass.

    `reduce` ("sum", "abs_max", "norm") says how methods with one value a pixel and channel become one map.

    Returns  an `Explanation`: `map` [N, h, w] as the paper draws it, `raw` before the final ReLU or reduction
    Errors   those of the method; BadOption for an unknown method or `reduce`
    """
    chosen = find(method)
    if layer is not None and not chosen.takes_layer:
        raise BadOption(f"{method} has no layer: it explains the input. Leave layer out.")
    given = dict(options) if layer is None else {**options, "layer": layer}
    relu = options.get("relu", chosen.relu)
    if chosen.relu is not None:
        chosen.options["relu"].check(relu)
        given["relu"] = False
        given = _with_clamped_progress(given) if relu else given
    began = time.perf_counter()
    with recording() as record:
        raw = chosen(model, images, target, **given)
    seconds = time.perf_counter() - began
    how = reduce or chosen.reduce
    shown = _as_map(chosen, raw, how).relu() if relu else _as_map(chosen, raw, how)
    resolved = {name: options.get(name, option.default) for name, option in chosen.options.items()}
    if chosen.returns in ("pixels", "features"):
        resolved["reduce"] = how
    flat = raw if raw.ndim == 3 else shown
    return Explanation(
        method=method,
        layer=record.layer,
        target=described(record.target, len(images)) if record.target else None,
        options=resolved,
        map=shown,
        raw=raw,
        scores=record.scores,
        seconds=seconds,
        statistics=statistics(shown, raw, target_scores=record.target_scores, gradient_norms=record.gradient_norms),
        findings=_with_own(_findings(chosen, model, images, record, shown, flat, relu), record),
    )


def _with_clamped_progress(given: dict[str, Any]) -> dict[str, Any]:
    progress = given.get("progress")
    if progress is None:
        return given

    def clamped(partial: Any) -> Any:
        shown = None if partial.map is None else partial.map.relu()
        return progress(type(partial)(partial.fraction, shown, partial.done, partial.total))

    return {**given, "progress": clamped}


def _as_map(chosen: Method, raw: Tensor, how: str) -> Tensor:
    if chosen.returns in ("pixels", "features"):
        return reduce_channels(raw, how)
    return raw[:, None] if chosen.returns == "channels" else raw


def _with_own(found: list[list[Finding]], record: Record) -> list[list[Finding]]:
    """What the method itself had to say stands first."""
    for picture, row in enumerate(found):
        own: list[Finding] = []
        for where, finding in record.findings:
            if where in (None, picture) and finding not in own:
                own.append(finding)
        row[:0] = own
    return found


def _findings(
    chosen: Method, model: nn.Module, images: Tensor, record: Record, shown: Tensor, flat: Tensor, relu: bool | None
) -> list[list[Any]]:
    if chosen.returns == "channels":
        return [[] for _ in images]
    earlier = _stage_before(model, images, record.layer) if record.layer and chosen.returns == "grid" else None
    return diagnose(
        shown,
        flat,
        method=chosen.name,
        layer=record.layer,
        target_scores=record.target_scores,
        gradient_norms=record.gradient_norms,
        scores=record.scores,
        probability_target=isinstance(record.target, (Probability, LogProbability)),
        earlier_layer=earlier,
        relu=relu,
    )


def _stage_before(model: nn.Module, images: Tensor, layer: str) -> str | None:
    """The last stage before `layer` with a finer grid, where a profile of the model is already known."""
    layers = known_layers(model, images)
    index = next((i for i, each in enumerate(layers) if each.name == layer), None)
    if index is None:
        return None
    own = layers[index].grid or (0, 0)
    finer = [
        each.name
        for each in layers[:index]
        if each.stage and each.grid and each.grid[0] * each.grid[1] > own[0] * own[1]
    ]
    return finer[-1] if finer else None
