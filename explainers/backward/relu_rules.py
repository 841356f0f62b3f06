"""Rules for rectifiers, as hooks on the ReLU nodes of one call's autograd graph.

The graph holds every ReLU that ran, as module or function, in place or shared, and nothing of another call; the user's
modules are not touched. Activations for which a rule is not defined are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from explainers.backward.operations import global_hooks, is_user_function, nodes, user_function
from explainers.errors import UnsupportedOperation
from explainers.hooks.locate import frozen_graph, unwrap

# (gradients at the inputs, gradients at the outputs) -> gradients at the inputs.
Rule = Callable[[tuple[Tensor | None, ...], tuple[Tensor, ...]], tuple[Tensor | None, ...]]

# Rectifiers: zero gradient outside an interval, one inside. ReLU6 and Hardtanh(0, b) are ReLU with a ceiling.
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
    """Guided backpropagation: [x > 0] max(g, 0)."""
    return tuple(None if g is None else g.clamp(min=0) for g in inputs)


def deconv(inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Deconvnet: max(g, 0), whatever the input was."""
    return tuple(None if g is None else outputs[0].clamp(min=0) for g in inputs)


def at_rectifiers(total: Tensor, rule: Rule) -> None:
    """Put `rule` on every rectifier of the graph behind `total`.

    Errors   UnsupportedOperation for other activations, for graphs that hide their operations (a Function of the
             user's, compiled or scripted code), and without any rectifier
    """
    rectifiers = []
    for node in nodes([total.grad_fn]):
        name = node.name().rpartition("::")[2]
        if is_user_function(node) and not any(hidden in name for hidden in _HIDDEN):
            function, why = user_function(node)
            raise UnsupportedOperation(
                f"The network uses {function}, {why}. It may hold a ReLU, which guided backpropagation and deconvnet "
                f"would pass over. Use saliency, smooth_grad or integrated_gradients."
            )
        if name.startswith(_RECTIFIERS) or _is_rectifier(name, node):
            rectifiers.append(node)
        elif activation := next((word for start, word in _OTHERS.items() if name.startswith(start)), None):
            raise UnsupportedOperation(not_defined(activation))
        elif any(hidden in node.name() for hidden in _HIDDEN):
            raise UnsupportedOperation(
                f"The network hides operations in {node.name()}, so its ReLUs cannot be seen. Use saliency or "
                f"integrated_gradients."
            )
    if not rectifiers:
        raise UnsupportedOperation(
            "The network has no ReLU, so this rule gives the plain gradient. Use saliency or integrated_gradients."
        )
    for node in rectifiers:
        node.register_hook(rule)


def _is_rectifier(name: str, node: Any) -> bool:
    """Whether it is a clamp from 0, with or without a ceiling, or the maximum with constant zeros."""
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


def not_defined(activation: str) -> str:
    """The message for an activation other than ReLU."""
    return (
        f"The network uses {activation}; guided backpropagation and deconvnet are defined for ReLU alone. "
        "Use saliency, smooth_grad or integrated_gradients."
    )


def why_not(model: nn.Module) -> str | None:
    """Why rules for ReLU cannot apply to this model, as far as its modules tell; else None."""
    model = unwrap(model)
    if (kind := frozen_graph(model)) in ("scripted", "traced"):
        return (
            f"The model is {kind}, so backward rules cannot see its ReLUs. Give the original nn.Module, or use "
            f"saliency or integrated_gradients."
        )
    other = next((m for m in model.modules() if isinstance(m, _MODULES)), None)
    return None if other is None else not_defined(type(other).__name__)


def apply(model: nn.Module, rule: Rule) -> Callable[[Tensor], None]:
    """`rule` as `Run.gradient(rule=...)` takes it.

    Errors   UnsupportedOperation
    """
    reason = why_not(model) or global_hooks()
    if reason is not None:
        raise UnsupportedOperation(reason)
    return lambda total: at_rectifiers(total, rule)
