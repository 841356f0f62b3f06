"""LRP, and for transformers AttnLRP and CP-LRP."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import Run, open_run
from explainers.errors import BadOption, shorten
from explainers.keywords import Call
from explainers.options import Choice, Range
from explainers.perturbation.baselines import refuse_values
from explainers.registry import method
from explainers.rules.lrp import relevance
from explainers.rules.lrp_operations import AttentionRelevance, Relevance
from explainers.rules.lrp_rules import COMPOSITES, RULES, RuleLike, RuleMap, RuleParameters
from explainers.rules.operations import why_not
from explainers.targets import TargetLike

_backward_rule = partial(method, family="backward rule", returns="pixels", needs=why_not)

Epsilon = Annotated[float, Range(0, 10, 0.01, help="ε: stabilizer added to the denominator")]
Gamma = Annotated[float, Range(0, 100, 0.05, help="γ: extra weight on positive contributions")]
LayerRule = Annotated[RuleLike, Choice(*RULES, help="rule of linear layers and convolutions")]
ZeroBias = Annotated[bool, "Leave biases out of the denominators, so that they absorb no relevance"]


@_backward_rule(title="LRP", paper="Bach et al. 2015, doi:10.1371/journal.pone.0130140")
def lrp(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    rule: Annotated[RuleLike, Choice(*RULES, help="one rule for all layers; empty: rules of the composite")] = None,
    composite: Annotated[str, Choice(*COMPOSITES, help="rules by layer type")] = "epsilon_plus",
    epsilon: Epsilon = 0.0,
    gamma: Gamma = 0.25,
    alpha: Annotated[float, Range(1, 10, 0.5, help="α: weight of positive contributions (β = α − 1)")] = 2.0,
    low: Tensor | float | None = None,
    high: Tensor | float | None = None,
    zero_bias: ZeroBias = False,
    **call: Unpack[Call],
) -> Tensor:
    """LRP: the score is redistributed backward, layer by layer, in proportion to the contributions of the inputs.

        R_i = Σ_j a_i w_ij / (Σ_k a_k w_kj + ε) R_j    the epsilon rule; others weight the contributions differently

    `rule` may be a dict {pattern: rule} over layer names ("features.0", "layer4.*") or types ("Conv2d", "Linear"). The
    first match is used; layers without a match use the composite. Batch norm is merged with the adjacent convolution or
    linear layer. `low` and `high` bound the input of the z_box rule, in the model's units; None uses the extremes of
    each image. Gates, attention weights and the standard deviations of layer norms are treated as constants. If
    `epsilon` is 0, a division by 0 gives 0.

    With `zero_bias`, biases and other constants that are added (shifts of norms, position embeddings) are left out of
    the denominators. Then only class tokens, epsilon, and outputs without a contribution of their sign absorb
    relevance. `explain` also reports relevances that cancel.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to the score minus what biases and epsilon absorb, which `explain` reports
    Errors   UnsupportedOperation naming operation and layer; BadOption for a pattern that matches no layer, or if
             relevances overflow
    Source   Bach et al. 2015, eqs. 58 and 60; Montavon et al. 2017, 2019; composites: Kohlbrenner et al. 2020

    Example
        >>> lrp(model, images, 281, composite="epsilon_plus").shape
        torch.Size([1, 3, 224, 224])
    """
    for name, bound in (("low", low), ("high", high)):
        _check_bound(name, bound, images)
    with open_run(model, images, target) as run:
        parameters = RuleParameters(epsilon, gamma, alpha, low, high, zero_bias)
        mode = Relevance(run.view.network, "LRP", RuleMap(rule, composite), parameters)
        calmer: dict[str, Any] = ({"rule": None} if rule else {}) | ({"zero_bias": False} if zero_bias else {})
        calmer["composite"] = "epsilon_gamma_box" if rule is None and composite == "epsilon_plus" else "epsilon_plus"
        # Without biases, the epsilon rule divides by values close to 0; the composites hardly do.
        return relevance(run, mode, calmer, {"zero_bias": True} | ({"rule": None} if rule else {}))


def _check_bound(name: str, bound: Tensor | float | None, images: Tensor) -> None:
    if isinstance(bound, Tensor):
        sizes = zip(reversed(bound.shape), reversed(images.shape), strict=False)
        if bound.ndim > images.ndim or any(own not in (1, full) for own, full in sizes):
            raise BadOption(
                f"{name} has shape {tuple(bound.shape)}, which does not broadcast to images {tuple(images.shape)}. "
                f"Give a number, or one per channel: [{images.shape[1]}, 1, 1]."
            )
        refuse_values(name, bound, images)
    elif bound is not None and (
        isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound)
    ):
        raise BadOption(
            f"Invalid {name}={shorten(bound)}. Give a number, a tensor, or None for the extreme of each image."
        )


@_backward_rule(title="AttnLRP", paper="Achtibat et al. 2024, arXiv:2402.05602")
def attn_lrp(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    rule: LayerRule = "epsilon",
    epsilon: Epsilon = 0.0,
    gamma: Gamma = 0.25,
    zero_bias: ZeroBias = False,
    **call: Unpack[Call],
) -> Tensor:
    """AttnLRP: LRP that also redistributes relevance to queries and keys, through the attention weights.

        softmax s of x:  R_i = x_i (R_s,i − s_i Σ_j R_s,j)      product z = Σ_i a_i b_i:  R_a,i = a_i b_i R / (2 z + ε)

    Norms are linear with a constant standard deviation, activations pass relevance on unchanged, and each factor of a
    gated product gets half. `rule` is the rule of layers with weights, or a dict {pattern: rule} as in `lrp`; the paper
    uses "gamma" for vision transformers. A network without attention and gates gets LRP with this rule.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to the score minus what biases, softmaxes and epsilon absorb, which `explain`
             reports
    Errors   UnsupportedOperation naming operation and layer; BadOption for a pattern that matches no layer, or if
             relevances overflow
    Source   Achtibat et al. 2024, Propositions 3.1, 3.3 and 3.4, arXiv:2402.05602

    Example
        >>> attn_lrp(vit, images, 281).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return _of_transformer(
            run, AttentionRelevance, "AttnLRP", rule, RuleParameters(epsilon, gamma, zero_bias=zero_bias)
        )


@_backward_rule(title="CP-LRP", paper="Ali et al. 2022, arXiv:2202.07304")
def cp_lrp(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    rule: LayerRule = "epsilon",
    epsilon: Epsilon = 0.0,
    gamma: Gamma = 0.25,
    zero_bias: ZeroBias = False,
    **call: Unpack[Call],
) -> Tensor:
    """CP-LRP: LRP with constant attention weights and standard deviations, so that only values receive relevance.

        attention y = A v:  R_v,j = Σ_i a_ij v_j / y_i R_i      norm y = (x − mean) / σ:  linear, with constant σ

    The name is that of Achtibat et al. 2024: conservative propagation. These are also the rules of `lrp`; here, the
    epsilon rule is the default in all layers. `rule` may be a dict {pattern: rule} as in `lrp`.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w), in logits; sums to the score minus what biases and epsilon absorb, which `explain` reports
    Errors   UnsupportedOperation naming operation and layer; BadOption for a pattern that matches no layer, or if
             relevances overflow
    Source   Ali et al. 2022, section 4 (AH-rule and LN-rule), arXiv:2202.07304

    Example
        >>> cp_lrp(vit, images, 281).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return _of_transformer(run, Relevance, "CP-LRP", rule, RuleParameters(epsilon, gamma, zero_bias=zero_bias))


def _of_transformer(run: Run, kind: type[Relevance], name: str, rule: RuleLike, parameters: RuleParameters) -> Tensor:
    mode = kind(run.view.network, name, RuleMap(rule or "epsilon", "epsilon_plus"), parameters)
    calmer = {"rule": "z_plus" if rule == "gamma" else "gamma"}
    return relevance(run, mode, calmer, {"zero_bias": True, "rule": "gamma"})
