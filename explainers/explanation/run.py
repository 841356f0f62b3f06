"""`explain`: run one method and return its map with scores, statistics and findings."""

from __future__ import annotations

import inspect
import time
from typing import Any

import torch
from torch import Tensor, nn

from explainers.errors import BadOption, shorten
from explainers.explanation.diagnosis import diagnose
from explainers.explanation.evidence import Evidence, statistics
from explainers.explanation.result import Explanation
from explainers.findings import Finding, Record, recording
from explainers.hooks.cleanup import restores_state
from explainers.layers.layer import Layer
from explainers.layers.profile import known_profile
from explainers.layers.score_kind import ScoreKind, score_kind
from explainers.maps.resize import REDUCTIONS, rank_correlation, reduce_channels
from explainers.network.eval_view import EvalView, one_call
from explainers.network.forward_wrapper import Forward, wrap_forward
from explainers.network.nan_check import first_broken_layer
from explainers.options import LayerName, unknown_keyword, whole_number
from explainers.probabilities import check_score, declared, declared_score
from explainers.registry import MAPS, Method, MethodLike, find
from explainers.targets import Logit, LogProbability, Probability, TargetLike, Through, ThroughLike, describe_target

_OF_THE_CALL = ("layer", "progress", "budget")
"""Keywords that are not stored with the map. The layer is stored separately, by its name."""
_POSITIONAL = ("model", "images", "target")
"""Arguments that messages do not list among the options."""


@restores_state
def explain(
    method: MethodLike,
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    layer: LayerName | None = None,
    reduce: str | None = None,
    through: ThroughLike | None = None,
    forward: Forward | None = None,
    score: str | None = None,
    compare: bool = True,
    trained_size: int | None = None,
    **options: Any,
) -> Explanation:
    """Run one method and return its map with scores, statistics and findings, from the same pass.

    `method` is a name in `METHODS` or the method's function: explain(grad_cam, model, images) is the same as below.
    `reduce` ("sum", "abs_max", "norm") says how attributions of pixels and channels are reduced to one map; `through`,
    (layer, channels), keeps only gradients that pass through these channels; `forward`, a function from images
    [B, C, H, W], for any B, to the model's output, runs a model with more inputs: lambda images: model(images, meta);
    `score` says how the model's scores become probabilities in statistics, findings and targets such as `Probability`:
    "softmax", "sigmoid" (independent labels, or a single score), "identity" (the model returns probabilities), "log"
    (their logarithms) or "logit" (no probabilities, as in regression). None detects it
    from the operations of the model; for a method with an option of that name, values of that option are passed to it;
    `compare` also computes the map of the runner-up class, if the method is quick, to detect maps that hardly depend on
    the class; `trained_size` is the side in pixels of the images that the network was trained on, needed if the network
    does not define it.

    Returns  an `Explanation`: `map` [N, h, w] as in the paper, `raw` before the final ReLU or reduction
    Errors   those of the method; BadOption for an unknown method or `reduce`

    Example
        >>> explanation = explain("grad_cam", model, images, 281, layer="layer4")
        >>> explanation.map.shape
        torch.Size([1, 7, 7])
    """
    chosen = find(method)
    if layer is not None and not chosen.takes_layer:
        raise BadOption(f"{chosen.name} has no option 'layer', because it explains the input. Omit layer.")
    for name in options:
        if name not in chosen.parameters:
            accepted_here = [
                each for each in inspect.signature(explain).parameters if each not in ("method", "options")
            ]
            accepted = dict.fromkeys([*chosen.parameters, *accepted_here])
            raise unknown_keyword(chosen.name, name, accepted, [each for each in accepted if each not in _POSITIONAL])
    own = chosen.options.get("score")
    if own is not None and score in own.choices:
        options, score = {**options, "score": score}, None
    check_score(score)
    keywords = dict(options) if layer is None else {**options, "layer": layer}
    if through is not None:
        keywords["through"] = through
    if reduce is not None and reduce not in REDUCTIONS:
        raise BadOption(f"reduce={shorten(reduce)} is not valid. Choose one of {', '.join(REDUCTIONS)}.")
    if trained_size is not None and (whole_number(trained_size) or 0) < 1:
        raise BadOption(f"trained_size={shorten(trained_size)} is not valid. Give a side in pixels, or None.")
    how = reduce or chosen.reduce
    restricted = through is not None or isinstance(target, Through)  # if so, the map explains only part of the score
    model = model if forward is None else wrap_forward(model, forward, images)
    with one_call(model) as view, declared_score(score):
        comparable = compare and chosen.reads_class and not chosen.long and chosen.returns in MAPS
        view.graphs = {} if comparable else None  # shares one forward pass between both classes
        start = time.perf_counter()
        with recording() as record:
            result = chosen.function(model, images, target, **keywords)
        seconds = time.perf_counter() - start
        raw = result if record.raw is None else record.raw
        shown = _as_map(chosen, result, how)
        signed = raw if raw.ndim == 3 else shown
        runner_up = _runner_up(record, signed) if comparable else None
        correlation = None
        if runner_up is not None:
            with recording() as second:
                other = chosen.function(model, images, runner_up, **keywords)
            before_relu = other if second.raw is None or second.raw.ndim == 4 else second.raw
            correlation = rank_correlation(signed, _as_map(chosen, before_relu, how))
        view.graphs = None
        has_findings = chosen.returns != "channels"
        reliable = not has_findings or bool(shown.isfinite().all())
        broken = None if reliable else first_broken_layer(view.given, images)
        earlier = _stage_before(view, images, record.layer) if record.layer else None
        kind = None if record.scores is None else score_kind(view, images, record.scores)
        known_score = declared() if kind is None else kind.score
    resolved = {name: options.get(name, option.default) for name, option in chosen.options.items()}
    resolved |= record.options
    if chosen.returns in ("pixels", "features"):
        resolved["reduce"] = how
    described = describe_target(record.target, len(images)) if record.target else None
    trained = trained_size or _own_size(view.model)
    evidence = [
        Evidence(
            map=shown[n],
            signed=signed[n],
            raw=raw[n],
            method=chosen.name,
            layer=record.layer,
            scores=None if record.scores is None else record.scores[n].detach().double(),
            score=known_score,
            probability_target=isinstance(record.target, (Probability, LogProbability)),
            target=described[n] if isinstance(described, list) else None,
            target_score=_number(record.target_scores, n),
            gradient_norm=_number(record.gradient_norms, n),
            promised_sum=None if restricted else _number(record.promised_sums, n),
            relu=options.get("relu", chosen.relu),
            reads_class=chosen.reads_class,
            size=min(images.shape[-2:]),
            trained_size=trained,
            correlation=_number(correlation, n),
            runner_up=None if runner_up is None else int(runner_up[n]),
            earlier_layer=earlier,
            broken_layer=broken,
        )
        for n in range(len(images))
    ]
    return Explanation(
        method=chosen.name,
        layer=record.layer,
        target=described,
        options=resolved,
        map=shown,
        raw=raw,
        scores=record.scores,
        seconds=seconds,
        keywords={name: value for name, value in keywords.items() if name not in _OF_THE_CALL},
        statistics=[statistics(each) for each in evidence],
        findings=[
            _own_findings(record, n) + (diagnose(each) if has_findings else []) + _of_scores(kind)
            for n, each in enumerate(evidence)
        ],
        score=known_score,
    )


def _as_map(chosen: Method, raw: Tensor, how: str) -> Tensor:
    if chosen.returns in ("pixels", "features"):
        return reduce_channels(raw, how)
    return raw[:, None] if chosen.returns == "channels" else raw


def _runner_up(record: Record, signed: Tensor) -> Tensor | None:
    """Return each image's most likely class other than the target, or None if the maps cannot be compared."""
    scores, target = record.scores, record.target
    if not isinstance(target, Logit) or scores is None or scores.shape[1] < 2:
        return None
    if not bool(scores.isfinite().all()) or not bool(signed.isfinite().all()):
        return None
    own = torch.tensor(target.classes, device=scores.device).expand(len(scores))
    return scores.scatter(1, own[:, None], float("-inf")).argmax(1)


def _number(values: Tensor | None, index: int) -> float | None:
    return None if values is None else float(values[index])


def _own_findings(record: Record, image: int) -> list[Finding]:
    """Return the method's own findings about one image, each only once."""
    own: list[Finding] = []
    for where, finding in record.findings:
        if where in (None, image) and finding not in own:
            own.append(finding)
    return own


def _of_scores(kind: ScoreKind | None) -> list[Finding]:
    """Return the finding about how scores became probabilities, if there is one."""
    return [kind.finding] if kind is not None and kind.finding is not None else []


def _own_size(network: nn.Module) -> int | None:
    """Return the side of the images that the network was trained on, if it is defined (`image_size`, `default_cfg`)."""
    size = getattr(network, "image_size", None)
    if size is None and isinstance(known := getattr(network, "default_cfg", None), dict):
        size = min(known.get("input_size", (0,))[-2:])
    return size if isinstance(size, int) and size > 0 else None


def _stage_before(view: EvalView, images: Tensor, layer: str) -> str | None:
    """Return the last stage before `layer` with a finer grid, if a profile of the model is already known."""
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
