"""Pretended accelerators: tensors that report another device, compute on the CPU, and refuse what accelerators refuse.

Move a network and its images to `WITH_FLOAT64` or `WITHOUT_FLOAT64` with `.to(device)` inside `pretended_devices()`.
Both are of torch's device type "lazy", which nothing else uses and whose backward passes run in the calling thread.
They refuse to be combined with CPU tensors, by CUDA's rules: only numbers in arithmetic and indices may be on the CPU.
The second one refuses float64 as MPS does: in every operation, and when a copy to the CPU would convert to it. The
block counts the transfers in both directions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

WITH_FLOAT64 = torch.device("lazy", 0)
WITHOUT_FLOAT64 = torch.device("lazy", 1)

CPU = torch.device("cpu")
WIDE = (torch.float64, torch.complex128)
aten = torch.ops.aten
INDEXED = (aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default)


class PretendedTensor(Tensor):
    """A tensor on a pretended device; `inner` has its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> PretendedTensor:
        if device == WITHOUT_FLOAT64 and inner.dtype in WIDE:
            raise TypeError(f"Device {device} does not support {inner.dtype}.")
        outer = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=device,
        )
        outer.inner = inner
        return outer

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"PretendedTensor({self.inner!r}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    # Methods that torch does not dispatch.

    def __format__(self, how: str) -> str:
        return self.item().__format__(how) if self.ndim == 0 else repr(self)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def new_tensor(self, data: Any, **keywords: Any) -> Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device} | keywords)

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(self._moved(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(self._moved(index), value)

    def _moved(self, index: Any) -> Any:
        """Return an index whose sequences of numbers are tensors on the device, where torch moves them."""
        parts = index if isinstance(index, tuple) else (index,)
        known = (list, tuple, range)
        return tuple(_make_tensor([*part], device=self.device) if isinstance(part, known) else part for part in parts)

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy


_counts: Counter[str] = Counter()


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation on the values of its tensors, and return its result on the device."""
    tensors: list[Tensor] = []
    _map(tensors.append, (args, [*kwargs.values()]))
    devices = {each.device for each in tensors if isinstance(each, PretendedTensor)}
    source = next(iter(devices), CPU)
    target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else source
    if target.type == "lazy" and target.index is None:
        target = WITH_FLOAT64
    if func is aten.copy_.default:
        source, target = args[1].device, args[0].device
    else:
        _refuse_mixtures(func, args, kwargs, tensors, devices)
    inner = _map(lambda x: x.inner if isinstance(x, PretendedTensor) else x, (args, [*kwargs.values()]))
    inner_args, inner_kwargs = inner[0], dict(zip(kwargs, inner[1], strict=True))
    if target.type == "lazy" and "device" in kwargs:
        inner_kwargs["device"] = CPU
    moves = func in (aten._to_copy.default, aten.copy_.default) and source != target
    if moves and source == WITHOUT_FLOAT64 and (kwargs.get("dtype") or args[0].dtype) in WIDE:
        raise TypeError(f"Device {source} cannot convert to float64 while it copies.")
    found = func(*inner_args, **inner_kwargs)
    outer = found
    if target != CPU:
        outer = _map(lambda each: PretendedTensor(each, target), found)
    if moves or (source != CPU and _waits(func, args)):
        _counts["to device" if source == CPU else "from device"] += 1
    if target == CPU:
        return args[0] if func is aten.copy_.default else found
    return return_and_correct_aliasing(func, args, kwargs, outer)


def _map(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Change the tensors in arguments or results, in a tenth of the time of torch's functions for any tree."""
    if isinstance(value, (list, tuple)):
        return type(value)([_map(change, each) for each in value])
    return change(value) if isinstance(value, Tensor) else value


def _refuse_mixtures(func: Any, args: Any, kwargs: Any, tensors: list[Tensor], devices: set[torch.device]) -> None:
    """Raise CUDA's error for tensors on several devices, unless the ones on the CPU are numbers or indices."""
    here = [each for each in tensors if not isinstance(each, PretendedTensor)]
    if len(devices) > 1 or (devices and here):
        if func in INDEXED:
            own, values = args[0], args[2:3]
            here = [each for each in (own, *values) if not isinstance(each, PretendedTensor)]
            here = [each for each in here if each is own or each.ndim]
        elif torch.Tag.pointwise in func.tags or "masked_fill" in str(func):
            here = [each for each in here if each.ndim]
        if len(devices) > 1 or here:
            found = ", ".join(map(str, {*devices, *(each.device for each in here)}))
            raise RuntimeError(f"Expected all tensors to be on the same device, but found {found} ({func}).")


def _waits(func: Any, args: Any) -> bool:
    """Return whether the CPU needs values of the device to run the operation."""
    if func in INDEXED:
        return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


class _Factories(TorchDispatchMode):
    """Create tensors on a pretended device, and move tensors to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if PretendedTensor in types or _is_pretended(kwargs.get("device")):
            return _run(func, args, kwargs)
        return func(*args, **kwargs)


_tensor, _as_tensor = torch.tensor, torch.as_tensor
_autocast, _autocast_enabled = torch.autocast, torch.is_autocast_enabled


def _is_pretended(device: Any) -> bool:
    return device is not None and torch.device(device).type == "lazy"


class _Kind(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch._C.Generator)


class _Generator(torch.Generator, metaclass=_Kind):
    """A generator of a pretended device draws on the CPU."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        return torch._C.Generator("cpu" if _is_pretended(device) else device)


def _make_tensor(data: Any, *, device: Any = None, **keywords: Any) -> Tensor:
    return _tensor(data, **keywords).to(device) if _is_pretended(device) else _tensor(data, device=device, **keywords)


def _make_as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    if not _is_pretended(device):
        return _as_tensor(data, dtype=dtype, device=device)
    return (data if isinstance(data, Tensor) else _tensor(data)).to(device, dtype)


def _make_autocast(device_type: str, *arguments: Any, **keywords: Any) -> Any:
    return nullcontext() if device_type == "lazy" else _autocast(device_type, *arguments, **keywords)


@contextmanager
def pretended_devices() -> Iterator[Counter[str]]:
    """Offer both devices inside the block; yields the number of transfers "to device" and "from device" so far.

    Transfers from the device include `.item()`, truth values, and operations whose output size depends on values.
    """
    _counts.clear()
    shims = {
        "tensor": _make_tensor,
        "as_tensor": _make_as_tensor,
        "autocast": _make_autocast,
        "is_autocast_enabled": lambda device="cpu": device != "lazy" and _autocast_enabled(device),
        "Generator": _Generator,
    }
    with mock.patch.multiple(torch, **shims), _Factories():
        yield _counts
