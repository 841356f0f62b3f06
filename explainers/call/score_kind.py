"""Detect how the scores of a network become probabilities: by its operations, its values and its configuration.

Logits may be between 0 and 1 by chance, so values only decide whether it is necessary to look at the operations between
the last weights and the scores. Most networks return logits outside that range, for which this costs nothing. Only rows
that sum to 1 for several images are accepted as probabilities without known operations.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.call.current import one_call
from explainers.call.images import validate_images
from explainers.call.profile import known_profile, profile
from explainers.call.view import EvalView
from explainers.dtypes import to_float64
from explainers.errors import BadTarget, no_module
from explainers.findings import Finding
from explainers.layers.flow.dataflow import Graph
from explainers.probabilities import check_probabilities, declared, default_score
from explainers.targets import scores_of

SEVERAL = 3
"""Number of rows that must sum to 1 to prove that scores without known operations are probabilities."""
ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest distance of a sum of probabilities from 1 by data type; 1e-4 for others."""


@dataclass(frozen=True)
class ScoreKind:
    """How scores become probabilities (one of SCORES), and a finding about it, if any."""

    score: str
    finding: Finding | None = None


_SUMS = Finding(
    "probability_scores",
    "The scores of every image sum to 1, so they are taken as probabilities, although the operations of the network do "
    "not show it. If they are logits, give score='softmax'.",
)
_UNCLEAR = Finding(
    "unclear_scores",
    "All scores are between 0 and 1, but the operations of the network do not show that they are probabilities, so "
    "they are treated as logits. If they are probabilities, give score='identity'; if not, score={score!r}.",
)


def score_kind(view: EvalView, images: Tensor, scores: Tensor, given: str | None = None) -> ScoreKind:
    """Return how the scores [N, K] of the images become probabilities: as `given`, declared or else detected.

    Errors   BadOption if the given score does not suit the scores
    """
    if (known := given or declared()) is not None:
        check_probabilities(scores, known)
        return ScoreKind(known)
    return _detect(view, images, scores.detach())


def detect_score(model: nn.Module, images: Tensor, classes: int | None = None) -> str:
    """Detect how the scores of a network become probabilities: by its configuration, its operations and its values.

    `classes` is the number of scores, if it is known, which may save a forward pass.

    Returns  "softmax", "sigmoid", "identity", "log" or "logit", as the option `score` of `explain`
    Errors   WrongType, BadImages; BadTarget for an output without scores [N, K], unless `classes` is given

    Example
        >>> detect_score(model, images)
        'softmax'
    """
    if not isinstance(model, nn.Module):
        raise no_module(model)
    validate_images(model, images)
    with one_call(model) as view:
        found = score_of_network(view, images)
        return found or default_score(scores_of(_run(view, images[:1])).shape[1] if classes is None else classes)


def score_of_network(view: EvalView, images: Tensor) -> str | None:
    """Return how the network's scores become probabilities, or None if they are converted by default.

    The detection runs the network at most once per model and image size. No hook may be set, since it may run it.
    """
    if (known := declared()) is not None:
        return known
    cache, key = _cache(view), ("score", images.shape[1:], view.modules)
    if (found := cache.get(key)) is None:  # an entry is a tuple, since None is an answer too
        found = cache[key] = (_detect_by_running(view, images),)
    score: str | None = found[0]
    return score


def _detect_by_running(view: EvalView, images: Tensor) -> str | None:
    layers = known_profile(view, images)
    is_linear = layers is not None and ending(layers.forward.graph, layers.forward.end) == "linear"
    if is_linear and _config(view.owner) is None:
        return None
    try:
        scores = scores_of(_run(view, images))
    except BadTarget:
        return None
    found = _detect(view, images, scores).score
    return None if found == default_score(scores.shape[1]) else found


def _detect(view: EvalView, images: Tensor, scores: Tensor) -> ScoreKind:
    config, count = _config(view.owner), scores.shape[1]
    is_configured = config is not None and getattr(config, "num_labels", count) == count
    default = ScoreKind((is_configured and _PROBLEMS.get(config.problem_type)) or default_score(count))
    if not scores.numel() or scores.is_complex() or not scores.isfinite().all():
        return default
    rounding = ROUNDING.get(images.dtype, 1e-4)
    low, high = float(scores.min()), float(scores.max())
    if low >= -1e-6 and high <= 1 + min(rounding, 1e-3):
        end = _ending(view, images)
        if end == "probability":
            return ScoreKind("identity")
        if end == "linear" or default.score != default_score(scores.shape[1]):
            return default
        if _is_distribution(scores, rounding) and _is_always_distribution(view, images, scores, rounding):
            return ScoreKind("identity", _SUMS)
        return replace(default, finding=replace(_UNCLEAR, sentence=_UNCLEAR.sentence.format(score=default.score)))
    if high <= 0 and not _is_distribution(scores.exp(), rounding) and _ending(view, images) == "log":
        return ScoreKind("log")  # a log-sigmoid; a log-softmax needs nothing else than the default
    return default


def _is_distribution(scores: Tensor, rounding: float) -> bool:
    """Return whether each row is a distribution over several classes."""
    return scores.shape[1] > 1 and bool(((to_float64(scores).sum(1) - 1).abs() <= rounding).all())


def _is_always_distribution(view: EvalView, images: Tensor, scores: Tensor, rounding: float) -> bool:
    """Return whether the rows of several images are distributions; a few images are varied to get more rows."""
    cache, key = _cache(view), ("sums", images.shape[1:], view.modules)
    if len(scores) >= SEVERAL:
        return True
    if (found := cache.get(key)) is None:
        try:
            variants = [scores_of(_run(view, each)) for each in (0.5 * images, images.flip(-1), -images)]
            found = all(_is_distribution(each, rounding) and float(each.min()) >= 0 for each in variants)
        except Exception:  # a network that refuses such an image
            found = False
        cache[key] = found
    return bool(found)


def _run(view: EvalView, images: Tensor) -> Any:
    with torch.inference_mode(False), torch.no_grad():
        return view.network(images.detach().clone())


def _ending(view: EvalView, images: Tensor) -> str | None:
    """Return how the forward pass ends, or None if it cannot be followed, as in a scripted network."""
    if view.kind is not None:
        return None
    try:
        forward = profile(view, images).forward
    except Exception:  # the detection is optional: a network that cannot be followed is converted by default
        return None
    return ending(forward.graph, forward.end)


# How operations end


def ending(graph: Graph, end: int) -> str | None:
    """Return what the operations of a forward pass make of its scores.

    Returns  "probability": a softmax or sigmoid, or an average, product or part of them; "log": the logarithm of one;
             "linear": outputs of weights, whose values are not limited; None: anything else
    """
    kinds: list[str | None] = [None]
    for node in range(1, end + 1):
        edges = graph.edges[node]
        kinds.append(_kind(graph.names[node], [kinds[edge.node] for edge in edges], graph.weights[node]))
    return kinds[end]


def _kind(name: str, inputs: list[str | None], weights: int) -> str | None:
    if name in _OWN:
        return _OWN[name]
    if weights or name in _WEIGHTED:
        return "linear"
    kinds, several = set(inputs), len(inputs) > 1
    if kinds == {"linear"}:
        return "linear" if name in _PASSING | _ARITHMETIC and not name.startswith("clamp") else None
    if kinds == {"log"}:
        return "log" if name in _PASSING else "probability" if name == "exp" else None
    if kinds == {"probability"} and name in _PASSING | {"mean", "prod", "rsub"}:
        return "probability"
    if not kinds <= {"probability", "sum"}:
        return None
    if name == "log":
        return "log"
    if name == "add":
        return "sum" if several else inputs[0]
    if name == "sum":
        return "sum"
    if name in ("mul", "div"):  # with a constant, only the mean of a sum is known to be a probability
        return "probability" if several or kinds == {"sum"} else None
    return "sum" if name in _PASSING else None


_OWN = dict.fromkeys(("softmax", "safe_softmax", "sigmoid", "hardsigmoid"), "probability")
_OWN |= dict.fromkeys(("log_softmax", "log_sigmoid_forward"), "log")
_WEIGHTED = frozenset("convolution mkldnn_convolution addmm mm bmm baddbmm linear linear_dynamic".split())
_ARITHMETIC = frozenset("add sub rsub mul div neg mean sum".split())
_PASSING = frozenset(
    "view reshape unsafe_view squeeze unsqueeze flatten permute transpose t select slice index index_select "
    "gather cat stack clone to_copy alias detach lift_fresh contiguous expand expand_copy copy split "
    "split_with_sizes unsafe_split unsafe_split_with_sizes chunk unbind clamp clamp_min clamp_max dequantize "
    "quantize_per_tensor nan_to_num where native_dropout dropout repeat roll flip narrow max min amax amin "
    "maximum minimum topk sort adaptive_avg_pool2d avg_pool2d max_pool2d_with_indices as_strided masked_fill "
    "index_copy index_put scatter select_scatter slice_scatter".split()
) | {""}
"""Operations that select, arrange, limit or average values, so that probabilities stay probabilities; "" is a node that
joins the tensors of an output.
"""


# The configuration


def _config(network: nn.Module) -> Any:
    """Return the configuration of a classifier of transformers that names its kind of problem, if the network has it.

    The classifier is the network or one of its direct children.
    """
    for module in (network, *network.children()):
        config = getattr(module, "config", None)
        if getattr(config, "problem_type", None):
            return config
    return None


_PROBLEMS = {"multi_label_classification": "sigmoid", "regression": "logit"}


# One cache per model, with names and flags but no tensors.
_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _cache(view: EvalView) -> dict[Any, Any]:
    if view.decides:
        return {}
    with _lock:
        cache = _known.setdefault(view.owner, {})
        if len(cache) >= 32:
            cache.clear()
        return cache
