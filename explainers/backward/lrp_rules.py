"""How a linear layer hands the relevance R of its outputs on to its inputs: the rules of LRP, and who gets which.

    z_ij = x_i w_ij         what input i adds to output j;  z⁺ and z⁻ its positive and negative part
    R_i  = sum_j (share of i in output j) R_j

Every rule is one expression for that share. None of them divides where the denominator is 0: such an output had no
part that the rule counts, and its relevance is absorbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from explainers.errors import BadOption, UnsupportedOperation, nearest

RULES = ("epsilon", "gamma", "z_plus", "alpha_beta", "z_box", "w_square", "flat")
COMPOSITES = ("epsilon_plus", "epsilon_plus_flat", "epsilon_gamma_box", "alpha2_beta1_flat")
RuleLike = str | Mapping[str, str] | None


@dataclass(frozen=True)
class Affine:
    """A linear layer at work: `apply(x, weight)` without bias, and the bias as what it adds to the output."""

    apply: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    name: str = ""
    kinds: tuple[str, ...] = ()
    version: int = 0

    def at_least_float32(self) -> Affine:
        """The same in float32 or float64, where half precision would overflow in a quotient."""
        if self.x._version != self.version:
            raise UnsupportedOperation(
                f"The input of layer {self.name!r} was changed in place after the layer had run. Use inplace=False "
                f"there, or integrated_gradients."
            )
        return replace(
            self,
            x=at_least_float32(self.x),
            weight=at_least_float32(self.weight),
            bias=None if self.bias is None else at_least_float32(self.bias),
        )

    def through(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """sum_i x_i w_ij, and what takes s_j to x_i sum_j w_ij s_j."""
        return linear_vjp(lambda given: self.apply(given, weight), x)

    def part(self, sign: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """sum_i z⁺_ij (or z⁻_ij for `sign` -1), and what takes s_j to sum_j z⁺_ij s_j."""
        up, down = (self.weight.clamp(min=0), self.weight.clamp(max=0))[::sign]
        total, back = self.through(self.x.clamp(min=0), up)
        if not bool((self.x < 0).any()):
            return total, back
        other, turned = self.through(self.x.clamp(max=0), down)
        return total + other, lambda s: back(s) + turned(s)

    def bias_part(self, sign: int) -> Tensor | float:
        if self.bias is None:
            return 0.0
        return self.bias.clamp(min=0) if sign > 0 else self.bias.clamp(max=0)


@dataclass(frozen=True)
class RuleParameters:
    """The numbers in the rules; `low` and `high` bound what the z_box rule's input can be."""

    epsilon: float = 0.0
    gamma: float = 0.25
    alpha: float = 2.0
    low: Tensor | float | None = None
    high: Tensor | float | None = None


def at_least_float32(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def linear_vjp(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """f(x) of a linear function, and what takes s to x · fᵀ(s)."""
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        leaf = x.detach().clone().requires_grad_()
        z = function(leaf)
    return z.detach(), lambda s: x * torch.autograd.grad(z, leaf, s, retain_graph=True)[0]


def safe_divide(relevance: Tensor, of: Tensor) -> Tensor:
    """R / z, and 0 where z is 0."""
    nothing = of == 0
    return torch.where(nothing, 0, relevance / torch.where(nothing, 1, of))


def stabilised(z: Tensor, epsilon: float) -> Tensor:
    """z + ε sign(z), with the sign of 0 positive."""
    return z + torch.where(z < 0, -epsilon, epsilon) if epsilon else z


def epsilon(a: Affine, relevance: Tensor, given: RuleParameters) -> Tensor:
    """R_i = sum_j z_ij / (z_j + ε sign z_j) R_j, with z_j = sum_i z_ij + b_j.   Bach et al. 2015, eq. 58"""
    z, back = a.through(a.x, a.weight)
    return back(safe_divide(relevance, stabilised(z if a.bias is None else z + a.bias, given.epsilon)))


def gamma(a: Affine, relevance: Tensor, given: RuleParameters) -> Tensor:
    """R_i = sum_j (z_ij + γ z⁺_ij) / sum_i(…) R_j, with z⁻ for z⁺ where z_j < 0.   Montavon et al. 2019, table 10.1;
    negative inputs and outputs as in Andéol et al. 2021, app. C
    """
    z, back = a.through(a.x, a.weight)
    z = z if a.bias is None else z + a.bias
    total = torch.zeros_like(a.x)
    for sign, open_ in ((1, z > 0), (-1, z < 0)):
        favoured, more = a.part(sign)
        s = safe_divide(relevance * open_, z + given.gamma * (favoured + a.bias_part(sign)))
        total = total + back(s) + given.gamma * more(s)
    return total


def z_plus(a: Affine, relevance: Tensor, given: RuleParameters) -> Tensor:
    """R_i = sum_j z⁺_ij / (sum_i z⁺_ij + b⁺_j) R_j.   Montavon et al. 2017, eq. 16; Bach et al. 2015, eq. 60, β = 0"""
    z, back = a.part(1)
    return back(safe_divide(relevance, z + a.bias_part(1)))


def alpha_beta(a: Affine, relevance: Tensor, given: RuleParameters) -> Tensor:
    """R_i = sum_j (α z⁺_ij / (sum_i z⁺_ij + b⁺_j) − β z⁻_ij / (sum_i z⁻_ij + b⁻_j)) R_j, α − β = 1.   Bach et al. 2015,
    eq. 60
    """
    total = torch.zeros_like(a.x)
    for sign, factor in ((1, given.alpha), (-1, 1 - given.alpha)):
        z, back = a.part(sign)
        total = total + factor * back(safe_divide(relevance, z + a.bias_part(sign)))
    return total


def z_box(a: Affine, relevance: Tensor, given: RuleParameters) -> Tensor:
    """R_i = sum_j (z_ij − l_i w⁺_ij − h_i w⁻_ij) / sum_i(…) R_j, inputs from l to h.   Montavon et al. 2017, eq. 18"""
    others = tuple(range(1, a.x.ndim))
    low = a.x.amin(others, keepdim=True) if given.low is None else torch.as_tensor(given.low).to(a.x)
    high = a.x.amax(others, keepdim=True) if given.high is None else torch.as_tensor(given.high).to(a.x)
    z, back = a.through(a.x, a.weight)
    lowest, from_low = a.through(low.expand_as(a.x), a.weight.clamp(min=0))
    highest, from_high = a.through(high.expand_as(a.x), a.weight.clamp(max=0))
    s = safe_divide(relevance, z - lowest - highest)
    return back(s) - from_low(s) - from_high(s)


def w_square(a: Affine, relevance: Tensor, given: RuleParameters) -> Tensor:
    """R_i = sum_j w²_ij / sum_i w²_ij R_j.   Montavon et al. 2017, eq. 12"""
    z, back = a.through(torch.ones_like(a.x), a.weight**2)
    return back(safe_divide(relevance, z))


def flat(a: Affine, relevance: Tensor, given: RuleParameters) -> Tensor:
    """R_i = sum_j R_j / (number of inputs of j).   Lapuschkin et al. 2019, methods"""
    z, back = a.through(torch.ones_like(a.x), torch.ones_like(a.weight))
    return back(safe_divide(relevance, z))


def excitation(a: Affine, relevance: Tensor, given: RuleParameters) -> Tensor:
    """P_i = sum_j z⁺_ij / sum_i z⁺_ij P_j: the winning probability, without bias.   Zhang et al. 2016, eq. 5"""
    z, back = a.part(1)
    return back(safe_divide(relevance, z))


FORMULAS = {"epsilon": epsilon, "gamma": gamma, "z_plus": z_plus, "alpha_beta": alpha_beta}
FORMULAS |= {"z_box": z_box, "w_square": w_square, "flat": flat, "excitation": excitation}


class RuleMap:
    """Which rule a layer gets: the first pattern of `rule` that matches its name or kind, else the composite's.

    Errors   BadOption for a rule that does not exist, and after the pass for a pattern that matched nothing
    """

    def __init__(self, rule: RuleLike, composite: str) -> None:
        self.patterns = {"*": rule} if isinstance(rule, str) else dict(rule or {})
        self.composite = composite
        for pattern, name in self.patterns.items():
            if name not in RULES:
                raise BadOption(
                    f"rule={name!r}{'' if pattern == '*' else f' for {pattern!r}'} is not possible. "
                    f"{nearest(str(name), RULES)}Choose one of {', '.join(RULES)}."
                )
        self._layers: dict[str, None] = {}
        self._matched: set[str] = set()

    def __call__(self, layer: Affine, first: bool) -> str:
        words = (layer.name, *layer.kinds)
        self._layers |= dict.fromkeys(words)
        for pattern, name in self.patterns.items():
            if any(fnmatchcase(word, pattern) for word in words):
                self._matched.add(pattern)
                return name
        return self._of_composite(layer, first)

    def _of_composite(self, layer: Affine, first: bool) -> str:
        """Kohlbrenner et al. 2020, section 3, and Montavon et al. 2019, section 10.3: by kind of layer and place."""
        if first and self.composite.endswith(("_flat", "_box")):
            return "flat" if self.composite.endswith("_flat") else "z_box"
        if "Conv" not in layer.kinds[0]:
            return "epsilon"
        if self.composite.startswith("alpha2"):
            return "alpha_beta"
        return "gamma" if "gamma" in self.composite else "z_plus"

    def check(self) -> None:
        for pattern in self.patterns:
            if pattern not in self._matched and pattern != "*":
                known = [word for word in self._layers if word]
                raise BadOption(
                    f"rule for {pattern!r}: no layer with weights has that name or kind. {nearest(pattern, known)}The "
                    f"layers are {', '.join(known[:12])}{' …' if len(known) > 12 else ''}."
                )
