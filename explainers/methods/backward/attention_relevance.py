"""LRP for transformers: AttnLRP and CP-LRP."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.keywords import Call
from explainers.methods.backward.relevance import ZeroBias
from explainers.options import Choice, Range
from explainers.registry import method
from explainers.rules.lrp import relevance
from explainers.rules.lrp_attention import AttentionRelevance
from explainers.rules.lrp_operations import Relevance
from explainers.rules.lrp_rules import RULES, RuleLike, RuleMap, RuleParameters
from explainers.rules.operations import why_not
from explainers.targets import TargetLike

LayerRule = Annotated[RuleLike, Choice(*RULES, help="rule of linear layers and convolutions")]
Epsilon = Annotated[float, Range(0, 10, 0.01, help="ε: stabilizer added to the denominator")]
Gamma = Annotated[float, Range(0, 100, 0.05, help="γ: extra weight on positive contributions")]


@method(
    family="backward rule",
    returns="pixels",
    title="AttnLRP",
    needs=why_not,
    paper="Achtibat et al. 2024, arXiv:2402.05602",
)
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
        parameters = RuleParameters(epsilon, gamma, zero_bias=zero_bias)
        mode = AttentionRelevance(run.view.network, "AttnLRP", RuleMap(rule or "epsilon", "epsilon_plus"), parameters)
        return relevance(run, mode, _calmer(rule), {"zero_bias": True, "rule": "gamma"})


@method(
    family="backward rule",
    returns="pixels",
    title="CP-LRP",
    needs=why_not,
    paper="Ali et al. 2022, arXiv:2202.07304",
)
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
        parameters = RuleParameters(epsilon, gamma, zero_bias=zero_bias)
        mode = Relevance(run.view.network, "CP-LRP", RuleMap(rule or "epsilon", "epsilon_plus"), parameters)
        return relevance(run, mode, _calmer(rule), {"zero_bias": True, "rule": "gamma"})


def _calmer(rule: RuleLike) -> dict[str, str]:
    return {"rule": "z_plus" if rule == "gamma" else "gamma"}
