"""Rules for rectifiers, as hooks on the ReLU nodes in the autograd graph of one call.

The graph contains every ReLU that ran, whether module or function, in-place or shared, and nothing from other calls.
The user's modules are not modified. Activations for which a rule is not defined raise an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from explainers.call.run import Run
from explainers.errors import UnsupportedOperation
from explainers.hooks.locate import frozen_graph, unwrap
from explainers.rules.operations import describe_user_function, global_hooks, is_user_function
from explainers.rules.rectifiers.handwritten import HandwrittenReLUs

# (gradients at the inputs, gradients at the outputs) -> gradients at the inputs.
Rule = Callable[[tuple[Tensor | None, ...], tuple[Tensor, ...]], tuple[Tensor | None, ...]]

# Rectifiers: zero gradient outside an interval, one inside. ReLU6 and Hardtanh(0, b) are ReLUs with an upper limit.
_RECTIFIERS = ("ReluBackward", "HardtanhBackward", "ThresholdBackward", "Clamp", "Maximum", "Fmax")
_OTHERS = (
    "SiLU GELU Hardswish LeakyReLU PReLU ELU Mish Softplus CELU RReLU LogSigmoid Softshrink Hardshrink abs".split()
)
"""Activations other than ReLU. The names of their graph nodes start alike, in other capitals."""
_LOWEST = {"ClampBackward": "_saved_min", "ClampMinBackward": "_saved_min"}
_LOWEST |= {"HardtanhBackward": "_saved_min_val", "ThresholdBackward": "_saved_threshold"}
"""Where graph nodes keep the lowest value that passes."""
_LIMITS = ("ClampMax", "Minimum", "Fmin")
# What `HandwrittenReLUs` looks for: combinations of a tensor with its signs, and functions of signs with a gradient.
_SELECTIONS = (
    "MulBackward", "DivBackward", "AddBackward", "AddcmulBackward", "AddcdivBackward", "WhereBackward",
    "MaskedFillBackward", "IndexPutBackward", "CopySlices", "AbsBackward", "SignBackward", "SgnBackward",
)  # fmt: skip
_HIDDEN = ("CompiledFunction", "DifferentiableGraph")
_MODULES = (*(getattr(nn, name) for name in _OTHERS[:10]), nn.SELU)


def guided(inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Apply the rule of guided backpropagation: [x > 0] max(g, 0)."""
    return tuple([None if g is None else g.clamp_min(0) for g in inputs])


def deconv(inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Apply the rule of deconvnet: max(g, 0), regardless of the input."""
    return tuple(None if g is None else outputs[0].clamp(min=0) for g in inputs)


def skip(node: Any) -> None:
    """Let a graph node pass its gradient on unchanged, also where it cuts its input off."""
    node.register_hook(lambda inputs, outputs: (outputs[0], *inputs[1:]))


class HasSelections(Exception):
    """Raised for a graph that may contain a ReLU written as a selection (handwritten.py)."""


def hook_rectifiers(nodes: list[Any], rule: Rule, *, plain: bool = False) -> None:
    """Register `rule` on every rectifier among the nodes of a graph.

    Set `plain` if the forward pass ran without `HandwrittenReLUs`.

    Errors   UnsupportedOperation for other activations, for graphs that hide their operations (custom autograd
             Functions, compiled or scripted code), or without a rectifier; HasSelections if `plain`
    """
    rectifiers, activations = [], []
    for node in nodes:
        full_name = type(node).__name__
        if full_name == "CppFunction":  # torch has no class for it; its name takes longer
            full_name = node.name()
        kind = _kind(full_name)
        if kind is None and not isinstance(node, BackwardCFunction):
            continue
        name = full_name.rpartition("::")[2]
        if plain and kind == "selection" and _may_select(name, node):
            raise HasSelections
        if is_user_function(node) and kind != "hidden":
            function, why = describe_user_function(node)
            raise UnsupportedOperation(
                f"The network uses {function}, {why}. It may contain a ReLU that guided backpropagation and deconvnet "
                f"would miss. Use saliency, smooth_grad or integrated_gradients."
            )
        if kind == "selection" and not name.startswith("Abs"):
            continue
        if kind == "rectifier" and _is_rectifier(name, node):
            rectifiers.append(node)
        elif other := _other_activation(name, node):
            activations.append(undefined_message(other))
        elif kind == "hidden":
            raise UnsupportedOperation(
                f"The network hides operations in {node.name()}, so its ReLUs cannot be found. Use saliency or "
                f"integrated_gradients."
            )
    if activations:
        raise UnsupportedOperation(activations[0])
    if not rectifiers:
        raise UnsupportedOperation(
            "The network has no ReLU, so this method would return the plain gradient. Use saliency or "
            "integrated_gradients."
        )
    for node in rectifiers:
        node.register_hook(rule)


@lru_cache(maxsize=1024)
def _kind(full_name: str) -> str | None:
    """Return what the name of a node says about it, or None if it does not matter for rules."""
    name = full_name.rpartition("::")[2]
    if any(hidden in full_name for hidden in _HIDDEN):
        return "hidden"
    if name.startswith(_SELECTIONS):
        return "selection"
    if name.startswith(_RECTIFIERS):
        return "rectifier"
    is_other = name.startswith(_LIMITS) or name.lower().startswith(tuple(word.lower() for word in _OTHERS))
    return "activation" if is_other else None


def _may_select(name: str, node: Any) -> bool:
    """Return whether a node may be part of a ReLU that is written as a selection.

    The values that select are constants for autograd. A product with a constant of another shape does not select.
    """
    if not name.startswith(("Mul", "Div", "Add")) or name.startswith("Addc"):
        return True
    if all(parent is not None for parent, _ in node.next_functions):
        return False
    if name.startswith("Add"):
        return True
    constant = node._saved_self if node.next_functions[0][0] is None else node._saved_other
    return constant is not None and tuple(constant.shape) == tuple(node._input_metadata[0].shape)


def _is_rectifier(name: str, node: Any) -> bool:
    """Check whether a node limits its input to values from 0, with or without an upper limit."""
    if name.startswith("ReluBackward"):
        return True
    if name.startswith(("MaximumBackward", "FmaxBackward")):
        lowest = _constant(node)
    else:
        lowest = next((getattr(node, saved) for start, saved in _LOWEST.items() if name.startswith(start)), None)
    return lowest is not None and _is_zero(lowest)


def _other_activation(name: str, node: Any) -> str:
    """Return the name of an activation for which ReLU rules are not defined, or ""."""
    limited: Any = None
    if name.startswith("ClampMaxBackward") or (name.startswith("ClampBackward") and node._saved_min is None):
        limited = node._saved_max
    elif name.startswith(("MinimumBackward", "FminBackward")):
        limited = _constant(node)
    if limited is not None and _is_zero(limited):
        return "min(x, 0)"
    words = ("Hardtanh", "Threshold", *_OTHERS)
    return next((word for word in words if name.lower().startswith(word.lower())), "")


def _is_zero(limit: Any) -> bool:
    return limit == 0 if isinstance(limit, (int, float)) else not bool(torch.as_tensor(limit).any())


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


def rectified_gradient(run: Run, model: nn.Module, rule: Rule) -> Tensor:
    """Return d score / d image with the rule at every ReLU, [N, C, H, W].

    ReLUs that are written as a selection are found by a function mode, which slows every operation. It only runs if the
    graph of a plain pass has operations that can be part of one.

    Errors   UnsupportedOperation
    """
    # The classes are known; the modules are only searched for the first one without a rule.
    may_fail = run.view.kind is not None or any(issubclass(kind, _MODULES) for kind in run.view.classes)
    reason = (why_not(model) if may_fail else None) or global_hooks()
    if reason is not None:
        raise UnsupportedOperation(reason)
    with suppress(HasSelections):
        return run.backward.gradient(run.images, rule=partial(hook_rectifiers, rule=rule, plain=True))
    with HandwrittenReLUs() as relus:

        def hook(nodes: list[Any]) -> None:
            if relus.others:
                raise UnsupportedOperation(undefined_message(relus.describe()))
            hook_rectifiers(nodes, rule)

        return run.backward.gradient(run.images, rule=hook)
