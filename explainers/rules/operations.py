"""Interception of every torch operation in one forward pass: module or function, in-place or not, shared or not.

A thread-local function mode assigns the backward rules of a method to operations. The user's modules are not modified,
and other threads are not affected. Operations without a rule run unchanged. After the forward pass, the autograd graph
of the output is checked, and an operation in it that the method does not support raises an error. Operations outside
that graph, such as the queries of attention with constant weights, are always allowed. Custom subclasses of
`torch.autograd.Function` are detected by type and always raise an error, because their backward is not a rule.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from explainers.call.batch_norm import guard_batch_norms
from explainers.errors import UnsupportedOperation
from explainers.hooks.locate import frozen_graph, unwrap
from explainers.nested import TRANSFORM, is_transformed, list_tensors

T = TypeVar("T")
VJP = Callable[[Tensor], Sequence[Tensor | None]]

STRUCTURE = frozenset(
    "Alias AsStrided Cat ChannelShuffle Clone ConstantPadNd CopySlices Copys Diagonal Expand Flip Gather Im2Col Index "
    "IndexCopy IndexPut IndexSelect MaskedFill MaskedScatter MaskedSelect NativeChannelShuffle PixelShuffle "
    "PixelUnshuffle Permute ReflectionPad1D ReflectionPad2D ReflectionPad3D Repeat RepeatInterleave ReplicationPad1D "
    "ReplicationPad2D ReplicationPad3D Reshape ReshapeAlias Roll Rot90 Scatter Select SelectScatter Slice SliceScatter "
    "Split SplitWithSizes Squeeze Stack T Take ToCopy Transpose Tril Triu Unbind Unfold UnsafeSplit "
    "UnsafeSplitWithSizes UnsafeView Unsqueeze UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D View Where "
    "AccumulateGrad Custom".split()
)
"""Graph nodes that move or copy values: under every rule, a copy has the relevance of its original."""

_CALL = nn.Module._call_impl.__code__
_DUNDERS = {"__rsub__": "rsub", "__rdiv__": "rdiv", "__rtruediv__": "rdiv", "__pow__": "pow", "__rpow__": "rpow"}
_DUNDERS |= {"__getitem__": "getitem"}
_ALIASES = {"multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub", "negative": "neg"}
_ALIASES |= {"absolute": "abs", "special_expit": "sigmoid", "special_softmax": "softmax", "linalg_matmul": "matmul"}
_ALIASES |= {"special_log_softmax": "log_softmax", "special_logsumexp": "logsumexp", "logsigmoid": "log_sigmoid"}
_ALIASES |= {"concat": "cat", "concatenate": "cat", "linalg_vector_norm": "norm", "linalg_norm": "norm"}
_NO_VIEWS = frozenset("copy fill zero requires_grad detach set index_put index_copy masked_scatter setitem".split())
"""In-place operations that move values, possibly into a view."""


class CustomBackward(torch.autograd.Function):
    """An operation with a custom backward `vjp`, from the output gradient to the input gradients."""

    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Tensor], vjp: VJP, *inputs: Tensor) -> Tensor:
        ctx.vjp, ctx.mark = vjp, ""
        return compute(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, *ctx.vjp(gradients[0])


def with_custom_backward(compute: Callable[..., Tensor], vjp: VJP, *inputs: Tensor) -> Tensor:
    """Return `compute(*inputs)` with `vjp` as its backward."""
    return CustomBackward.apply(compute, vjp, *inputs)


def vjp(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return f(x), detached, and a function from the gradient at the output to that at x, which may be called again.

    This replaces `torch.func.vjp`, whose first call imports torch._dynamo, which takes seconds.
    """
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        y = function(leaf)
    guard_batch_norms(y)
    return y.detach(), lambda gradient: torch.autograd.grad(y, leaf, gradient, retain_graph=True)[0]


class Outputs(Generic[T]):
    """What is known about tensors of one forward pass, until they are modified or freed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, T]] = {}

    def __setitem__(self, tensor: Tensor, value: T) -> None:
        self._known[id(tensor)] = weakref.ref(tensor), tensor._version, value

    def get(self, tensor: Any) -> T | None:
        """Return what is known about a tensor, or None."""
        reference, version, value = self._known.get(id(tensor), (None, 0, None))
        is_same = isinstance(tensor, Tensor) and reference is not None and reference() is tensor
        return value if is_same and tensor._version == version else None

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


def mark(tensor: Tensor, word: str) -> Tensor:
    """Label an output of `with_custom_backward` for the operations that use it; `get_mark` reads the label."""
    if is_custom(tensor.grad_fn):
        tensor.grad_fn.mark = word  # type: ignore[union-attr]
    return tensor


def get_mark(tensor: Tensor) -> str:
    """Return the label of the operation that created the tensor, reshaped or not, or an empty string."""
    node = tensor.grad_fn
    while node is not None:
        if is_custom(node):
            return str(node.mark)  # type: ignore[attr-defined]
        name, parents = node_name(node), [parent for parent, _ in node.next_functions]
        if name not in STRUCTURE or (len(parents) != 1 and name != "Copys"):
            break
        node = parents[-1]  # in place, the result was copied over the previous values
    return ""


class Interception(TorchFunctionMode):
    """Runs a network with `rules`: name of an operation -> function(call) -> output.

    `method` is the method's name in errors.

    Errors   UnsupportedOperation for networks that hide their operations
    """

    known: frozenset[str] = STRUCTURE
    """Graph nodes that keep their own backward."""
    factors: Mapping[str, tuple[tuple[int, ...], int]] = {}
    """How many of the inputs at the given positions may depend on the image, for some of the known nodes.

    A product is linear in one of its factors, a quotient in its numerator.
    """

    def __init__(self, network: nn.Module, method: str) -> None:
        super().__init__()
        if reason := why_not(network) or global_hooks():
            raise UnsupportedOperation(reason)
        self.method = method
        self.rules: dict[str, Callable[[Call], Any]] = {}
        self._names = {id(module): name for name, module in reversed([*network.named_modules()])}
        self._unknown: dict[Any, tuple[str, str]] = {}
        self._functions: dict[Any, str] = {}
        self._is_transformed = False

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function in (torch.autograd.grad, Tensor.backward):
            raise self.refuse("a gradient of its own", "which the rules of this call would change")
        call = Call(self, function, *_constants((tuple(args), dict(kwargs or {}))))
        self._note_functions(call)
        self._is_transformed = self._is_transformed or any(map(is_transformed, call.tensors))
        if call.name == "register_hook":
            # User hooks on tensors expect gradients, which these values are not.
            return RemovableHandle(OrderedDict())
        rule = self.rules.get(call.name)
        if rule is None:
            return self.run_without_rule(call)
        result = rule(call)
        if not call.in_place or result is call.args[0]:
            return result
        # In place, as the user's code expects, so that all references to the tensor see the change.
        return call.args[0].copy_(result)

    def run_without_rule(self, call: Call) -> Any:
        """Run the operation unchanged; `check` raises an error if the explained score depends on it."""
        if not torch.is_grad_enabled():
            return call.call_original()
        starts = {tensor.grad_fn for tensor in call.tensors}  # an in-place call changes that of its input
        if call.in_place and call.name not in _NO_VIEWS and call.writes_to_view:
            # In place, the graph would contain a copy into the base instead of the operation itself.
            result = call.out_of_place()(*call.tensors)
            self._remember(call, result, starts)
            return call.args[0].copy_(result)
        result = call.call_original()
        self._remember(call, result, starts)
        return result

    def layer(self) -> tuple[str, str]:
        """Return the dotted name and class of the innermost running module; empty outside of modules."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _CALL:
                module = frame.f_locals["self"]
                return self._names.get(id(module), ""), type(module).__name__
            frame = frame.f_back
        return "", ""

    def refuse(self, operation: str, why: str = "", layer: str | None = None) -> UnsupportedOperation:
        """Return the error for an unsupported operation, by default in the running layer."""
        name = self.layer()[0] if layer is None else layer
        where = f" in layer {name!r}" if name else ""
        return UnsupportedOperation(
            f"The network uses {operation}{where}, {why or f'for which {self.method} has no rule'}. Use saliency, "
            f"smooth_grad or integrated_gradients, which do not need rules."
        )

    def check(self, output: Any) -> None:
        """Raise an error if the graph of an output contains an operation without a rule.

        Errors   UnsupportedOperation naming operation and layer
        """
        unknown, self._unknown = self._unknown, {}
        for node in nodes([tensor.grad_fn for tensor in tensors(output)]):
            if is_user_function(node):
                code = getattr(inspect.unwrap(node._forward_cls.forward), "__code__", None)
                layer = self._functions.get(code, self._functions.get(type(node), ""))
                raise self.refuse(*describe_user_function(node), layer=layer)
            if not self._allows(node):
                operation, layer = unknown.get(node, (node_name(node), ""))
                hidden = node not in unknown and self._is_transformed
                raise self.refuse(TRANSFORM if hidden else operation, layer=layer)

    def release(self) -> None:
        """Release the graph, whose nodes and this mode refer to each other."""
        self._unknown.clear()
        self._functions.clear()

    def _allows(self, node: Any) -> bool:
        name = node_name(node)
        if name not in self.known:
            return False
        places, most = self.factors.get(name, ((), 0))
        parents = node.next_functions
        return sum(parents[at][0] is not None for at in places if at < len(parents)) <= most

    def _remember(self, call: Call, result: Any, starts: set[Any]) -> None:
        """Record operation and layer of each unsupported node between `starts` and the result of a call."""
        for node in nodes([tensor.grad_fn for tensor in tensors(result)], starts):
            if node not in self._unknown and not self._allows(node):
                self._unknown[node] = call.name, self.layer()[0]

    def _note_functions(self, call: Call) -> None:
        """Record the layer of a custom Function by the operations inside it, or else by the first one that uses it."""
        for value in call.args:
            node = value.grad_fn if isinstance(value, Tensor) else None
            if is_user_function(node):
                self._functions.setdefault(type(node), self.layer()[0])
        frame: FrameType | None = None if torch.is_grad_enabled() else sys._getframe(2)
        while frame is not None and frame.f_code is not _CALL:
            if frame.f_code not in self._functions:
                self._functions[frame.f_code] = self.layer()[0]
            frame = frame.f_back


class Call:
    """One call of an operation, with its canonical name and its arguments with parameters detached."""

    def __init__(
        self, mode: Interception, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.mode, self.function, self.args = mode, function, args
        name = getattr(function, "__name__", "")
        is_dunder = name.startswith("__")
        base_name = _DUNDERS.get(name, name) if is_dunder else name.strip("_")
        self.name = _ALIASES.get(base_name, base_name)
        self.in_place = bool(kwargs.get("inplace")) or (name.endswith("_") and not is_dunder)
        self.kwargs = kwargs

    def call_original(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    @property
    def depends_on_image(self) -> bool:
        """Whether any argument depends on the image."""
        return any(tensor.requires_grad for tensor in tensors((self.args, self.kwargs)))

    @property
    def writes_to_view(self) -> bool:
        """Whether this in-place operation writes to a part of another tensor and has an out-of-place version."""
        x = self.args[0] if self.args else None
        return isinstance(x, Tensor) and x._is_view() and self.depends_on_image and hasattr(torch, self.name)

    def out_of_place(self) -> Callable[..., Any]:
        """Return the out-of-place version of the operation, as a function of its tensor arguments in order."""
        kwargs = {key: value for key, value in self.kwargs.items() if key != "inplace"}
        function, name = self.function, getattr(self.function, "__name__", "")
        if name.endswith("_") and not name.startswith("__"):
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
        """Return positional and keyword arguments in the order of `names`, missing ones from `defaults` or None."""
        arguments = dict(zip(names, self.args, strict=False)) | self.kwargs
        return tuple(arguments.get(name, defaults.get(name)) for name in names)


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value, as `list_tensors`."""
    if isinstance(value, Tensor):
        return [value]
    if type(value) in (tuple, list):  # ten times as fast as torch's own search, for each operation of the network
        return [tensor for each in value for tensor in tensors(each)]
    if type(value) is dict:
        return [tensor for each in value.values() for tensor in tensors(each)]
    if value is None or type(value) in (bool, int, float, str, torch.dtype, torch.device):
        return []
    return list_tensors(value)


def nodes(roots: Sequence[Any], ends: Collection[Any] = ()) -> Iterator[Any]:
    """Iterate once over every node of the autograd graph from `roots` back to `ends`, which are excluded."""
    stack, seen = [*roots], {None, *ends}
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(parent for parent, _ in node.next_functions)


def node_name(node: Any) -> str:
    """Return the plain name of a node: "Relu" for "ReluBackward0", "Custom" with a rule, "" for custom Functions."""
    if isinstance(node, BackwardCFunction):
        return "Custom" if is_custom(node) else ""
    name = node.name().rpartition("::")[2]
    return name.rstrip("0123456789").removesuffix("_copy").replace("Backward", "").strip("_")


def is_custom(node: Any) -> bool:
    """Check whether the node was created by `with_custom_backward`, by its type, since names may be equal."""
    return getattr(node, "_forward_cls", None) is CustomBackward


def is_user_function(node: Any) -> bool:
    """Check whether the node is a Python Function that was not created by `with_custom_backward`."""
    return isinstance(node, BackwardCFunction) and not is_custom(node)


def describe_user_function(node: Any) -> tuple[str, str]:
    """Return the description of a custom Function, and the reason why it is not supported."""
    return (
        f"the torch.autograd.Function {node._forward_cls.__name__!r}",
        "which has a custom backward that follows no rule",
    )


def global_hooks() -> str | None:
    """Return the reason why a global backward hook prevents the use of rules, or None without such a hook."""
    modules = torch.nn.modules.module
    if not (modules._global_backward_hooks or modules._global_backward_pre_hooks):
        return None
    return (
        "A global backward hook is registered for all modules (torch.nn.modules.module.register_module_…). It would "
        "read or change the values that the rules propagate. Remove it by calling remove() on its handle; hooks on "
        "single modules can stay."
    )


def _constants(value: Any) -> Any:
    """Detach leaves in the arguments, so that only values that depend on the image require gradients."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad and value.is_leaf else value
    if type(value) in (tuple, list):
        return type(value)([_constants(item) for item in value])
    if type(value) is dict:
        return {key: _constants(item) for key, item in value.items()}
    return value


def why_not(model: nn.Module) -> str | None:
    """Return the reason why the model's operations cannot be intercepted, judging by its modules, or None."""
    model = unwrap(model)
    kind = frozen_graph(model) or next((k for m in model.modules() if (k := frozen_graph(m))), None)
    if kind is None:
        return None
    return (
        f"The model is {kind}, in whole or in part, so backward rules cannot intercept its operations. Give the "
        f"original nn.Module, or use saliency or integrated_gradients."
    )
