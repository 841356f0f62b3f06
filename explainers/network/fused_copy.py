"""A private copy of a network for many variants of one picture: batch norm folded into convolutions, channels last.

On two cores it answers a third faster than the network itself, in float32, and its gradients come half as fast again.
It is kept beside the model and forgotten with it; the user's modules and tensors are not touched. Every call compares
the copy's scores of the clean pictures with the network's own before it is used, so weights or code that changed in the
meantime are never explained by an old copy. With it is kept whether the machine runs it faster in bfloat16.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode

from explainers.hooks.calls import Calls
from explainers.hooks.locate import HookPoint
from explainers.hooks.records import map_tensors
from explainers.network.eval_view import view

DRIFT = 1e-4
"""Relative difference from the network's own scores above which the copy is not used."""

FASTER = 0.8
"""Share of float32's time below which bfloat16 counts as clearly faster."""

_Convolution = nn.Conv2d
_Norm = nn.BatchNorm2d


@dataclass(frozen=True)
class InferenceCopy:
    """The copy, and the names of modules whose outputs are not those of the network: folded ones."""

    network: nn.Module
    folded: frozenset[str]
    fingerprint: Any = field(repr=False)
    faster: dict[Any, bool] = field(default_factory=dict, repr=False)
    """Whether bfloat16 is clearly faster, by device and size of the pictures, once it was measured."""


_kept: weakref.WeakKeyDictionary[nn.Module, InferenceCopy] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def inference_copy(model: nn.Module, network: nn.Module, images: Tensor, scores: Tensor) -> InferenceCopy | None:
    """The copy that is kept beside `model`, made where there is none; None where the network is better run itself.

    `network` is the model as it runs, `scores` its output for `images`. There is no copy in float64, without a 2-d
    convolution, and where the copy's scores differ from the network's.
    """
    if images.dtype != torch.float32 or not any(type(m) is _Convolution for m in network.modules()):
        return None
    fingerprint = _fingerprint(network)
    with _lock:
        known = _kept.get(model)
    if known is not None and known.fingerprint == fingerprint and _agrees(known.network, images, scores):
        return known
    try:
        made = _made(network, images[:1], fingerprint)
    except Exception:  # code that reads its own modules' attributes may not run as a copy: then the network runs itself
        return None
    if not _agrees(made.network, images, scores):
        return None
    with _lock:
        _kept[model] = made
    return made


def faster_in_bf16(copy: InferenceCopy, images: Tensor) -> bool:
    """Whether this machine runs the copy clearly faster in bfloat16: measured at the first call, then remembered."""
    key = images.device, images.shape[1:]
    if key not in copy.faster:
        exact, coarse = seconds(copy.network, images)
        copy.faster[key] = coarse < FASTER * exact
    return copy.faster[key]


def seconds(network: nn.Module, images: Tensor) -> tuple[float, float]:
    """How long a few rows take in float32 and in bfloat16: the best of two forwards each, by turns, after one each."""
    rows = channels_last(images[:1].expand(4, -1, -1, -1))
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for turn in range(3):
        for dtype in best:
            began = time.perf_counter()
            with torch.no_grad(), torch.autocast(rows.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                network(rows).sum().item()  # waits for the device
            if turn:
                best[dtype] = min(best[dtype], time.perf_counter() - began)
    return best[torch.float32], best[torch.bfloat16]


def _fingerprint(network: nn.Module) -> Any:
    tensors = [*network.parameters(), *network.buffers()]
    return tuple((id(t), -1 if t.is_inference() else t._version) for t in tensors)


def _agrees(copy: nn.Module, images: Tensor, scores: Tensor) -> bool:
    try:
        with torch.no_grad():
            own = copy(channels_last(images))
    except Exception:
        return False
    if not isinstance(own, Tensor) or own.shape != scores.shape or not bool(own.isfinite().all()):
        return False
    spread = float((scores - scores.mean()).norm()) or 1.0
    return float((own - scores).norm()) <= DRIFT * spread


def channels_last(images: Tensor) -> Tensor:
    """A copy of the pictures in the memory order that convolutions are fastest in."""
    return images.clone(memory_format=torch.channels_last)


def _made(network: nn.Module, image: Tensor, fingerprint: Any) -> InferenceCopy:
    pairs, head = _seen(network, image)
    copy = view(network)
    modules = dict(copy.named_modules())
    for first, second in pairs:
        conv, norm = modules[first], modules[second]
        if isinstance(conv, _Convolution) and isinstance(norm, _Norm):
            _fold(conv, norm)
        norm.__class__ = nn.Identity  # the twin is ours; whoever refers to it now refers to an identity
    if head is not None:
        modules[head].__class__ = _PreciseLinear
    for module in copy.modules():
        own = {name: None if p is None else p.detach() for name, p in module._parameters.items()}
        if isinstance(module, _Convolution):
            own["weight"] = own["weight"].clone(memory_format=torch.channels_last)  # type: ignore[union-attr]
        module.__dict__["_parameters"] = own
    return InferenceCopy(copy, frozenset(name for pair in pairs for name in pair), fingerprint)


def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    mean, variance = norm.running_mean, norm.running_var
    if mean is None or variance is None:
        raise TypeError("A batch norm without running statistics cannot be folded.")
    with torch.no_grad():
        weight, bias = fuse_conv_bn_weights(conv.weight, conv.bias, mean, variance, norm.eps, norm.weight, norm.bias)
    conv.__dict__["_parameters"] = {"weight": weight, "bias": bias}


class _PreciseLinear(nn.Linear):
    """A last layer that stays in float32: rounded scores would hide the small differences that masks make."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def _seen(network: nn.Module, image: Tensor) -> tuple[list[tuple[str, str]], str | None]:
    """What one forward shows.

    Returns  (convolution, batch norm) where the second is the only one to read what the first gives; and the linear
             layer that ran last
    """
    names = {module: name for name, module in network.named_modules()}
    watch = _Uses()
    with torch.no_grad(), ExitStack() as stack:
        calls = Calls(network, stack)
        for module, name in names.items():
            if type(module) in (_Convolution, _Norm, nn.Linear):
                calls.before(stack, HookPoint(name, module), watch.before(module))
                calls.after(stack, HookPoint(name, module), watch.after(module))
        with watch:
            network(image.clone())
    pairs = [(names[a], names[b]) for a, b in watch.pairs() if _plain(a) and _plain(b)]
    return pairs, None if watch.head is None else names[watch.head]


def _plain(module: nn.Module) -> bool:
    """No hook of the user's reads what goes in or out, and nothing is missing."""
    hooked = any(module.__dict__[name] for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"))
    return not hooked and getattr(module, "running_mean", True) is not None


_LOOKS = ("__get__", "dim", "size", "numel", "is_floating_point", "stride", "is_contiguous")
"""Functions that read a shape or a flag of a tensor, and not its values."""


class _Uses(TorchFunctionMode):
    """Follows one forward: which convolution's output went into which batch norm, and who else read it."""

    def __init__(self) -> None:
        super().__init__()
        self.head: nn.Module | None = None
        self._made: dict[int, tuple[nn.Module, Tensor]] = {}
        self._uses: dict[int, int] = {}
        self._read: dict[nn.Module, list[int]] = {}
        self._calls: dict[nn.Module, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in _LOOKS:
            map_tensors((args, kwargs), self._count)
        return func(*args, **(kwargs or {}))

    def _count(self, tensor: Tensor) -> None:
        if id(tensor) in self._made:
            self._uses[id(tensor)] = self._uses.get(id(tensor), 0) + 1

    def before(self, module: nn.Module) -> Callable[[int, tuple[Any, ...]], None]:
        def act(k: int, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor):
                self._read.setdefault(module, []).append(id(given[0]))

        return act

    def after(self, module: nn.Module) -> Callable[[int, Any], None]:
        def act(k: int, output: Any) -> None:
            self._calls[module] = self._calls.get(module, 0) + 1
            if type(module) is nn.Linear:
                self.head = module
            elif type(module) is _Convolution:
                self._made[id(output)] = module, output  # the tensor is kept, so that no other takes its id

        return act

    def pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        found: list[tuple[nn.Module, nn.Module]] = []
        for norm, read in self._read.items():
            if type(norm) is not _Norm or len(read) != 1 or read[0] not in self._made:
                continue
            conv = self._made[read[0]][0]
            alone = self._uses.get(read[0], 0) == 1 and self._calls.get(conv) == 1
            if alone and norm.num_features == conv.out_channels:
                found.append((conv, norm))
        return found
