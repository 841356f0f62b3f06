"""Record every attention of a forward pass: its weights, and the operations applied to them before the values.

While a pass runs, a thread-local function mode replaces the fused functions with single operations (operations.py)
and records every softmax over the last dimension. The result is an attention if it is multiplied by values without
modification; any other softmax is ignored.

Attentions without a softmax call (written with exp and sum, linear attention, custom kernels) cannot be recorded. They
are detected by their module: its name or class says attention, or another module of its class contained a recorded
attention, but nothing was recorded in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from explainers.call.attention import operations as attention_ops
from explainers.hooks.calls import Calls, inner_points
from explainers.hooks.locate import HookPoint
from explainers.layers.layer import is_named_attention

_SOFTMAX = ("softmax", "special_softmax", "_softmax")
_MOVES = ("permute", "transpose", "swapaxes", "movedim", "mT", "__get__")
_PRODUCT = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "mm", "einsum")


@dataclass(eq=False)
class Attention:
    """One attention: its module, and its weights after the softmax, [N, heads, T, T] or [N heads, T, T]."""

    path: str
    weights: Tensor
    used: bool = False
    """Whether the weights were multiplied by values."""
    changed: str = ""
    """The operation that modified the weights before that product, or empty."""
    among: bool | None = None
    """Whether an enclosing module takes this number of tokens per image; None if no enclosing module takes tokens."""
    operands: tuple[Tensor, Tensor] | None = None
    """Queries and keys, [N, heads, T, d], if they were requested and a fused function received them."""
    owner: type[nn.Module] | None = None
    """The class of the innermost enclosing module that is not a torch.nn container or operation."""


@dataclass(eq=False)
class _Frame:
    """A running module; `inside` are the attentions that ran inside it."""

    name: str
    module: nn.Module
    inputs: list[Tensor]
    inside: list[Attention] = field(default_factory=list)

    @property
    def is_attention(self) -> bool:
        return is_named_attention(self.name, type(self.module).__name__)

    @property
    def is_own(self) -> bool:
        """Whether the class is defined by the network, not a container or operation of torch.nn."""
        return not type(self.module).__module__.startswith("torch.nn.") or isinstance(
            self.module, nn.MultiheadAttention
        )


@contextmanager
def watch_attention(
    network: nn.Module, image_count: int, *, leaves: bool = True, operands: bool = False
) -> Iterator[AttentionWatch]:
    """Record the attentions of this thread's forward pass of `image_count` images; the result is complete after the
    block.

    With `leaves`, the first weights become the leaf of the autograd graph; all later ones are nodes of it.
    With `operands`, queries and keys are recorded too.
    """
    watch = AttentionWatch(image_count, leaves, operands)
    with ExitStack() as stack:
        calls = Calls(network, stack, watch.start)
        for point in inner_points(network):
            calls.before(stack, point, partial(watch.enter, point))
            calls.after(stack, point, watch.leave)
        stack.enter_context(watch)
        yield watch
    watch.finish()


class AttentionWatch(TorchFunctionMode):
    """Replace the calling thread's attention functions, and track weights up to their product with the values.

    `attentions` are those of the forward pass in order, `unseen` modules whose expected attention was not recorded.
    """

    def __init__(self, image_count: int, leaves: bool, operands: bool) -> None:
        super().__init__()
        self.image_count, self.leaves, self.operands = image_count, leaves, operands
        self.attentions: list[Attention] = []
        self.unseen: list[str] = []
        self.running: list[_Frame] = []
        self.ended: list[_Frame] = []
        self.followed: dict[int, tuple[Tensor, Attention]] = {}

    # The modules

    def start(self) -> None:
        self.attentions.clear()
        self.running.clear()
        self.ended.clear()
        self.followed.clear()

    def enter(self, point: HookPoint, k: int, args: tuple[Any, ...]) -> None:
        self.running.append(_Frame(point.name, point.module, [each for each in args if isinstance(each, Tensor)]))

    def leave(self, k: int, output: Any) -> None:
        self.ended.append(self.running.pop())

    def finish(self) -> None:
        """Keep only used attentions, and find the modules whose expected attention is missing."""
        self.followed.clear()
        self.attentions[:] = [attention for attention in self.attentions if attention.used]
        full = [frame for frame in self.ended if any(each.used for each in frame.inside)]
        named = [f"{frame.name}." for frame in full if frame.is_attention]
        owners = {attention.owner for attention in self.attentions}
        for frame in self.ended:
            expected = frame.is_own and (frame.is_attention or type(frame.module) in owners)
            if expected and frame not in full and not frame.name.startswith(tuple(named)):
                self.unseen.append(frame.name)
        self.ended.clear()  # with the inputs of all modules

    # The operations

    def keep(self, weights: Tensor) -> Tensor:
        """Record weights and return those that the network should use."""
        if self.leaves and not weights.requires_grad:
            weights = weights.detach().requires_grad_()
            torch.set_grad_enabled(True)
        owner = next((type(frame.module) for frame in reversed(self.running) if frame.is_own), None)
        name = self.running[-1].name if self.running else ""
        attention = Attention(name, weights, among=self._among(weights.shape[-1]), owner=owner)
        self.attentions.append(attention)
        for frame in self.running:
            frame.inside.append(attention)
        return weights

    def keep_product(self, weights: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Record weights that are multiplied by values without modification."""
        weights = self.keep(weights)
        self.attentions[-1].used = True
        if self.operands:
            self.attentions[-1].operands = query.detach(), key.detach()
        return weights

    def _among(self, count: int) -> bool | None:
        """Return whether an input of a running module has `count` tokens per image: [N, T, C], [T, N, C] or a grid."""
        inputs = [each for frame in self.running for each in frame.inputs if each.ndim in (3, 4)]
        if not inputs:
            return None
        return any(count in _token_counts(tuple(each.shape), self.image_count) for each in inputs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return attention_ops.scaled_dot_product_attention(*args, **kwargs, keep=self.keep_product)
        if name == "multi_head_attention_forward":
            arguments = attention_ops.multi_head_arguments(args, kwargs)
            if attention_ops.extra_keys(arguments) is None:
                return attention_ops.multi_head_attention(self._attend, arguments)
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        if name in _SOFTMAX and _is_over_the_last(output, args[1] if len(args) > 1 else kwargs.get("dim")):
            # The network gets a clone, because later operations may overwrite it in place.
            output = self.keep(output).clone()
            self.followed[id(output)] = output, self.attentions[-1]
        elif self.followed:
            for tensor in _operands(args, kwargs):
                if id(tensor) in self.followed:
                    self._follow(name, tensor, args, output)
        return output

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        weights = self.keep_product(attention_ops.attention_weights(query, key, mask, is_causal), query, key)
        return weights @ value, weights

    def _follow(self, name: str, operand: Tensor, args: Any, output: Any) -> None:
        """Track an operation on recorded weights, or on a copy of them."""
        attention = self.followed[id(operand)][1]
        if name in _PRODUCT:
            attention.used = True
            if not attention.changed and not _is_product(name, operand, args, attention.weights):
                attention.changed = name
            del self.followed[id(operand)]
        elif isinstance(output, Tensor) and output.numel() >= operand.numel() and output is not operand:
            if name == "mul" and output.numel() > operand.numel():
                # Weights times values for each pair of tokens, summed later.
                attention.used = True
            elif not attention.changed and name not in _MOVES and _is_in_order(output, attention.weights) is None:
                attention.changed = name
            self.followed[id(output)] = output, attention


def _operands(args: Any, kwargs: Any) -> Iterator[Tensor]:
    for each in (*args, *kwargs.values()):
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from (one for one in each if isinstance(one, Tensor))


def _is_over_the_last(output: Any, dim: Any) -> bool:
    return isinstance(output, Tensor) and output.ndim >= 3 and dim in (-1, output.ndim - 1)


def _token_counts(shape: tuple[int, ...], image_count: int) -> set[int]:
    """Return the possible numbers of tokens per image in a tensor of this shape."""
    if len(shape) == 4:
        return {shape[2] * shape[3], shape[1] * shape[2]} if shape[0] == image_count else set()
    return {b for a, b in (shape[:2], shape[1::-1]) if a == image_count}


def _is_in_order(tensor: Tensor, weights: Tensor) -> bool | None:
    """Return whether a tensor has the weights in order, and not with the last two dimensions transposed; else None."""
    if tensor.numel() != weights.numel():
        return None
    plain = tensor.detach().to(weights.dtype).reshape(-1)
    if torch.equal(plain, weights.detach().reshape(-1)):
        return True
    return False if torch.equal(plain, weights.detach().mT.reshape(-1)) else None


def _is_product(name: str, operand: Tensor, args: Any, weights: Tensor) -> bool:
    """Return whether the product sums the weights over their keys, the last dimension."""
    if name == "einsum" and isinstance(args[0], str):
        return _sums_over_keys(args[0], operand, args)
    factors = [each for each in args if isinstance(each, Tensor)]
    left = bool(factors) and (factors[-2] if len(factors) > 1 else factors[0]) is operand
    return _is_in_order(operand, weights) is left


def _sums_over_keys(equation: str, operand: Tensor, args: Any) -> bool:
    inputs, _, output = equation.replace(" ", "").replace("...", "").partition("->")
    operands = list(args[1]) if isinstance(args[1], (list, tuple)) else list(args[1:])
    names = inputs.split(",")[next(i for i, each in enumerate(operands) if each is operand)]
    return len(names) >= 2 and names[-1] not in output and names[-2] in output
