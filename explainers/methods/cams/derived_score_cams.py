"""Grad-CAM of scores that are derived from those of several classes.

A  activations of the layer   (n, k, h, w)
G  ∂y / ∂A                    (n, k, h, w), y the derived score

The derived score combines the score of one class with the scores of all classes. The class is the caller's target, by
default the top class of each clean image. ShapleyCAM adds the product of the score's Hessian and the activations, which
is computed without the full Hessian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from typing_extensions import Unpack

from explainers.call.attention.operations import scaled_dot_product_attention
from explainers.call.batch_norm import guard_batch_norms
from explainers.call.run import Run, activations_and_gradients, layer_with_patch_gradients, open_run
from explainers.call.scores import LayerLeaf, at_least_float32, maps_of
from explainers.default_targets import resolve_target
from explainers.derived_targets import LayerTarget, LogProbability, Probability, Through
from explainers.errors import BadTarget, shorten
from explainers.findings import note_gradient, note_images, note_scores
from explainers.hooks.calls import replaced_outputs
from explainers.keywords import LayerCall
from explainers.layers.layout import LayerLayout
from explainers.methods.cams.gradient_cams import FORMULAS
from explainers.options import Choice, LayerName, Range, Relu
from explainers.probabilities import default_score, log_probability_of
from explainers.registry import method
from explainers.targets import Logit, Target, TargetLike, as_target, evaluate, scores_of


@method(family="cam", returns="grid", title="ShapleyCAM", paper="Cai 2025, arXiv:2501.06261")
def shapley_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    score: Annotated[
        str, Choice("rest", "logit", "probability", help="score to explain; rest: logit + log-probability")
    ] = "rest",
    relu: Relu = True,
    **call: Unpack[LayerCall],
) -> Tensor:
    """ShapleyCAM: Grad-CAM with a second-order term, the Shapley value of a quadratic model of the score.

        L = ReLU(Σ_k w_k A_k),  w_k = mean_ij (G - ½ H A),  G and H the score's gradient and Hessian at A

    For the logit of a ReLU network H is 0 and the map equals Grad-CAM; the default score ReST, logit plus
    log-probability, has curvature. Targets other than class logits (probabilities, units), and models without class
    scores, are explained unchanged.

    `forward` is as in `explain`. `through` raises an error, because it only supports first derivatives.

    Returns  (n, h, w) at the layer's own size, >= 0, in the score's units
    Errors   LayerNotFound, LayerRanRepeatedly, NoSpatialOutput, UnsupportedModel
    Source   Cai 2025, ShapleyCAM and the utility ReST, arXiv:2501.06261

    Example
        >>> shapley_cam(model, images, 281, layer="layer4").shape
        torch.Size([1, 7, 7])
    """
    if score != "logit" and among_scores(target):
        target = derive_target(target, residual_softmax if score == "rest" else probability, needed=False)
    a, g, curved = hessian_activations(model, images, call.get("layer"), target)
    note_images(
        "no_curvature",
        ~curved.flatten(1).any(1),
        "The Hessian term is zero: the score is piecewise linear in this layer, so the map equals Grad-CAM.",
        {} if score == "rest" else {"score": "rest"},
    )
    return FORMULAS["grad_cam"](a, g - curved / 2)


@method(family="cam", returns="grid", title="Finer-CAM", paper="Zhang et al. 2025, arXiv:2501.11309")
def finer_cam(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    references: Annotated[int, Range(1, 100, help="number of reference classes with the closest scores")] = 3,
    strength: Annotated[float, Range(0, 10, 0.1, help="weight of the reference scores that are subtracted")] = 0.6,
    weighting: Annotated[
        str, Choice("even", "likely", help="weights of the references: equal, or their probabilities")
    ] = "even",
    relu: Relu = True,
    **call: Unpack[LayerCall],
) -> Tensor:
    """Finer-CAM: Grad-CAM of the difference between the class's score and those of the most similar classes.

        y = s - strength × mean_r s_r                       weighting="even"
        y = Σ_r p_r (s - strength × s_r) / Σ_r p_r          weighting="likely", also differentiated through p

    over the `references` classes r whose scores s_r are closest to s, with probabilities p_r. The second form is used
    by pytorch-grad-cam, with strength 1.

    `forward` and `through` are as in `explain`.

    Returns  (n, h, w) at the layer's own size, >= 0, in logits
    Errors   BadTarget for a target that is not one of the scores; LayerNotFound, LayerRanRepeatedly, NoSpatialOutput,
             UnsupportedModel
    Source   Zhang et al. 2025, section 3, arXiv:2501.11309

    Example
        >>> finer_cam(model, images, 281, layer="layer4", references=5).shape
        torch.Size([1, 7, 7])
    """
    against = derive_target(target, against_nearest(strength, references, weighting))
    a, g = activations_and_gradients(model, images, call.get("layer"), against)
    return FORMULAS["grad_cam"](a, g)


Combine = Callable[[Tensor, Tensor, Tensor, str], Tensor]
"""(own score [N], all scores [N, K], mask of the own column [N, K], one of SCORES) -> score [N]."""


@dataclass(frozen=True, eq=False)
class DerivedTarget(Target):
    """A target that applies `combine` to the scores of the given target and all scores, on the clean images."""

    base: Target | None
    combine: Combine
    needed: bool = True
    """Whether class scores are required; if not, the given target is used unchanged when there are none."""
    score: str | None = None
    """How scores become probabilities."""

    @property
    def reads_probability(self) -> bool:
        return self.score is None and self.combine in (residual_softmax, probability)

    def with_score(self, score: str | None) -> Target:
        return self if self.score is not None else replace(self, score=score)

    def check(self, count: int) -> None:
        if self.base is not None:
            self.base.check(count)

    def rows(self, image_indices: Sequence[int]) -> Target:
        return self if self.base is None else replace(self, base=self.base.rows(image_indices))

    def __call__(self, output: Any) -> Tensor:
        """[N]."""
        try:
            scores = scores_of(output)
        except BadTarget:
            if self.needed:
                raise
            own = resolve_target(self.base, output, 0)
            score = own(output)
            note_scores(None, own, at_least_float32(score))
            return score
        own = resolve_target(self.base, output, len(scores))
        score = evaluate(own, output, len(scores))
        # Report the class with its own score, not the difference.
        note_scores(at_least_float32(scores), own, at_least_float32(score))
        kind = self.score or default_score(scores.shape[1])
        return self.combine(score, scores, _own_column(own, score, scores), kind)


def _own_column(target: Target, score: Tensor, scores: Tensor) -> Tensor:
    """Return a mask of the target's own column; for a function, of the first column equal to its score, if any."""
    if isinstance(target, Logit):
        classes = torch.as_tensor(target.classes, device=scores.device).expand(len(scores))
        return torch.arange(scores.shape[1], device=scores.device) == classes[:, None]
    equal = scores == score[:, None]
    return equal & (equal.cumsum(1) == 1)


def among_scores(target: TargetLike) -> bool:
    """Check whether the target is a logit, comparable with the scores of other classes."""
    own = target.target if isinstance(target, Through) else target
    return not isinstance(own, (Probability, LogProbability, LayerTarget))


def derive_target(target: TargetLike, combine: Combine, *, needed: bool = True) -> TargetLike:
    """Create a target that applies `combine` to the score of `target` and all scores; `needed` as in `DerivedTarget`.

    Errors   BadTarget if the target is not a logit, but a probability or a unit
    """
    if not among_scores(target):
        raise BadTarget(
            f"{shorten(target)} is not in logits, so it cannot be compared with other scores. Give a class, "
            "Logit(class) or a "
            "function of the scores."
        )
    if isinstance(target, Through):
        return Through(derive_target(target.target, combine, needed=needed), target.layer, target.channels)
    return DerivedTarget(None if target is None else as_target(target), combine, needed)


def residual_softmax(score: Tensor, scores: Tensor, own: Tensor, kind: str) -> Tensor:
    """Return ReST, logit plus log-probability, which does not saturate like softmax, nor ignore the other classes.

    For a network that returns probabilities, the score is the probability. Scores without probabilities are returned
    unchanged.

    Source   Cai 2025, the utility ReST, arXiv:2501.06261
    """
    if kind == "softmax":
        return 2 * score - scores.logsumexp(1)
    return score if kind == "logit" else score + log_probability_of(score, scores, kind)


def probability(score: Tensor, scores: Tensor, own: Tensor, kind: str) -> Tensor:
    """Return the probability of a score among all scores."""
    return log_probability_of(score, scores, kind).exp()


def nearest_references(score: Tensor, scores: Tensor, own: Tensor, count: int) -> Tensor:
    """Return the columns [N, count] of the scores nearest to the target's own; for ties, the lower class comes first.

    Errors   BadTarget if the model has only one class
    """
    if scores.shape[1] < 2:
        raise BadTarget("The model returns a single score, but this method compares two classes. Use grad_cam.")
    distances = (scores - score[:, None]).detach().abs().masked_fill(own, torch.inf)
    return distances.sort(dim=1, stable=True).indices[:, : min(count, scores.shape[1] - 1)]


def against_nearest(strength: float, count: int, weighting: str) -> Combine:
    """Create the contrast s - strength × reference, averaged over the scores of the nearest references.

    The weights are equal, or with "likely" their probabilities, which have gradients.
    """

    def combine(score: Tensor, scores: Tensor, own: Tensor, kind: str) -> Tensor:
        references = scores.gather(1, nearest_references(score, scores, own, count))
        mean = (references.softmax(1) * references).sum(1) if weighting == "likely" else references.mean(1)
        return score - strength * mean

    return combine


def hessian_activations(
    model: nn.Module, images: Tensor, layer: LayerName | None, target: TargetLike
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the activations A of a layer, G = ∂y/∂A, and H A with H = ∂²y/∂A², each [N, K, h, w].

    One backward pass from the score to the layer gives G; another one through that pass gives the Hessian-vector
    product H A.

    Errors   BadTarget for a target restricted to channels of another layer; errors of the layer
    """
    if isinstance(target, Through):
        raise BadTarget("through=(layer, channels) only supports first derivatives. Choose a method without a Hessian.")
    with open_run(model, images, target) as run:
        layout = layer_with_patch_gradients(run, layer, frames=True)
        a, g, h = (maps_of(layout, tensor) for tensor in run.by_image(partial(_two_gradients, layout)))
        note_gradient(g)
        run.use_layer(layout)
        return a, g, h


def _two_gradients(layout: LayerLayout, run: Run) -> tuple[Tensor, Tensor, Tensor]:
    """Return A, G and H A, in the layer's layout."""
    leaf = LayerLeaf(layout)
    with torch.no_grad(), replaced_outputs(run.view.network, [(layout, leaf.hook)]), _PlainAttention():
        total = run.scoring.score(run.forward(run.images.clone())).sum()
        a = leaf.single_output(len(run.images))
        first = _gradient(total, a, create_graph=True) if total.requires_grad else None
        second = _gradient(first, a, a.detach()) if first is not None and first.requires_grad else None
    if first is None:
        run.backward.refuse_detached([layout])
    g, h = (torch.zeros_like(a) if each is None else each for each in (first, second))
    return a.detach(), g, h


def _gradient(
    value: Tensor, leaf: Tensor, vector: Tensor | None = None, *, create_graph: bool = False
) -> Tensor | None:
    guard_batch_norms(value)
    (gradient,) = torch.autograd.grad(value, leaf, vector, create_graph=create_graph, allow_unused=True)
    return gradient


class _PlainAttention(TorchFunctionMode):
    """Run attention as separate operations in this thread, since the fused kernel has no second derivative."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if func is F.multi_head_attention_forward and not keywords.get("need_weights", True):
            return func(*args, **{**keywords, "need_weights": True})[0], None
        if func is F.scaled_dot_product_attention:
            return scaled_dot_product_attention(*args, **keywords)
        return func(*args, **keywords)
