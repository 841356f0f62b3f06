"""The rules of LRP, which redistribute a layer's output relevance R_j to its inputs, and their assignment to layers.

    z_ij = x_i w_ij                  contribution of input i to output j;  z⁺, z⁻ its positive and negative part
    R_i  = sum_j z_ij / z_j R_j      a rule changes z_ij; z_j is always their sum over i

If a denominator is 0, the output has no contributions that the rule considers, and its relevance is absorbed. A
function decorated with `@rule` is a rule under its own name; an entry of `COMPOSITES` is a composite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from explainers.call.scores import at_least_float32
from explainers.errors import BadOption, UnsupportedOperation, WrongType, nearest, shorten
from explainers.rules.operations import vjp

RuleLike = str | Mapping[str, str] | None


@dataclass(frozen=True)
class Affine:
    """One call of an affine layer, apply(x, weight) + bias.

    `kinds` are the layer types that a rule map can match; `version` is the version of x when the layer ran. `output` is
    what the network computed, with the bias, `options` are the stride, padding, dilation and groups that were given.
    """

    apply: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    name: str = ""
    kinds: tuple[str, ...] = ()
    version: int = 0
    output: Tensor | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def groups(self) -> int:
        """Number of groups of a convolution."""
        return int(dict(self.options).get("groups", 1))

    @property
    def is_pointwise(self) -> bool:
        """Whether each output depends on a single position of the input."""
        options = dict(self.options)
        is_dense = set(_tuple(options.get("stride", 1))) == {1}
        return self.weight[0, 0].numel() == 1 and is_dense and set(_tuple(options.get("padding", 0))) <= {0, "valid"}

    def at_least_float32(self) -> Affine:
        """Convert to float32 or keep float64, because quotients overflow in half precision.

        Errors   UnsupportedOperation if x was modified in place in the meantime
        """
        if self.x._version != self.version:
            raise UnsupportedOperation(
                f"The input of layer {self.name!r} was modified in place after the layer ran. Use inplace=False "
                f"there, or use integrated_gradients."
            )
        return replace(
            self,
            x=at_least_float32(self.x),
            weight=at_least_float32(self.weight),
            bias=None if self.bias is None else at_least_float32(self.bias),
            output=None if self.output is None else at_least_float32(self.output),
        )

    def linear(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return z_j = sum_i x_i w_ij, and the function s -> x_i sum_j w_ij s_j."""
        return linear_vjp(lambda leaf: self.apply(leaf, weight), x)

    def signed_part(self, sign: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return sum_i z⁺_ij, and the function s -> sum_j z⁺_ij s_j; with z⁻ if `sign` is -1."""
        same, opposite = (self.weight.clamp(min=0), self.weight.clamp(max=0))[::sign]
        z, redistribute = self.linear(self.x.clamp(min=0), same)
        if not bool((self.x < 0).any()):
            return z, redistribute
        z_negative, redistribute_negative = self.linear(self.x.clamp(max=0), opposite)
        return z + z_negative, lambda s: redistribute(s) + redistribute_negative(s)

    def signed_bias(self, sign: int) -> Tensor | float:
        """Return b⁺, or b⁻ if `sign` is -1."""
        if self.bias is None:
            return 0.0
        return self.bias.clamp(min=0) if sign > 0 else self.bias.clamp(max=0)


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


@dataclass(frozen=True)
class RuleParameters:
    """Parameters ε, γ and α (β = α − 1) of the rules; `low` and `high` bound the input of the z_box rule.

    With `zero_bias`, biases and other constants that are added are left out of all denominators and absorb nothing.
    """

    epsilon: float = 0.0
    gamma: float = 0.25
    alpha: float = 2.0
    low: Tensor | float | None = None
    high: Tensor | float | None = None
    zero_bias: bool = False


Rule = Callable[[Affine, Tensor, RuleParameters], Tensor]
RULES: dict[str, Rule] = {}
"""All rules by name, as accepted by `lrp(rule=...)`."""


def rule(function: Rule) -> Rule:
    """Register a rule, (layer, output relevance, parameters) -> input relevance, in `RULES`."""
    RULES[function.__name__] = function
    return function


def linear_vjp(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return f(x) for a linear f, and the function s -> x · fᵀ(s)."""
    with torch.autocast(x.device.type, enabled=False):
        z, backward = vjp(function, x)
    return z, lambda s: x * backward(s)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient, or 0 if the denominator is 0."""
    zero = denominator == 0
    return torch.where(zero, 0, numerator / torch.where(zero, 1, denominator))


def stabilize(z: Tensor, epsilon: float) -> Tensor:
    """Return z + ε sign(z), with sign(0) = 1."""
    return torch.where(z < 0, z - epsilon, z + epsilon) if epsilon else z


@rule
def epsilon(a: Affine, relevance: Tensor, parameters: RuleParameters) -> Tensor:
    """R_i = sum_j z_ij / (z_j + ε sign z_j) R_j, with z_j = sum_i z_ij + b_j.   Bach et al. 2015, eq. 58

    z_j is the network's own output: if it was computed again, R_j / z_j would contain the difference in rounding.
    """
    z, redistribute = a.linear(a.x, a.weight)
    if a.output is not None and not parameters.zero_bias:
        z = a.output
    elif a.bias is not None:
        z = z + a.bias
    return redistribute(safe_divide(relevance, stabilize(z, parameters.epsilon)))


@rule
def gamma(a: Affine, relevance: Tensor, parameters: RuleParameters) -> Tensor:
    """R_i = sum_j (z_ij + γ z⁺_ij) / sum_i(…) R_j, with z⁻ for z⁺ if z_j < 0.   Montavon et al. 2019, table 10.1;
    negative inputs and outputs as in Andéol et al. 2021, app. C
    """
    z, redistribute = a.linear(a.x, a.weight)
    z = z if a.bias is None else z + a.bias
    total = torch.zeros_like(a.x)
    for sign, outputs in ((1, z > 0), (-1, z < 0)):
        z_signed, redistribute_signed = a.signed_part(sign)
        s = safe_divide(relevance * outputs, z + parameters.gamma * (z_signed + a.signed_bias(sign)))
        total = total + redistribute(s) + parameters.gamma * redistribute_signed(s)
    return total


MOST_GAIN = 10.0
"""The largest |z_j| / sum_i z⁺_ij for which the z_plus rule divides by the positive contributions of z_j < 0."""


@rule
def z_plus(a: Affine, relevance: Tensor, parameters: RuleParameters) -> Tensor:
    """R_i = sum_j z⁺_ij / (sum_i z⁺_ij + b⁺_j) R_j, with z⁻ and b⁻ for outputs z_j < 0 that are more than 10 times as
    large as their positive contributions.   Montavon et al. 2017, eq. 16; Bach et al. 2015, eq. 60, β = 0

    Outputs of a ReLU have no relevance if z_j < 0. Elsewhere (GELU, no activation), R_j / sum_i z⁺_ij has no bound, and
    relevances cancel: 2e7 in timm's mvitv2_tiny for a score of 0.34, but 4 with the second case.
    """
    z, redistribute = a.signed_part(1)
    z = z + a.signed_bias(1)
    if a.output is None or not bool((below := (-a.output > MOST_GAIN * z) & (relevance != 0)).any()):
        return redistribute(safe_divide(relevance, z))
    total = redistribute(safe_divide(relevance.masked_fill(below, 0), z))
    z, redistribute = a.signed_part(-1)
    return total + redistribute(safe_divide(relevance.masked_fill(~below, 0), z + a.signed_bias(-1)))


@rule
def alpha_beta(a: Affine, relevance: Tensor, parameters: RuleParameters) -> Tensor:
    """R_i = sum_j (α z⁺_ij / (sum_i z⁺_ij + b⁺_j) − β z⁻_ij / (sum_i z⁻_ij + b⁻_j)) R_j, α − β = 1.   Bach et al. 2015,
    eq. 60
    """
    total = torch.zeros_like(a.x)
    for sign, factor in ((1, parameters.alpha), (-1, 1 - parameters.alpha)):
        z, redistribute = a.signed_part(sign)
        total = total + factor * redistribute(safe_divide(relevance, z + a.signed_bias(sign)))
    return total


@rule
def z_box(a: Affine, relevance: Tensor, parameters: RuleParameters) -> Tensor:
    """R_i = sum_j (z_ij − l_i w⁺_ij − h_i w⁻_ij) / sum_i(…) R_j, inputs from l to h.   Montavon et al. 2017, eq. 18"""
    dims = tuple(range(1, a.x.ndim))
    low = a.x.amin(dims, keepdim=True) if parameters.low is None else torch.as_tensor(parameters.low).to(a.x)
    high = a.x.amax(dims, keepdim=True) if parameters.high is None else torch.as_tensor(parameters.high).to(a.x)
    z, redistribute = a.linear(a.x, a.weight)
    z_low, redistribute_low = a.linear(low.expand_as(a.x), a.weight.clamp(min=0))
    z_high, redistribute_high = a.linear(high.expand_as(a.x), a.weight.clamp(max=0))
    s = safe_divide(relevance, z - z_low - z_high)
    return redistribute(s) - redistribute_low(s) - redistribute_high(s)


@rule
def w_square(a: Affine, relevance: Tensor, parameters: RuleParameters) -> Tensor:
    """R_i = sum_j w²_ij / sum_i w²_ij R_j.   Montavon et al. 2017, eq. 12"""
    z, redistribute = a.linear(torch.ones_like(a.x), a.weight**2)
    return redistribute(safe_divide(relevance, z))


@rule
def flat(a: Affine, relevance: Tensor, parameters: RuleParameters) -> Tensor:
    """R_i = sum_j R_j / (number of inputs of j).   Lapuschkin et al. 2019, methods"""
    z, redistribute = a.linear(torch.ones_like(a.x), torch.ones_like(a.weight))
    return redistribute(safe_divide(relevance, z))


@dataclass(frozen=True)
class Composite:
    """Rule names by layer type: convolutions, the first layer with weights (if different), all others."""

    convolution: str
    first: str | None = None
    other: str = "epsilon"


COMPOSITES = {
    "epsilon_plus": Composite("z_plus"),
    "epsilon_plus_flat": Composite("z_plus", first="flat"),
    "epsilon_gamma_box": Composite("gamma", first="z_box"),
    "alpha2_beta1_flat": Composite("alpha_beta", first="flat"),
}
"""All composites by name, as accepted by `lrp(composite=...)`. Kohlbrenner et al. 2020, section 3; Montavon et al.
2019, section 10.3
"""


class RuleMap:
    """Assigns a rule to each layer: the first pattern of `rule` that matches its name or type, else the composite.

    Errors   BadOption for an unknown rule, and from `check` for a pattern that matched no layer
    """

    def __init__(self, rule: RuleLike, composite: str) -> None:
        if not (rule is None or isinstance(rule, (str, Mapping))):
            raise WrongType(f"rule={shorten(rule)} is not valid. Give a name, or a mapping from patterns to names.")
        self.patterns = {"*": rule} if isinstance(rule, str) else dict(rule or {})
        self.composite = COMPOSITES[composite]
        for pattern, name in self.patterns.items():
            if not isinstance(name, str) or name not in RULES:
                raise BadOption(
                    f"Unknown LRP rule={shorten(name)}{'' if pattern == '*' else f' for {shorten(pattern)}'}. "
                    f"{nearest(str(name), RULES)}Choose one of {', '.join(RULES)}."
                )
        self._layers: dict[str, None] = {}
        self._matched: set[str] = set()

    def __call__(self, layer: Affine, first: bool) -> Rule:
        names = (layer.name, *layer.kinds)
        self._layers |= dict.fromkeys(names)
        for pattern, rule in self.patterns.items():
            if any(fnmatchcase(name, pattern) for name in names):
                self._matched.add(pattern)
                return RULES[rule]
        if first and self.composite.first:
            return RULES[self.composite.first]
        return RULES[self.composite.convolution if "Conv" in layer.kinds[0] else self.composite.other]

    def check(self) -> None:
        """Raise an error if a pattern did not match any layer in the forward pass.

        Errors   BadOption
        """
        for pattern in self.patterns:
            if pattern not in self._matched and pattern != "*":
                layers = [name for name in self._layers if name]
                raise BadOption(
                    f"rule pattern {shorten(pattern)} matches no name or type of a layer with weights. "
                    f"{nearest(pattern, layers)}Layers: {', '.join(layers[:12])}{' …' if len(layers) > 12 else ''}."
                )
