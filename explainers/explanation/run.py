"""`explain`: run one method and return its map with scores, statistics and findings."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import one_call, packing_of
from explainers.call.each_image import finite_images, select_rows
from explainers.call.forward_wrapper import Forward, wrap_forward
from explainers.call.fused_copy import compiling
from explainers.call.method import MAPS, STACKED, Method
from explainers.call.nan_check import first_broken_layer
from explainers.call.profile import known_profile
from explainers.call.run import features
from explainers.call.score_kind import ScoreKind, score_kind
from explainers.call.view import EvalView
from explainers.derived_targets import Direction, LogProbability, Probability, Through
from explainers.dtypes import to_cpu_float64
from explainers.errors import BadOption, shorten
from explainers.explanation.diagnosis import Evidence, diagnose, statistics
from explainers.explanation.result import Explanation, add_missing, join_images
from explainers.findings import Finding, Record, recording
from explainers.layers.layer import Layer
from explainers.maps.resize import REDUCTIONS, rank_correlation, reduce_channels
from explainers.options import LayerName, check_choice, check_flags, unknown_keyword, whole_number
from explainers.output_targets import Similarity
from explainers.perturbation.several_inputs import explain_each_input, finite_inputs, pack_call
from explainers.probabilities import check_score, declared, declared_score
from explainers.registry import MethodLike, find
from explainers.targets import Logit, TargetLike, ThroughLike, describe_target

_OF_THE_CALL = ("layer", "progress", "budget")
"""Keywords that are not stored with the map. The layer is stored separately, by its name."""
_POSITIONAL = ("model", "images", "target")
"""Arguments that messages do not list among the options."""
OF_COMPLETE_MAPS = frozenset(
    {"flat", "nothing_positive", "no_effect", "search_failed", "incomplete", "not_converged", "uniform_weights"}
    | {"unmoved_by_noise", "no_curvature"}
)
"""Codes of findings that do not hold for a map whose method was stopped."""


@torch.inference_mode(False)
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
    compile: bool = False,
    **options: Any,
) -> Explanation:
    """Run one method and return its map with scores, statistics and findings, from the same pass.

    `method` is a name in `METHODS` or the method's function: explain(grad_cam, model, images) is the same as below.
    `reduce` ("sum", "abs_max", "norm") says how attributions of pixels and channels are reduced to one map; `through`,
    (layer, channels), keeps only gradients that pass through these channels; `forward`, a function from images
    [B, C, H, W], for any B, to the model's output, runs a model with more inputs: lambda images: model(images, meta);
    `score` says how the model's scores become probabilities in statistics, findings and targets such as `Probability`:
    "softmax", "sigmoid" (independent labels, or a single score), "identity" (the model returns probabilities), "log"
    (their logarithms) or "logit" (no probabilities, as in regression). None detects it from the operations of the
    model, and is "logit" for a `Similarity`; for a method with an option of that name, its values are passed to it;
    `compare` also computes the map of the runner-up class, if the method is quick, to detect maps that hardly depend on
    the class; `trained_size` is the side in pixels of the images that the network was trained on, needed if the network
    does not define it; `compile` runs the variants of the images in a copy of the network compiled by `torch.compile`,
    for methods with an option `precision`. The first call of a network takes half a minute to minutes longer, and so
    does the first one after a change, and each call in training mode.

    Returns  an `Explanation`: `map` [N, h, w] as in the paper, `raw` before the final ReLU or reduction. If `images` is
             a tuple of several inputs, a tuple with one for each input, except for methods of a layer.
    Errors   those of the method; BadOption for an unknown method or `reduce`

    Example
        >>> explanation = explain("grad_cam", model, images, 281, layer="layer4")
        >>> explanation.map.shape
        torch.Size([1, 7, 7])
    """
    check_flags(compare=compare, compile=compile)
    chosen = find(method)
    given: Any = images
    several: tuple[Tensor, ...] | None = given if isinstance(given, tuple) else None
    each: Callable[..., Any] = functools.partial(explain, chosen)
    call: dict[str, Any] = {"layer": layer, "reduce": reduce, "through": through, "forward": forward, "score": score}
    call |= {"compare": compare, "trained_size": trained_size, "compile": compile, **options}
    some: tuple[Any, ...] | None = None
    is_batch = isinstance(given, Tensor) and given.ndim > 1 and len(given) > 1
    if several is not None:
        some = finite_inputs(several, target, call, chosen.name)
    elif is_batch and forward is None and (finite := finite_images(model, images)) is not None:
        some = finite, *select_rows(images, target, call, finite, stacked=chosen.name in STACKED)
    if some is not None:
        rows, kept, kept_target, own = some
        return add_missing(each(model, kept, kept_target, **own), given, target, options, rows)
    if several is not None and not chosen.together:
        join = functools.partial(join_images, given=options)
        return explain_each_input(each, chosen.returns, model, several, target, call, join)  # type: ignore[return-value]
    if compile and "precision" not in chosen.parameters:
        raise BadOption(f"{chosen.name} scores no variants of the image, so compile=True has no effect. Omit it.")
    options, score = _check(chosen, options, call)
    keywords = dict(options)
    if layer is not None:
        keywords["layer"] = layer
    if through is not None:
        keywords["through"] = through
    how = reduce or chosen.reduce
    if score is None and isinstance(target.target if isinstance(target, Through) else target, Similarity):
        score = "logit"  # an embedding has no probabilities
    inputs, passed = several or (images,), keywords
    if several is not None:
        model, images, passed = pack_call(chosen.name, model, several, {"forward": forward, **keywords})
    elif forward is not None:
        model = wrap_forward(model, forward, images)
    how_scored = nullcontext() if score is None else declared_score(score)
    with one_call(model) as view, how_scored, compiling() if compile else nullcontext():
        comparable = compare and chosen.reads_class and not chosen.long and chosen.returns in MAPS
        view.graphs = {} if comparable else None  # shares one forward pass between both classes
        found = _run(chosen, model, images, target, passed, how, packed=several is not None)
        comparisons = _compare(found, chosen, model, images, passed, how) if comparable else [None] * len(found)
        view.graphs = None
        kind, context = _context(found, chosen, view, images)
    if through is not None or isinstance(target, Through):  # the map explains only part of the score
        found[0].record.promised_sums = None
    context["relu"] = options.get("relu", chosen.relu)
    context["trained_size"] = trained_size or _own_size(view.model)
    explanations = []
    for maps, of_input, comparison in zip(found, inputs, comparisons, strict=True):
        concept = _concept_of(through, target) if several is None else None
        if concept is not None and not bool(maps.raw.any()):
            _note_inactive(maps.record, model, images, concept)
        explanations.append(_explanation(maps, chosen, of_input, keywords, how, comparison, kind, context))
    return explanations[0] if several is None else tuple(explanations)  # type: ignore[return-value]


def _check(chosen: Method, options: dict[str, Any], call: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the options of the method and the score of the network, which may be given by the same keyword.

    Errors   BadOption
    """
    reduce, score, trained_size = call["reduce"], call["score"], call["trained_size"]
    if call["layer"] is not None and not chosen.takes_layer:
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
    if score is not None:
        check_score(score)
    if reduce is not None:
        check_choice("reduce", reduce, REDUCTIONS)
    if trained_size is not None and (whole_number(trained_size) or 0) < 1:
        raise BadOption(f"trained_size={shorten(trained_size)} is not valid. Give a side in pixels, or None.")
    return options, score


@dataclass(frozen=True)
class _Maps:
    """The maps of one call: `raw` before the final ReLU, `shown` as drawn, `signed` the same before the ReLU."""

    record: Record
    raw: Tensor
    shown: Tensor
    signed: Tensor
    seconds: float


def _run(
    chosen: Method,
    model: nn.Module,
    images: Tensor,
    target: TargetLike,
    keywords: dict[str, Any],
    how: str,
    *,
    packed: bool,
) -> list[_Maps]:
    """Return the maps of the images, or those of each input of a network with several."""
    start = time.perf_counter()
    with recording() as record:
        result = chosen.function(model, images, target, **keywords)
    seconds = time.perf_counter() - start
    packing = packing_of(images) if packed else None
    if packing is not None:
        record.gradient_norms = record.promised_sums = None  # of all inputs together
        parts = packing.split(result)
        return [_Maps(record, part, (shown := _as_map(chosen, part, how)), shown, seconds) for part in parts]
    raw = result if record.raw is None else record.raw
    shown = result if chosen.returns in ("grid", "heat") else _as_map(chosen, result, how)
    return [_Maps(record, raw, shown, raw if raw.shape == shown.shape else shown, seconds)]


def _compare(
    found: list[_Maps], chosen: Method, model: nn.Module, images: Tensor, keywords: dict[str, Any], how: str
) -> list[tuple[Tensor, Tensor] | None]:
    """Return each image's runner-up, its most likely class except for the target, and the correlation with its map.

    The result is None if the maps cannot be compared.
    """
    scores, target = found[0].record.scores, found[0].record.target
    if not isinstance(target, Logit) or scores is None or scores.shape[1] < 2:
        return [None] * len(found)
    finite = scores.isfinite().all(1)
    for maps in found:
        finite = finite & maps.signed.isfinite().flatten(1).all(1)
    if not bool(finite.any()):
        return [None] * len(found)
    own = torch.tensor(target.classes, device=scores.device).expand(len(scores))
    runner_up = scores.scatter(1, own[:, None], float("-inf")).argmax(1)
    others = _run(chosen, model, images, runner_up, keywords, how, packed=len(found) > 1)
    compared: list[tuple[Tensor, Tensor] | None] = []
    for maps, other in zip(found, others, strict=True):
        compared.append((runner_up, rank_correlation(maps.signed, other.signed)))
    return compared


def _context(
    found: list[_Maps], chosen: Method, view: EvalView, images: Tensor
) -> tuple[ScoreKind | None, dict[str, Any]]:
    """Return the kind of the network's scores, if known, and what else it tells about the maps of all images.

    Errors   BadOption if the given score does not suit the scores
    """
    record = found[0].record
    reliable = True
    for maps in found:
        reliable &= chosen.returns == "channels" or bool(maps.shown.isfinite().all())
    kind = None if record.scores is None else score_kind(view, images, record.scores)
    return kind, {
        "score": declared() if kind is None else kind.score,
        "broken_layer": None if reliable else first_broken_layer(view.given, images),
        "find_earlier_layer": functools.partial(_stage_before, view, images, record.layer),
    }


def _explanation(
    found: _Maps,
    chosen: Method,
    images: Tensor,
    keywords: dict[str, Any],
    how: str,
    comparison: tuple[Tensor, Tensor] | None,
    kind: ScoreKind | None,
    context: dict[str, Any],
) -> Explanation:
    """Return the explanation of the maps of one input; `context` is what is known about all images."""
    record, resolved = found.record, {}
    for name, option in chosen.options.items():
        resolved[name] = keywords.get(name, option.default)
    resolved |= record.options
    if chosen.returns in ("pixels", "features"):
        resolved["reduce"] = how
    kept = dict(keywords)
    for name in _OF_THE_CALL:
        kept.pop(name, None)
    # Statistics and detectors read single numbers. Each would wait for an accelerator, so tensors move once.
    shown, raw = found.shown.detach().cpu(), found.raw.detach().cpu()
    signed = raw if found.signed is found.raw else shown
    scores = None if record.scores is None else to_cpu_float64(record.scores.detach())
    known = (*(comparison or (None, None)), record.target_scores, record.gradient_norms)
    numbers: list[list[Any]] = []
    for values in (*known, record.promised_sums, record.stability):
        numbers.append([None] * len(images) if values is None else values.tolist())
    runners_up, correlations, target_scores, gradient_norms, promised_sums, stabilities = numbers
    target = describe_target(record.target, len(images)) if record.target else None
    of_scores = [] if kind is None or kind.finding is None else [kind.finding]
    all_statistics, findings = [], []
    for n in range(len(images)):
        is_broken = not bool(shown[n].isfinite().all())
        evidence = Evidence(
            map=shown[n],
            signed=signed[n],
            raw=raw[n],
            method=chosen.name,
            layer=record.layer,
            scores=None if scores is None else scores[n],
            probability_target=isinstance(record.target, (Probability, LogProbability)),
            target=target[n] if isinstance(target, list) else None,
            target_score=target_scores[n],
            gradient_norm=gradient_norms[n],
            promised_sum=promised_sums[n],
            reads_class=chosen.reads_class,
            sides=(images.shape[-2], images.shape[-1]),
            correlation=correlations[n],
            runner_up=runners_up[n],
            stability=stabilities[n],
            **(context if is_broken else {**context, "broken_layer": None}),
        )
        all_statistics.append(statistics(evidence))
        own = [] if chosen.returns == "channels" else diagnose(evidence)
        if record.findings:
            noted = _own_findings(record, n)
            if any(finding.code == "inactive_concept" for finding in noted):  # the cause of both
                own = [finding for finding in own if finding.code not in ("no_gradient", "flat")]
            own = noted + own
        if record.stopped_by:
            own = [_stopped_early(record), *(each for each in own if each.code not in OF_COMPLETE_MAPS)]
        findings.append(own + of_scores)
    return Explanation(
        method=chosen.name,
        layer=record.layer,
        target=target,
        options=resolved,
        map=found.shown,
        raw=found.raw,
        scores=record.scores,
        seconds=found.seconds,
        keywords=kept,
        statistics=all_statistics,
        findings=findings,
        score=context["score"],
        device=str(found.raw.device),
        images=images.detach(),
        done=record.done if record.total else 1,
        total=record.total or 1,
        placement=record.placement,
    )


def _stopped_early(record: Record) -> Finding:
    """Return the finding about a method that was stopped."""
    is_budget = record.stopped_by == "budget"
    why = "the budget was used up" if is_budget else "progress returned False"
    how = "Give a larger budget, or none" if is_budget else "Let it run to the end"
    return Finding(
        "stopped_early",
        f"The method stopped after {record.done:,} of {record.total:,} samples, because {why}, so the map is less "
        f"precise. {how}, for the complete map.",
        {"budget": None} if is_budget else {},
        {"done": record.done, "total": record.total, "stopped_by": record.stopped_by},
    )


def _as_map(chosen: Method, raw: Tensor, how: str) -> Tensor:
    if chosen.returns in ("pixels", "features"):
        return reduce_channels(raw, how)
    return raw[:, None] if chosen.returns == "channels" else raw


def _own_findings(record: Record, image: int) -> list[Finding]:
    """Return the method's own findings about one image, each only once."""
    own: list[Finding] = []
    for where, finding in record.findings:
        if where in (None, image) and finding not in own:
            own.append(finding)
    return own


def _concept_of(through: Any, target: Any) -> Direction | None:
    """Return the concept or direction that a map is about, None if it is not about one."""
    inner = target.channels if isinstance(target, Through) else target
    named = through if isinstance(through, Direction) else inner
    return named if isinstance(named, Direction) else None


def _note_inactive(record: Record, model: nn.Module, images: Tensor, concept: Direction) -> None:
    """Note the images in which a concept is not active anywhere: then it has no gradient, and the map is zero."""
    maps = features(model, images, concept.layer)
    active = concept.activations(maps.movedim(1, -1)).flatten(1).bool().any(1)
    for image in (~active).nonzero()[:, 0].tolist():
        sentence = (
            f"{concept!r} is not active in this image, so the map is zero everywhere. Choose a concept that is active: "
            "concepts.maps(images) has the activations."
        )
        record.findings.append((image, Finding("inactive_concept", sentence)))


def _own_size(network: nn.Module) -> int | None:
    """Return the side of the images that the network was trained on, if it is defined (`image_size`, `default_cfg`)."""
    size = getattr(network, "image_size", None)
    if size is None and isinstance(known := getattr(network, "default_cfg", None), dict):
        size = min(known.get("input_size", (0,))[-2:])
    return size if isinstance(size, int) and size > 0 else None


def _stage_before(view: EvalView, images: Tensor, layer: str | None) -> str | None:
    """Return the last stage before `layer` with a finer grid, if a profile of the model is already known."""
    layers: list[Layer] = known_profile(view, images) or []
    index = next((i for i, each in enumerate(layers) if each.name == layer), None)
    if index is None:
        return None
    own = math.prod(layers[index].grid or (0,))
    finer = [each.name for each in layers[:index] if each.stage and each.grid and math.prod(each.grid) > own]
    return finer[-1] if finer else None
