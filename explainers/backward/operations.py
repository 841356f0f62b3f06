"""Every torch operation of one forward pass, seen as it is called: module or function, in place or not, shared or not.

A thread-local function mode gives operations the backward rules of a method. The user's modules are not touched, and
other threads are not affected. Operations without a rule run as they are; after the forward pass the autograd graph
behind the output is read, and an operation in it that the method does not know is refused by name. Operations outside
that graph, such as the queries of an attention whose weights are constants, are never refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from explainers.errors import UnsupportedOperation
from explainers.hooks.locate import frozen_graph, unwrap
from explainers.passes import attention_ops

VJP = Callable[[Tensor], Sequence[Tensor | None]]

STRUCTURE = frozenset(
    "Alias AsStrided Cat Clone ConstantPadNd CopySlices Copys Diagonal Expand Flip Gather Im2Col Index IndexSelect "
    "MaskedFill MaskedSelect PixelShuffle PixelUnshuffle Permute ReflectionPad1D ReflectionPad2D Repeat "
    "ReplicationPad1D ReplicationPad2D Reshape ReshapeAlias Roll Select Slice Split SplitWithSizes Squeeze Stack T "
    "ToCopy Transpose Unbind Unfold UnsafeSplit UnsafeView Unsqueeze UpsampleNearest1D UpsampleNearest2D View Where "
    "AccumulateGrad Custom".split()
)
"""Graph nodes that move or copy values: under every rule, the relevance of a copy is its original's."""

_CALL = nn.Module._call_impl.__code__
_DUNDERS = {"__rsub__": "rsub", "__rdiv__": "rdiv", "__rtruediv__": "rdiv", "__pow__": "pow", "__rpow__": "rpow"}


class CustomBackward(torch.autograd.Function):
    """An operation with its own backward: `vjp`, output gradient to input gradients."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], vjp: VJP, *inputs: Tensor) -> Tensor:
        ctx.vjp, ctx.gate = vjp, False
        return compute(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, *ctx.vjp(gradients[0])


def with_custom_backward(compute: Callable[..., Tensor], vjp: VJP, *inputs: Tensor) -> Tensor:
    """`compute(*inputs)`, with `vjp` as its backward."""
    return CustomBackward.apply(compute, vjp, *inputs)


class Interception(TorchFunctionMode):
    """Runs a network with `rules`: name of an operation -> function(call) -> output.

    `known` are the graph nodes that keep their own backward; `method` is the method's name in errors.

    Errors   UnsupportedOperation for networks that hide their operations
    """

    def __init__(self, network: nn.Module, method: str, known: frozenset[str]) -> None:
        super().__init__()
        if reason := why_not(network):
            raise UnsupportedOperation(reason)
        self.method, self.known = method, known
        self.rules: dict[str, Callable[[Call], Any]] = {}
        self._names = {id(module): name for name, module in reversed([*network.named_modules()])}
        self._unknown: list[tuple[Any, str, str]] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        call = Call(self, function, *_constants((tuple(args), dict(kwargs or {}))))
        rule = self.rules.get(call.name)
        if rule is None:
            result = call.call_original()
            self._remember(call, result)
            return result
        result = rule(call)
        if not call.in_place or result is call.args[0]:
            return result
        # In place, as the user's code expects: every reference to the tensor sees the change.
        return call.args[0].copy_(result)

    def layer(self) -> tuple[str, str]:
        """Dotted name and class of the innermost module that is running; empty outside any."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _CALL:
                module = frame.f_locals["self"]
                return self._names.get(id(module), ""), type(module).__name__
            frame = frame.f_back
        return "", ""

    def refuse(self, operation: str, why: str = "", layer: str | None = None) -> UnsupportedOperation:
        """The error for an operation, by default of the running layer."""
        name = self.layer()[0] if layer is None else layer
        where = f" in layer {name!r}" if name else ""
        return UnsupportedOperation(
            f"The network uses {operation}{where}, {why or f'for which {self.method} has no rule'}. Use saliency, "
            f"smooth_grad or integrated_gradients, which need no rules."
        )

    def check(self, output: Any) -> None:
        """Refuse an output whose graph holds an operation without a rule.

        Errors   UnsupportedOperation naming operation and layer
        """
        unknown = {node: (operation, layer) for node, operation, layer in self._unknown}
        self._unknown.clear()
        for node in nodes([tensor.grad_fn for tensor in tensors(output)]):
            name = plain_name(node)
            if name not in self.known:
                operation, layer = unknown.get(node, (name, ""))
                raise self.refuse(operation, layer=layer)

    def forget(self) -> None:
        """Release the graph: its nodes and this mode refer to each other."""
        self._unknown.clear()

    def _remember(self, call: Call, result: Any) -> None:
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            node = tensor.grad_fn if isinstance(tensor, Tensor) else None
            if node is not None and plain_name(node) not in self.known:
                self._unknown.append((node, call.name, self.layer()[0]))


class Call:
    """One call of an operation: its name in any spelling, its arguments with parameters detached."""

    def __init__(
        self, mode: Interception, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.mode, self.function, self.args = mode, function, args
        name = getattr(function, "__name__", "")
        is_dunder = name.startswith("__")
        self.name = _DUNDERS.get(name, name) if is_dunder else name.strip("_")
        self.in_place = bool(kwargs.get("inplace")) or (name.endswith("_") and not is_dunder)
        self.kwargs = kwargs

    def call_original(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    @property
    def depends(self) -> bool:
        """Whether an argument depends on the image."""
        return any(tensor.requires_grad for tensor in tensors((self.args, self.kwargs)))

    def out_of_place(self) -> Callable[..., Any]:
        """The operation out of place, as a function of its tensor arguments in their order."""
        kwargs = {key: value for key, value in self.kwargs.items() if key != "inplace"}
        function = self.function
        if getattr(function, "__name__", "") == f"{self.name}_":
            function = getattr(torch, self.name, None) or getattr(F, self.name)
        leaves, form = pytree.tree_flatten((self.args, kwargs))

        def run(*inputs: Tensor) -> Any:
            remaining = iter(inputs)
            filled = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(filled, form)
            return function(*args, **kwargs)

        return run

    @property
    def tensors(self) -> list[Tensor]:
        return tensors((self.args, self.kwargs))

    def bind_arguments(self, *names: str, **defaults: Any) -> tuple[Any, ...]:
        """The arguments in the order of `names`, positional or by keyword; missing ones from `defaults`, else None."""
        arguments = dict(zip(names, self.args, strict=False)) | self.kwargs
        return tuple(arguments.get(name, defaults.get(name)) for name in names)


def tensors(value: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def nodes(roots: Sequence[Any]) -> Iterator[Any]:
    """Every node of the autograd graph behind `roots`, once."""
    stack, seen = [*roots], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(parent for parent, _ in node.next_functions)


def plain_name(node: Any) -> str:
    """ "Relu" of "ReluBackward0"."""
    name = node.name().rpartition("::")[2]
    return name.rstrip("0123456789").removesuffix("_copy").replace("Backward", "").strip("_")


def _constants(value: Any) -> Any:
    """The same arguments with leaves detached: only what depends on the image takes a gradient."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad and value.is_leaf else value
    if type(value) in (tuple, list):
        return type(value)([_constants(item) for item in value])
    if type(value) is dict:
        return {key: _constants(item) for key, item in value.items()}
    return value


def why_not(model: nn.Module) -> str | None:
    """Why the model's operations cannot be seen, as far as its modules tell; else None."""
    model = unwrap(model)
    kind = frozen_graph(model) or next((k for m in model.modules() if (k := frozen_graph(m))), None)
    if kind is None:
        return None
    return (
        f"The model is {kind}, in whole or in part, so backward rules cannot see its operations. Give the original "
        f"nn.Module, or use saliency or integrated_gradients."
    )


def multi_head(call: Call) -> tuple[Tensor, Tensor | None]:
    """`F.multi_head_attention_forward` in single operations that the mode sees; the returned weights are constants.

    Errors   UnsupportedOperation for keys other than the tokens'
    """
    arguments = attention_ops.multi_head_arguments(call.args, call.kwargs)
    if name := attention_ops.extra_keys(arguments):
        raise call.mode.refuse(f"multi-head attention with {name}")

    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        weights = None
        if arguments["need_weights"]:
            weights = attention_ops.attention_weights(query.detach(), key.detach(), mask, is_causal)
        return F.scaled_dot_product_attention(query, key, value, mask, is_causal=is_causal), weights

    with call.mode:
        return attention_ops.multi_head_attention(attend, arguments)
