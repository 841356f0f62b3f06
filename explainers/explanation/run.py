"""`explain`: one method's map with everything around it: scores, figures, findings."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption
from explainers.explanation.diagnosis import diagnose, statistics
from explainers.explanation.result import Explanation
from explainers.findings import Finding, Record, recording
from explainers.hooks.locate import unwrap
from explainers.layers.profile import known_layers
from explainers.maps.resize import rank_correlation, reduce_channels
from explainers.network.nan_check import first_broken_layer
from explainers.options import LayerName
from explainers.registry import Method, find
from explainers.targets import Logit, LogProbability, Probability, TargetLike, described


def explain(
    method: str,
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    reduce: str | None = None,
    through: tuple[LayerName, Any] | None = None,
    compare: bool = True,
    trained_size: int | None = None,
    **options: Any,
) -> Explanation:
    """Run one method and return its map with scores, statistics and findings, from the same pass.

    `reduce` ("sum", "abs_max", "norm") says how methods with one value a pixel and channel become one map; `through`,
    (layer, channels), keeps what passes those channels; `compare` draws the runner-up's map as well, where the method
    is quick, to find maps that hardly depend on the class; `trained_size` is the side in pixels of the pictures that
    the network was trained on, where it does not say so itself.

    Returns  an `Explanation`: `map` [N, h, w] as the paper draws it, `raw` before the final ReLU or reduction
    Errors   those of the method; BadOption for an unknown method or `reduce`
    """
    chosen = find(method)
    if layer is not None and not chosen.takes_layer:
        raise BadOption(f"{method} has no layer: it explains the input. Leave layer out.")
    given = dict(options) if layer is None else {**options, "layer": layer}
    if through is not None:
        given["through"] = through
    relu = options.get("relu", chosen.relu)
    if chosen.relu is not None:
        chosen.options["relu"].check(relu)
        given["relu"] = False
    how = reduce or chosen.reduce
    called = _with_clamped_progress(given) if relu else given
    began = time.perf_counter()
    with recording() as record:
        raw = chosen(model, images, target, **called)
    seconds = time.perf_counter() - began
    shown = _as_map(chosen, raw, how).relu() if relu else _as_map(chosen, raw, how)
    resolved = {name: options.get(name, option.default) for name, option in chosen.options.items()}
    resolved |= record.options
    if chosen.returns in ("pixels", "features"):
        resolved["reduce"] = how
    flat = raw if raw.ndim == 3 else shown
    correlation = _runner_up_correlation(chosen, model, images, record, flat, how, given) if compare else None
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
        findings=_findings(chosen, model, images, record, shown, flat, relu, correlation, trained_size),
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


def _runner_up_correlation(
    chosen: Method, model: nn.Module, images: Tensor, record: Record, flat: Tensor, how: str, given: dict[str, Any]
) -> Tensor | None:
    """Rank correlation with the map of each picture's best other class, [N]; None where there is none to compare."""
    scores, target = record.scores, record.target
    quick = chosen.reads_class and not chosen.long and chosen.returns in ("grid", "pixels", "heat")
    if not quick or not isinstance(target, Logit) or scores is None:
        return None
    if scores.shape[1] < 2 or not bool(scores.isfinite().all()) or not bool(flat.isfinite().all()):
        return None
    own = torch.tensor(target.classes, device=scores.device).expand(len(scores))
    others = scores.scatter(1, own[:, None], float("-inf")).argmax(1).tolist()
    with recording():
        other = chosen(model, images, others, **given)
    return rank_correlation(flat, _as_map(chosen, other, how))


def _findings(
    chosen: Method,
    model: nn.Module,
    images: Tensor,
    record: Record,
    shown: Tensor,
    flat: Tensor,
    relu: bool | None,
    correlation: Tensor | None,
    trained_size: int | None,
) -> list[list[Finding]]:
    """The method's own findings, then what the figures show."""
    found: list[list[Finding]] = [[] for _ in images]
    if chosen.returns != "channels":
        earlier = _stage_before(model, images, record.layer) if record.layer else None
        trained = trained_size or _own_size(model)
        whole = bool(shown.isfinite().all())
        target = described(record.target, len(images)) if isinstance(record.target, Logit) else None
        found = diagnose(
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
            target=target if isinstance(target, list) else None,
            sizes=(min(images.shape[-2:]), trained) if trained else None,
            broken_layer=None if whole else first_broken_layer(model, images),
            correlation=correlation,
        )
    for picture, row in enumerate(found):
        own: list[Finding] = []
        for where, finding in record.findings:
            if where in (None, picture) and finding not in own:
                own.append(finding)
        row[:0] = own
    return found


def _own_size(model: nn.Module) -> int | None:
    """The side of the pictures that the network was trained on, where it says so (`image_size`, `default_cfg`)."""
    inner = unwrap(model)
    size = getattr(inner, "image_size", None)
    if size is None and isinstance(known := getattr(inner, "default_cfg", None), dict):
        size = min(known.get("input_size", (0,))[-2:])
    return size if isinstance(size, int) and size > 0 else None


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
