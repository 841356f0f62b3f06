"""The layers with weights in the function mode of LRP: each follows a rule of lrp_rules.py.

Batch norm is merged into the layer before or after it for the duration of the call (like zennit's canonizer), and
low-rank adapters into their layer (adapters.py).

Source   Bach et al. 2015
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from explainers.call.scores import at_least_float32
from explainers.rules.adapters import AdapterTerms, Positions
from explainers.rules.lrp_rules import Affine, RuleMap, RuleParameters, z_plus
from explainers.rules.operations import Call, Interception, Outputs, get_mark, mark, with_custom_backward

LAYERS = {"linear": "Linear"} | {f"conv{n}d": f"Conv{n}d" for n in (1, 2, 3)}
LAYERS |= {f"conv_transpose{n}d": f"ConvTranspose{n}d" for n in (1, 2, 3)}
"""Types that a rule map can match, by operation."""


class LayerRelevance(Interception):
    """The rules of layers with weights and of batch norm; without a rule map those of excitation backprop."""

    def __init__(
        self,
        network: nn.Module,
        method: str,
        rule_map: RuleMap | None,
        parameters: RuleParameters,
        contrast: bool = False,
    ):
        super().__init__(network, method)
        self.rule_map, self.parameters, self.contrast = rule_map, parameters, contrast
        self._count = 0
        self._affine = Outputs[tuple[Affine, Positions]]()
        self._norms = Outputs[tuple[Tensor, Tensor, Tensor]]()
        self.adapters = AdapterTerms()
        self.rules = {name: partial(_skip_constants, rule) for name, rule in self.operations().items()}

    def operations(self) -> dict[str, Callable[[Call], Any]]:
        """Return the rules of all operations by name, for calls that depend on the image."""
        rules: dict[str, Callable[[Call], Any]] = dict.fromkeys(LAYERS, self.layer_with_weights)
        return rules | {"batch_norm": self.batch_norm}

    def release(self) -> None:
        super().release()
        self._affine.clear()
        self._norms.clear()
        self.adapters.clear()

    def layer_with_weights(self, call: Call) -> Tensor:
        names = "stride padding dilation groups".split()
        if "transpose" in call.name:
            names = "stride padding output_padding groups dilation".split()
        x, weight, bias, *rest = call.bind_arguments("input", "weight", "bias", *names)
        if weight.requires_grad or (bias is not None and bias.requires_grad):
            raise self.refuse(f"{call.name} with weights that depend on the image")
        options = {name: value for name, value in zip(names, rest, strict=True) if value is not None}
        function: Any = F.linear if call.name == "linear" else getattr(torch, call.name)
        # An image without a batch dimension has its channels first.
        shape = (-1,) if call.name == "linear" else (-1, *[1] * (weight.ndim - 2))
        name, kind = self.layer()
        affine = Affine(
            lambda x, w: function(x, w, **options),
            x,
            weight,
            None if bias is None else bias.view(shape),
            name,
            (LAYERS[call.name], kind),
            x._version,
            options=tuple(sorted(options.items())),
        )
        affine = self._with_norm_before(affine, call.name, options)
        position, self._count = self._count, self._count + 1
        result = self._with_rule(affine, call.call_original(), (position, position))
        if "transpose" not in call.name:
            self._affine[result] = affine, (position, position)
            self.adapters.add_layer(result, affine, position, weight)
        return result

    def _with_rule(self, affine: Affine, output: Tensor, positions: Positions = (-1, -1)) -> Tensor:
        """Return the layer's output with its rule as backward; `positions` count the layers with weights."""
        rule = self.rule_map(affine, positions[0] == 0) if self.rule_map else z_plus
        output, x = output.detach(), affine.x
        bias = None if self.parameters.zero_bias else affine.bias
        detached = replace(affine, x=x.detach(), bias=bias, output=output.clone() if self.rule_map else None)
        parameters, contrast = self.parameters, self.contrast

        def redistribute(relevance: Tensor) -> list[Tensor]:
            a, r = detached.at_least_float32(), at_least_float32(relevance)
            inputs = rule(a, r, parameters)
            if contrast and positions[1] == self._count - 1:
                inputs = inputs - rule(replace(a, weight=-a.weight), r, parameters)
            return [inputs.to(relevance.dtype)]

        return mark_linear(with_custom_backward(lambda _: output, redistribute, x), x)

    def _with_norm_before(self, affine: Affine, operation: str, options: dict[str, Any]) -> Affine:
        """Merge a batch norm s x + t directly before the layer: w (s x + t) + b = (w s) x + (w t + b)."""
        norm, x = self._norms.get(affine.x), affine.x
        if norm is None or operation not in ("linear", "conv2d") or (operation == "linear" and x.ndim != 2):
            return affine
        before, scale, shift = norm
        groups = int(options.get("groups", 1))
        scales = scale.view(groups, -1).repeat_interleave(len(affine.weight) // groups, 0)
        weight = affine.weight * scales.view(*affine.weight.shape[:2], *[1] * (affine.weight.ndim - 2))
        constant = shift.view(1, -1, *[1] * (before.ndim - 2)).expand_as(before[:1])
        bias = affine.apply(constant, affine.weight)
        bias = bias if affine.bias is None else bias + affine.bias
        return replace(affine, x=before, weight=weight, bias=bias, version=before._version)

    def batch_norm(self, call: Call) -> Tensor:
        names = "input running_mean running_var weight bias training momentum eps".split()
        x, mean, variance, weight, bias, training, _, eps = call.bind_arguments(*names, eps=1e-5)
        if training or mean is None:
            raise self.refuse("batch norm with batch statistics")
        scale = (variance + eps).rsqrt() * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        scale, shift = scale.to(x.dtype), shift.to(x.dtype)
        output = call.call_original()
        layer = self._affine.get(x)
        if layer and x.ndim == layer[0].weight.ndim:
            before, positions = layer
            channels = (-1, *[1] * (x.ndim - 2))
            bias = shift.view(channels)
            bias = bias if before.bias is None else before.bias * scale.view(channels) + bias
            weight = before.weight * scale.view(-1, *[1] * (before.weight.ndim - 1))
            return self._with_rule(replace(before, weight=weight, bias=bias), output, positions)
        if self.rule_map is None:
            # With one input and one output, the winner is known.
            result = with_custom_backward(lambda _: output.detach(), lambda probability: [probability], x)
        else:
            name, kind = self.layer()
            channels = (1, -1, *[1] * (x.ndim - 2))
            kinds = ("BatchNorm", kind)
            affine = Affine(lambda x, w: x * w, x, scale.view(channels), shift.view(channels), name, kinds, x._version)
            result = self._with_rule(affine, output)
        self._norms[result] = x, scale, shift
        return result

    def merge_adapter(self, a: Any, b: Any, sign: float) -> Tensor | None:
        """Return a + sign · b as the output of one layer, if one is a layer and the other its adapter, or None."""
        merged = self.adapters.merge(a, b, sign)
        if merged is None:
            return None
        result = self._with_rule(merged[0], (a + b * sign).detach(), merged[1])
        self._affine[result] = merged
        self.adapters.add_merged(result, *merged, a, b)
        return result


def _skip_constants(rule: Callable[[Call], Any], call: Call) -> Any:
    return rule(call) if call.depends_on_image else call.call_original()


def mark_linear(result: Tensor, *inputs: Any, gates: bool = False) -> Tensor:
    """Mark a linear operation's result: mixed heads are attention weights; with `gates`, 1 - gate is a gate."""
    marks = {get_mark(each) for each in inputs if isinstance(each, Tensor) and each.requires_grad}
    return mark(result, *marks) if marks == {"weights"} or (gates and marks == {"gate"}) else result
