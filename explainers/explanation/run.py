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
from explainers.layers.layer import Layer
from explainers.layers.profile import known_profile
from explainers.maps.resize import REDUCTIONS, rank_correlation, reduce_channels
from explainers.network.eval_view import EvalView, one_call
from explainers.network.forwarded import Forward, forwarded
from explainers.network.nan_check import first_broken_layer
from explainers.options import LayerName, whole_number
from explainers.registry import MAPS, Method, find
from explainers.targets import Logit, LogProbability, Probability, TargetLike, Through, described

_OF_THE_CALL = ("layer", "progress", "budget")
"""Keywords that do not belong to the map: the layer stands beside it by its name."""


def explain(
    method: str,
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    reduce: str | None = None,
    through: tuple[LayerName, Any] | None = None,
    forward: Forward | None = None,
    compare: bool = True,
    trained_size: int | None = None,
    **options: Any,
) -> Explanation:
    """Run one method and return its map with scores, statistics and findings, from the same pass.

    `reduce` ("sum", "abs_max", "norm") says how methods with one value a pixel and channel become one map; `through`,
    (layer, channels), keeps what passes those channels; `forward`, a function from images [B, C, H, W], for any B, to
    the model's output, runs a model with more inputs: lambda images: model(images, meta); `compare` draws the
    runner-up's map as well, where the method is quick, to find maps that hardly depend on the class; `trained_size` is
    the side in pixels of the pictures that the network was trained on, where it does not say so itself.

    Returns  an `Explanation`: `map` [N, h, w] as the paper draws it, `raw` before the final ReLU or reduction
    Errors   those of the method; BadOption for an unknown method or `reduce`

    Example
        >>> explanation = explain("grad_cam", model, images, 281, layer="layer4")
        >>> explanation.map.shape
        torch.Size([1, 7, 7])
    """
    chosen = find(method)
    if layer is not None and not chosen.takes_layer:
        raise BadOption(f"{method} has no layer: it explains the input. Leave layer out.")
    keywords = dict(options) if layer is None else {**options, "layer": layer}
    if through is not None:
        keywords["through"] = through
    if reduce is not None and reduce not in REDUCTIONS:
        raise BadOption(f"reduce={reduce!r} is not possible. Choose one of {', '.join(REDUCTIONS)}.")
    if trained_size is not None and (whole_number(trained_size) or 0) < 1:
        raise BadOption(f"trained_size={trained_size!r} is not possible. Give a side in pixels, or None.")
    how = reduce or chosen.reduce
    restricted = through is not None or isinstance(target, Through)  # then the map is of a part of the score
    model = model if forward is None else forwarded(model, forward, images)
    with one_call(model) as view:
        comparable = compare and chosen.reads_class and not chosen.long and chosen.returns in MAPS
        view.graphs = {} if comparable else None  # one forward pass then serves both classes
        began = time.perf_counter()
        with recording() as record:
            result = chosen.function(model, images, target, **keywords)
        seconds = time.perf_counter() - began
        raw = result if record.raw is None else record.raw
        shown = _as_map(chosen, result, how)
        flat = raw if raw.ndim == 3 else shown
        runner_up = _runner_up(record, flat) if comparable else None
        correlation = None
        if runner_up is not None:
            with recording() as second:
                other = chosen.function(model, images, runner_up, **keywords)
            correlation = rank_correlation(flat, _as_map(chosen, other if second.raw is None else second.raw, how))
        view.graphs = None
        findings = _findings(chosen, view, images, record, shown, flat, options, correlation, runner_up, trained_size)
    resolved = {name: options.get(name, option.default) for name, option in chosen.options.items()}
    resolved |= record.options
    if chosen.returns in ("pixels", "features"):
        resolved["reduce"] = how
    return Explanation(
        method=method,
        layer=record.layer,
        target=described(record.target, len(images)) if record.target else None,
        options=resolved,
        map=shown,
        raw=raw,
        scores=record.scores,
        seconds=seconds,
        keywords={name: value for name, value in keywords.items() if name not in _OF_THE_CALL},
        statistics=statistics(
            shown,
            raw,
            target_scores=record.target_scores,
            gradient_norms=record.gradient_norms,
            promised_sums=None if restricted else record.promised_sums,
        ),
        findings=findings,
    )


def _as_map(chosen: Method, raw: Tensor, how: str) -> Tensor:
    if chosen.returns in ("pixels", "features"):
        return reduce_channels(raw, how)
    return raw[:, None] if chosen.returns == "channels" else raw


def _runner_up(record: Record, flat: Tensor) -> Tensor | None:
    """Each image's most likely class but the explained one; None where there is nothing to compare."""
    scores, target = record.scores, record.target
    if not isinstance(target, Logit) or scores is None or scores.shape[1] < 2:
        return None
    if not bool(scores.isfinite().all()) or not bool(flat.isfinite().all()):
        return None
    own = torch.tensor(target.classes, device=scores.device).expand(len(scores))
    return scores.scatter(1, own[:, None], float("-inf")).argmax(1)


def _findings(
    chosen: Method,
    view: EvalView,
    images: Tensor,
    record: Record,
    shown: Tensor,
    flat: Tensor,
    options: dict[str, Any],
    correlation: Tensor | None,
    runner_up: Tensor | None,
    trained_size: int | None,
) -> list[list[Finding]]:
    """The method's own findings, then what the figures show; what a remedy needs is looked up where there is a need."""
    findings: list[list[Finding]] = [[] for _ in images]
    if chosen.returns != "channels":
        trained = trained_size or _own_size(view.model)
        target = described(record.target, len(images)) if isinstance(record.target, Logit) else None
        figures: dict[str, Any] = {
            "method": chosen.name,
            "layer": record.layer,
            "target_scores": record.target_scores,
            "gradient_norms": record.gradient_norms,
            "scores": record.scores,
            "probability_target": isinstance(record.target, (Probability, LogProbability)),
            "relu": options.get("relu", chosen.relu),
            "target": target if isinstance(target, list) else None,
            "sizes": (min(images.shape[-2:]), trained) if trained else None,
            "correlation": correlation,
            "runner_up": runner_up,
            "reads_class": chosen.reads_class,
        }
        findings = diagnose(shown, flat, **figures)
        if any(findings):
            earlier = _stage_before(view, images, record.layer) if record.layer else None
            broken = None if bool(shown.isfinite().all()) else first_broken_layer(view.given, images)
            findings = diagnose(shown, flat, **figures, earlier_layer=earlier, broken_layer=broken)
    for picture, row in enumerate(findings):
        own: list[Finding] = []
        for where, finding in record.findings:
            if where in (None, picture) and finding not in own:
                own.append(finding)
        row[:0] = own
    return findings


def _own_size(network: nn.Module) -> int | None:
    """The side of the pictures that the network was trained on, where it says so (`image_size`, `default_cfg`)."""
    size = getattr(network, "image_size", None)
    if size is None and isinstance(known := getattr(network, "default_cfg", None), dict):
        size = min(known.get("input_size", (0,))[-2:])
    return size if isinstance(size, int) and size > 0 else None


def _stage_before(view: EvalView, images: Tensor, layer: str) -> str | None:
    """The last stage before `layer` with a finer grid, where a profile of the model is already known."""
    layers: list[Layer] = known_profile(view, images) or []
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
