"""Rules for rectifiers, as hooks on the ReLU nodes in the autograd graph of one call.

The graph contains every ReLU that ran, whether module or function, in-place or shared, and nothing from other calls.
The user's modules are not modified. Activations for which a rule is not defined raise an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from explainers.backward.operations import describe_user_function, global_hooks, is_user_function, nodes
from explainers.errors import UnsupportedOperation
from explainers.hooks.locate import frozen_graph, unwrap

# (gradients at the inputs, gradients at the outputs) -> gradients at the inputs.
Rule = Callable[[tuple[Tensor | None, ...], tuple[Tensor, ...]], tuple[Tensor | None, ...]]

# Rectifiers: zero gradient outside an interval, one inside. ReLU6 and Hardtanh(0, b) are ReLUs with an upper limit.
_RECTIFIERS = ("ReluBackward", "HardtanhBackward", "ThresholdBackward", "ClampMinBackward")
_OTHERS = {
    "SiluBackward": "SiLU",
    "GeluBackward": "GELU",
    "HardswishBackward": "Hardswish",
    "LeakyReluBackward": "LeakyReLU",
    "PreluBackward": "PReLU",
    "EluBackward": "ELU",
    "MishBackward": "Mish",
    "SoftplusBackward": "Softplus",
    "CeluBackward": "CELU",
    "RreluWithNoiseBackward": "RReLU",
    "LogSigmoidBackward": "LogSigmoid",
    "SoftshrinkBackward": "Softshrink",
    "HardshrinkBackward": "Hardshrink",
}
_HIDDEN = ("CompiledFunction", "DifferentiableGraph")
_MODULES = (
    nn.SiLU,
    nn.GELU,
    nn.Hardswish,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.Mish,
    nn.Softplus,
    nn.CELU,
    nn.SELU,
    nn.RReLU,
)


def guided(inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Apply the rule of guided backpropagation: [x > 0] max(g, 0)."""
    return tuple(None if g is None else g.clamp(min=0) for g in inputs)


def deconv(inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Apply the rule of deconvnet: max(g, 0), regardless of the input."""
    return tuple(None if g is None else outputs[0].clamp(min=0) for g in inputs)


def hook_rectifiers(total: Tensor, rule: Rule) -> None:
    """Register `rule` on every rectifier of the graph that leads to `total`.

    Errors   UnsupportedOperation for other activations, for graphs that hide their operations (custom autograd
             Functions, compiled or scripted code), or if there is no rectifier
    """
    rectifiers = []
    for node in nodes([total.grad_fn]):
        name = node.name().rpartition("::")[2]
        if is_user_function(node) and not any(hidden in name for hidden in _HIDDEN):
            function, why = describe_user_function(node)
            raise UnsupportedOperation(
                f"The network uses {function}, {why}. It may contain a ReLU that guided backpropagation and deconvnet "
                f"would miss. Use saliency, smooth_grad or integrated_gradients."
            )
        if name.startswith(_RECTIFIERS) or _is_rectifier(name, node):
            rectifiers.append(node)
        elif activation := next((word for start, word in _OTHERS.items() if name.startswith(start)), None):
            raise UnsupportedOperation(undefined_message(activation))
        elif any(hidden in node.name() for hidden in _HIDDEN):
            raise UnsupportedOperation(
                f"The network hides operations in {node.name()}, so its ReLUs cannot be found. Use saliency or "
                f"integrated_gradients."
            )
    if not rectifiers:
        raise UnsupportedOperation(
            "The network has no ReLU, so this method would return the plain gradient. Use saliency or "
            "integrated_gradients."
        )
    for node in rectifiers:
        node.register_hook(rule)


def _is_rectifier(name: str, node: Any) -> bool:
    """Check whether a node is a clamp from 0, with or without upper limit, or the maximum with constant zeros."""
    if name.startswith("ClampBackward"):
        lowest = node._saved_min
        return lowest is not None and not bool(torch.as_tensor(lowest).any())
    if name.startswith("MaximumBackward"):
        parents = [parent for parent, _ in node.next_functions]
        constants = [
            value for value, parent in zip((node._saved_self, node._saved_other), parents, strict=True) if not parent
        ]
        return len(constants) == 1 and not bool(constants[0].any())
    return False


def undefined_message(activation: str) -> str:
    """Return the error message for an activation other than ReLU."""
    return (
        f"The network uses {activation}; guided backpropagation and deconvnet are only defined for ReLU. "
        "Use saliency, smooth_grad or integrated_gradients."
    )


def why_not(model: nn.Module) -> str | None:
    """Return the reason why ReLU rules cannot be applied to this model, judging by its modules, or None."""
    model = unwrap(model)
    if (kind := frozen_graph(model)) in ("scripted", "traced"):
        return (
            f"The model is {kind}, so backward rules cannot find its ReLUs. Give the original nn.Module, or use "
            f"saliency or integrated_gradients."
        )
    other = next((m for m in model.modules() if isinstance(m, _MODULES)), None)
    return None if other is None else undefined_message(type(other).__name__)


def apply(model: nn.Module, rule: Rule) -> Callable[[Tensor], None]:
    """Convert a rule to the form accepted by `Run.gradient(rule=...)`.

    Errors   UnsupportedOperation
    """
    reason = why_not(model) or global_hooks()
    if reason is not None:
        raise UnsupportedOperation(reason)
    return lambda total: hook_rectifiers(total, rule)
