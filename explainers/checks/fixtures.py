"""Fixtures of `check_explainer`: tiny networks, snapshots of all state, and faults injected into a forward pass."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from explainers.hooks.edit import edit_gradients, edit_outputs


class Pause(nn.Module):
    """Identity that can sleep, so that threads interleave although the network is small."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SimpleNamespace(seconds=0.0)

    def forward(self, x: Tensor) -> Tensor:
        if self.clock.seconds:
            time.sleep(self.clock.seconds)
        return x

    def __deepcopy__(self, memo: dict[int, Any]) -> Pause:
        return Pause()


class Tiny(nn.Module):
    """A small residual network with features that break many methods: in-place and reused ReLU, batch norm, dropout."""

    def __init__(self, channels: int = 3, classes: int = 5, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.pause = Pause()
        self.pool = nn.MaxPool2d(2)
        self.body = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(width)
        self.stage = nn.Sequential(nn.Conv2d(width, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.pause(self.relu(self.norm(self.stem(x)))))
        y = self.norm2(self.body(x))
        y += x
        x = self.stage(self.relu(y))
        scores: Tensor = self.head(self.drop(x.mean((2, 3))))
        return scores


class TinyTransformer(nn.Module):
    """A transformer with two attention blocks over patches and a class token, for methods that need attention."""

    def __init__(self, channels: int = 3, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 4, 4)
        self.pause = Pause()
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pause(self.patches(x)).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for norm, attention in zip(self.norms, self.attentions, strict=False):
            y = norm(x)
            x = x + attention(y, y, y, need_weights=False)[0]
        scores: Tensor = self.head(self.drop(self.norms[2](x)[:, 0]))
        return scores


@contextmanager
def _fixed_weights() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        yield


@_fixed_weights()
def tiny(channels: int = 3) -> Tiny:
    """Return the network in eval mode with fixed weights and non-trivial batch-norm statistics.

    The global random generators do not change.
    """
    model = Tiny(channels).eval()
    for name, tensor in model.state_dict().items():
        if name.endswith(("running_mean", "norm.bias", "norm2.bias", "stage.1.bias")):
            tensor.copy_(0.2 * torch.randn(tensor.shape))
    _center_scores(model, model.head, channels)
    return model


@_fixed_weights()
def tiny_transformer(channels: int = 3) -> TinyTransformer:
    """Return the transformer in eval mode with fixed weights. The global random generators do not change."""
    model = TinyTransformer(channels).eval()
    for parameter in model.parameters():
        parameter.add_(0.4 * torch.randn(parameter.shape))
    _center_scores(model, model.head, channels)
    return model


def _center_scores(model: nn.Module, head: nn.Linear, channels: int) -> None:
    """Shift the bias so that a zero image scores 0 in every class. Different images then have different top classes."""
    head.weight.copy_(2 * torch.randn(head.weight.shape))
    head.bias.sub_(model(torch.zeros(1, channels, 20, 16))[0])


def snapshot(model: nn.Module, *tensors: Tensor) -> dict[str, Any]:
    """Return all state that a call must not change, by the name used in the report."""
    modules = list(model.modules())
    parameters = list(model.parameters())
    state: dict[str, Any] = {
        "hooks": hook_counts(model),
        "hooks on parameters": [
            (len(p._backward_hooks or ()), len(p._post_accumulate_grad_hooks or ())) for p in parameters
        ],
        "train or eval mode": [m.training for m in modules],
        "module attributes": [_attributes(m) for m in modules],
        "parameters and buffers": [_values(t) for t in (*parameters, *model.buffers())],
        "requires_grad": [p.requires_grad for p in parameters],
        ".grad": [None if p.grad is None else (id(p.grad), p.grad.detach().clone()) for p in parameters],
        "the images": [(t.requires_grad, t.grad is None, *_values(t)) for t in tensors],
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "default dtype": torch.get_default_dtype(),
        "torch's generator": torch.get_rng_state(),
        "Python's generator": random.getstate(),
        "function modes": len(torch.overrides._get_current_function_mode_stack()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "number of threads": torch.get_num_threads(),
    }
    if "numpy" in sys.modules:
        # Methods that use NumPy may sample from its generator. The check itself does not need NumPy.
        kind, keys, *place = sys.modules["numpy"].random.get_state()
        state["numpy's generator"] = (kind, keys.tobytes(), *place)
    return state


def hook_counts(model: nn.Module) -> list[int]:
    """Return the numbers of hooks of each kind on all modules, and of the global ones."""
    everywhere = vars(torch.nn.modules.module)
    own = [len(v) for m in model.modules() for k, v in vars(m).items() if "hook" in k and hasattr(v, "__len__")]
    return own + [len(v) for k, v in everywhere.items() if k.startswith("_global_") and hasattr(v, "__len__")]


def _values(tensor: Tensor) -> tuple[Tensor, int | None]:
    """Return a copy of the values, and how often they were written: inference tensors do not count it."""
    return tensor.detach().clone(), None if tensor.is_inference() else tensor._version


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return names and identities, which change if a tensor is added to a module or a submodule is replaced."""
    attributes: dict[str, Any] = {}
    for key, value in vars(module).items():
        if key in ("_modules", "_parameters", "_buffers"):
            attributes[key] = {name: id(part) for name, part in value.items()}
        elif "hook" not in key and key != "training":
            attributes[key] = value if isinstance(value, (bool, int, float, str)) else id(value)
    return attributes


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of the entries that differ."""
    return [name for name, value in before.items() if not _same(value, after.get(name))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        if not isinstance(b, Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return torch.equal(a, b) or bool((a.isclose(b, rtol=0, atol=0, equal_nan=True)).all())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


class Fault(RuntimeError):
    """Raised inside a model, only by `failing`."""


def steps(model: nn.Module, images: Tensor) -> list[str]:
    """Return the names of the leaf modules in the order in which a forward pass runs them."""
    seen: list[str] = []
    leaves = [name for name, module in model.named_modules() if name and not any(True for _ in module.children())]
    edits: dict[Any, Any] = {name: lambda _, name=name: seen.append(name) for name in leaves}
    with torch.no_grad(), edit_outputs(model, edits):
        model(images.clone())
    return list(dict.fromkeys(seen))


@contextmanager
def failing(
    model: nn.Module, step: str, error: BaseException, after: int = 0, backward: bool = False
) -> Iterator[SimpleNamespace]:
    """Raise `error` in this thread's calls of module `step`, starting after `after` calls; `.raised` says if it was.

    All later calls fail too, so that methods that retry do not hide the fault. `backward` raises it in the backward
    pass through the module.
    """
    state = SimpleNamespace(calls=0, raised=False)

    def fail(_: Any) -> None:
        state.calls += 1
        if state.calls > after:
            state.raised = True
            raise error

    with edit_gradients({(model, step): fail}) if backward else edit_outputs(model, {step: fail}):
        yield state
