"""Side effects of a call: snapshots of model, images and process state, and their comparison."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_ENDINGS = ("hooks", "hooks_with_kwargs", "hooks_always_called")
HOOKS = [name for name in vars(nn.Module()) if name.endswith(_ENDINGS)]


def hook_count(model: nn.Module) -> int:
    """All hooks on all modules, and the global ones."""
    own = sum(len(vars(module).get(name) or {}) for module in model.modules() for name in HOOKS)
    everywhere = vars(torch.nn.modules.module)
    return own + sum(
        len(value) for name, value in everywhere.items() if name.startswith("_global_") and hasattr(value, "keys")
    )


def parameter_hooks(model: nn.Module) -> int:
    """All hooks on the gradients of parameters."""
    return sum(len(p._backward_hooks or ()) + len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


def _frozen(value: Any) -> Any:
    """A value that can be compared later: tensors by identity, version and bits, containers by their parts."""
    if isinstance(value, Tensor):
        # Inference tensors keep no version counter.
        version = None if value.is_inference() else value._version
        return (
            id(value),
            version,
            value.requires_grad,
            value.detach().clone(),
            None if value.grad is None else _frozen(value.grad),
        )
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_frozen(each) for each in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else id(value)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(nan=7e7), b.nan_to_num(nan=7e7))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def snapshot(model: nn.Module, *tensors: Tensor) -> dict[str, Any]:
    """All state that a call must leave unchanged (contract 2), by name."""
    import numpy

    found: dict[str, Any] = {
        "hooks": hook_count(model),
        "hooks on parameters": parameter_hooks(model),
        "training": [module.training for module in model.modules()],
        "tensors": [_frozen(tensor) for tensor in tensors],
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "default dtype": torch.get_default_dtype(),
        "torch generator": torch.get_rng_state(),
        "numpy generator": str(numpy.random.get_state()),
        "python generator": str(hash(random.getstate())),
        "function modes": len(torch.overrides._get_current_function_mode_stack()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }
    for name, module in model.named_modules():
        found[f"attributes of {name or 'the model'}"] = {k: _frozen(v) for k, v in vars(module).items()}
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names under which two snapshots differ."""
    return [name for name in before.keys() | after.keys() if not _same(before.get(name), after.get(name))]


@contextmanager
def nothing_left(model: nn.Module, *tensors: Tensor) -> Iterator[None]:
    """Fail when the block changed anything that `snapshot` sees, also when the block itself raised."""
    before = snapshot(model, *tensors)
    try:
        yield
    finally:
        left = differences(before, snapshot(model, *tensors))
        assert not left, f"left behind: {', '.join(sorted(left))}"


class _Token:
    pass


LIVE: weakref.WeakSet[_Token] = weakref.WeakSet()


class _Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.token = _Token()
        LIVE.add(ctx.token)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Marker(nn.Module):
    """Identity whose graph nodes are counted: `graphs_alive()` is 0 once no graph through it is alive."""

    def forward(self, x: Tensor) -> Tensor:
        return _Marked.apply(x)


def graphs_alive() -> int:
    gc.collect()
    return len(LIVE)


def tensors_alive() -> int:
    """Tensors that Python objects keep alive."""
    gc.collect()
    return sum(1 for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter))
