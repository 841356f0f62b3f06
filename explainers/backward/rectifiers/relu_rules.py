"""Rules for rectifiers, as hooks on the ReLU nodes in the autograd graph of one call.

The graph contains every ReLU that ran, whether module or function, in-place or shared, and nothing from other calls.
The user's modules are not modified. Activations for which a rule is not defined raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from explainers.backward.operations import describe_user_function, global_hooks, is_user_function, nodes
from explainers.backward.rectifiers.handwritten import HandwrittenReLUs
from explainers.errors import UnsupportedOperation
from explainers.hooks.locate import frozen_graph, unwrap

# (gradients at the inputs, gradients at the outputs) -> gradients at the inputs.
Rule = Callable[[tuple[Tensor | None, ...], tuple[Tensor, ...]], tuple[Tensor | None, ...]]

# Rectifiers: zero gradient outside an interval, one inside. ReLU6 and Hardtanh(0, b) are ReLUs with an upper limit.
_RECTIFIERS = ("ReluBackward", "HardtanhBackward", "ThresholdBackward", "Clamp", "Maximum", "Fmax")
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
    "AbsBackward": "abs",
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


def skip(node: Any) -> None:
    """Let a graph node pass its gradient on unchanged, also where it cuts its input off."""
    node.register_hook(lambda inputs, outputs: (outputs[0], *inputs[1:]))


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
        if name.startswith(_RECTIFIERS) and _is_rectifier(name, node):
            rectifiers.append(node)
        elif other := _other_limit(name, node):
            raise UnsupportedOperation(undefined_message(other))
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
    """Check whether a node limits its input to values from 0, with or without an upper limit."""
    if name.startswith("ReluBackward"):
        return True
    lowest: Any = None
    if name.startswith(("ClampBackward", "ClampMinBackward")):
        lowest = node._saved_min
    elif name.startswith("HardtanhBackward"):
        lowest = node._saved_min_val
    elif name.startswith("ThresholdBackward"):
        lowest = node._saved_threshold
    elif name.startswith(("MaximumBackward", "FmaxBackward")):
        lowest = _constant(node)
    return lowest is not None and not bool(torch.as_tensor(lowest).any())


def _other_limit(name: str, node: Any) -> str:
    """Return the name of an operation with a kink at 0 or a threshold for which ReLU rules are not defined, or ""."""
    if name.startswith("HardtanhBackward"):
        return "Hardtanh"
    if name.startswith("ThresholdBackward"):
        return "Threshold"
    highest: Any = None
    if name.startswith("ClampMaxBackward") or (name.startswith("ClampBackward") and node._saved_min is None):
        highest = node._saved_max
    elif name.startswith(("MinimumBackward", "FminBackward")):
        highest = _constant(node)
    return "min(x, 0)" if highest is not None and not bool(torch.as_tensor(highest).any()) else ""


def _constant(node: Any) -> Any:
    """Return the only constant argument of a binary operation, or None."""
    parents = [parent for parent, _ in node.next_functions]
    constants = [
        value for value, parent in zip((node._saved_self, node._saved_other), parents, strict=True) if not parent
    ]
    return constants[0] if len(constants) == 1 else None


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


@contextmanager
def rectifier_rule(model: nn.Module, rule: Rule) -> Iterator[Callable[[Tensor], None]]:
    """Convert a rule to the form accepted by `run.backward.gradient(rule=...)`, for a pass inside the block.

    Errors   UnsupportedOperation
    """
    reason = why_not(model) or global_hooks()
    if reason is not None:
        raise UnsupportedOperation(reason)
    with HandwrittenReLUs() as relus:

        def hook(total: Tensor) -> None:
            if relus.others:
                raise UnsupportedOperation(undefined_message(relus.describe()))
            hook_rectifiers(total, rule)

        yield hook
