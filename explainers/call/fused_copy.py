"""A private copy of a network for many variants of one image: batch norm fused into convolutions, channels last.

On two CPU cores, scores are computed 1.3 times and gradients 1.5 times as fast in float32. The copy is kept with the
snapshot of the network as long as the sums of all its tensors are the same (optimizers that write to `.data`
do not change their version counters); the user's modules and tensors are not modified. Every call first compares the
copy's scores of the unchanged images with the network's.
It is compiled if requested (`explain(..., compile=True)`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from explainers.call.profile import profile
from explainers.call.view import EvalView
from explainers.errors import BadOption, shorten
from explainers.hooks.calls import active_hooks
from explainers.hooks.shallow_copy import shallow_copy
from explainers.layers.profile import Profile
from explainers.nested import map_tensors

DRIFT = 1e-4
"""Relative difference from the network's scores above which the copy is not used."""


_requested: ContextVar[bool] = ContextVar("compile", default=False)


@contextmanager
def compiling() -> Iterator[None]:
    """Run the variants of calls inside the block in a compiled network."""
    token = _requested.set(True)
    try:
        yield
    finally:
        _requested.reset(token)


def is_requested() -> bool:
    """Return whether the surrounding call requests a compiled network."""
    return _requested.get()


class CompiledNetwork:
    """A network compiled by `torch.compile` for one number of rows, to which smaller batches are padded.

    torch compiles again for another number of rows, which takes longer than the padding. `checked` is whether the
    scores were compared with those of the network.
    """

    def __init__(self, network: nn.Module) -> None:
        self.run = torch.compile(network, dynamic=False)
        self.rows = 0
        self.checked = False

    def __call__(self, batch: Tensor) -> Any:
        """Return the output of the network for a batch.

        Errors   BadOption if the network cannot be compiled
        """
        from torch._dynamo.exc import TorchDynamoException  # the compiler takes seconds to start

        count = len(batch)
        self.rows = max(self.rows, count)
        if count < self.rows:
            padding = batch[-1:].expand(self.rows - count, *batch.shape[1:])
            batch = torch.cat([batch, padding]).contiguous(memory_format=torch.channels_last)
        try:
            output = self.run(batch)
        except TorchDynamoException as error:
            reason = shorten(str(error).strip().partition("\n")[0])
            raise BadOption(f"torch cannot compile the network: {reason}. Omit compile=True.") from error
        return map_tensors(output, lambda tensor: tensor[:count])


@dataclass(frozen=True)
class FusedCopy:
    """The copy, and the names of the fused modules, whose outputs differ from the network's."""

    network: nn.Module
    fused: frozenset[str]
    sums: list[Any] = field(repr=False)

    @cached_property
    def compiled(self) -> CompiledNetwork:
        """The copy, compiled by torch at its first batch."""
        return CompiledNetwork(self.network)


def fused_copy(view: EvalView, images: Tensor, scores: Tensor) -> FusedCopy | None:
    """Return the copy of the network, creating it if needed, or None if the network itself must run.

    `scores` is the network's output for `images`. There is no copy in float64, for networks without a 2-d convolution,
    for videos, or if the copy's scores differ from the network's.
    """
    is_covered = images.dtype == torch.float32 and images.ndim == 4
    if not is_covered or nn.Conv2d not in view.classes:
        return None
    known = {} if view.snapshot is None else view.snapshot.known
    try:
        tensors = [*view.network.parameters(), *view.network.buffers()]
        for module in view.network.modules():
            tensors += filter(torch.is_tensor, vars(module).values())
        with torch.no_grad():
            sums = list(map(Tensor.item, map(torch.sum, tensors)))
        copy: FusedCopy | None = known.get("fused copy")
        if copy is not None and copy.sums == sums and matches(copy.network, images, scores):
            return copy
        copy = _create_copy(view.network, profile(view, images), sums)
    except Exception:  # code that reads attributes of its modules may fail in a copy; then the network itself runs
        return None
    if not matches(copy.network, images, scores):
        return None
    known["fused copy"] = copy
    return copy


def computes_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies matrices in bfloat16 faster than in float32. It is not timed, so that equal
    calls choose the same precision.
    """
    if device.type == "cpu":
        return any(getattr(torch.cpu, f"_is_{name}_supported", bool)() for name in ("amx_tile", "avx512_bf16"))
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def matches(copy: Callable[[Tensor], Any], images: Tensor, scores: Tensor) -> bool:
    """Return whether the copy has the scores of the network, up to `DRIFT`."""
    try:
        with torch.no_grad():
            output = copy(channels_last(images))
    except Exception:
        return False
    if not isinstance(output, Tensor) or output.shape != scores.shape or not bool(output.isfinite().all()):
        return False
    spread = float((scores - scores.mean()).norm()) or float(scores.norm()) or 1.0  # there may be only one score
    return float((output - scores).norm()) <= DRIFT * spread


def channels_last(images: Tensor) -> Tensor:
    """Copy the images to channels-last memory format, in which convolutions are fastest."""
    return images.clone(memory_format=torch.channels_last)


def _create_copy(network: nn.Module, layers: Profile, sums: list[Any]) -> FusedCopy:
    pairs, head = _find_fusible(network, layers)
    copy = shallow_copy(network)
    modules = dict(copy.named_modules())
    for first, second in pairs:
        conv, norm = modules[first], modules[second]
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            _fuse(conv, norm)
        norm.__class__ = nn.Identity  # the copy is private, so every reference to the norm may become an identity
    if head is not None:
        modules[head].__class__ = _Float32Linear
    for module in copy.modules():
        if isinstance(module, torch.jit.ScriptModule):  # compiled code reads its own tables
            continue
        parameters = {name: None if p is None else p.detach() for name, p in module._parameters.items()}
        if isinstance(module, nn.Conv2d):
            parameters["weight"] = parameters["weight"].clone(memory_format=torch.channels_last)  # type: ignore[union-attr]
        module.__dict__["_parameters"] = parameters
    return FusedCopy(copy, frozenset(name for pair in pairs for name in pair), sums)


def _fuse(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise TypeError("A batch norm without running statistics cannot be fused.")
    with torch.no_grad():
        weight, bias = fuse_conv_bn_weights(conv.weight, conv.bias, mean, variance, norm.eps, norm.weight, norm.bias)
    conv.__dict__["_parameters"] = {"weight": weight, "bias": bias}


class _Float32Linear(nn.Linear):
    """A last layer in float32, since bfloat16 rounding would hide small score differences between masks."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def _find_fusible(network: nn.Module, layers: Profile) -> tuple[list[tuple[str, str]], str | None]:
    """Find fusible layers of a profiled network.

    Returns  the pairs (convolution, batch norm) in which only the norm reads the convolution's output, and the linear
             layer that ran last
    """
    modules, graph = dict(network.named_modules()), layers.forward.graph
    readers = Counter(edge.node for edges in graph.edges for edge in edges)
    convolutions: dict[int, str] = {}
    pairs, head = [], None
    for layer, node in zip(layers, layers.forward.nodes, strict=True):
        module = modules.get(layer.name)  # None for one call of several
        if type(module) is nn.Linear:
            head = layer.name
        elif node is not None and type(module) is nn.Conv2d and _is_plain(module):
            convolutions[node] = layer.name
        elif node is not None and type(module) is nn.BatchNorm2d and _is_plain(module):
            sources = [edge.node for edge in graph.edges[node]]
            name = convolutions.get(sources[0]) if len(sources) == 1 and readers[sources[0]] == 1 else None
            if name is not None and modules[name].out_channels == module.num_features:
                pairs.append((name, layer.name))
    return pairs, head


def _is_plain(module: nn.Module) -> bool:
    """Return whether the module has no user hooks and, if it is a norm, has running statistics."""
    tables = (module.__dict__[name] for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"))
    hooked = any(table and active_hooks(table) for table in tables)
    return not hooked and getattr(module, "running_mean", True) is not None
