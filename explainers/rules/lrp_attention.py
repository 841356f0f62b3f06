"""The function mode of AttnLRP, in which relevance also flows through attention weights and gates.

    softmax s of x        R_i = x_i (R_s,i − s_i sum_j R_s,j)     Proposition 3.1; the rest is absorbed
    products of signals   R_a = a_i b_j R_ij / (2 z_ij + ε)       Proposition 3.3; q kᵀ and A v
    gated products        half to each factor                     section 3.3.2
    norms                 linear, with constant 1/σ               Proposition 3.4, as in LRP
    activations           pass relevance on unchanged             section 3.2, as in LRP

All other operations have the rules of LRP. CP-LRP, with constant attention weights, is the mode of LRP itself.

Source   Achtibat et al. 2024, arXiv:2402.05602
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from explainers.call.scores import at_least_float32
from explainers.rules.decompositions import attention
from explainers.rules.lrp_operations import Relevance
from explainers.rules.lrp_rules import linear_vjp, safe_divide, stabilize
from explainers.rules.operations import Call, mark, with_custom_backward


class AttentionRelevance(Relevance):
    """The mode of AttnLRP."""

    absorbing = ("softmaxes",)

    def operations(self) -> dict[str, Callable[[Call], Any]]:
        return super().operations() | {"softmax": self._softmax, "scaled_dot_product_attention": attention}

    def _softmax(self, call: Call) -> Tensor:
        """Return the softmax, with relevance for its logits; a logit of -inf has none."""
        function, (x, *_) = call.out_of_place(), call.tensors
        dim = call.bind_arguments("input", "dim")[1]
        if dim is None:
            raise self.refuse("softmax without a dimension", "which torch has deprecated; set dim")
        with torch.no_grad():
            values, shares = at_least_float32(x).clone(), at_least_float32(function(x))
        values = values.masked_fill(values == -torch.inf, 0)

        def redistribute(relevance: Tensor) -> list[Tensor]:
            r = at_least_float32(relevance)
            return [(values * (r - shares * r.sum(dim, keepdim=True))).to(relevance.dtype)]

        return with_custom_backward(function, redistribute, x)

    def _activation(self, call: Call) -> Tensor:
        """Pass relevance on unchanged, also into a sigmoid, which is a constant gate in LRP."""
        return mark(super()._activation(call), "")

    def _bilinear(self, call: Call) -> Any:
        """Redistribute half to each of two signals, in proportion to the summands of z."""
        function, factors = call.out_of_place(), call.tensors
        signals = [factor for factor in factors if factor.requires_grad]
        if len(factors) != 2 or len(signals) != 2:
            return super()._bilinear(call)
        a, b = (factor.detach().clone() for factor in factors)
        epsilon = self.parameters.epsilon

        def redistribute(relevance: Tensor) -> list[Tensor]:
            left, right, r = at_least_float32(a), at_least_float32(b), at_least_float32(relevance)
            z, to_left = linear_vjp(lambda x: function(x, right), left)
            _, to_right = linear_vjp(lambda x: function(left, x), right)
            s = safe_divide(r, stabilize(2 * z, epsilon))
            return [to_left(s).to(relevance.dtype), to_right(s).to(relevance.dtype)]

        return with_custom_backward(function, redistribute, *factors)
