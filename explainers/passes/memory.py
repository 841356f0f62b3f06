"""Memory of long methods: what is free, what a chunk took, and how large tensors may be to get memory used before.

Figures are those of the process on the CPU, and of torch's allocator on an accelerator. Where a system gives none, a
chunk is bounded by its time alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_SHARE = 0.5
"""Fraction of the free memory that a chunk may take."""
# Bytes for which no free memory is looked up.
_SMALL = 64_000_000

# On the CPU a large tensor is made of fresh pages in every layer, which the system clears one by one: at 224 px
# EfficientNet-Lite0 takes 5 ms a row in small batches, and 9 to 14 ms in large ones. Up to the first number of bytes
# tensors get memory that was used before; up to the second where the process keeps what it frees.
_REUSED, _REUSED_WHEN_KEPT = 12 * 2**20, 32 * 2**20
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8  # the GNU C library's mallopt
_kept = False


def keep_freed_memory(size: int = 2**30) -> bool:
    """Let this process keep up to `size` bytes of freed memory for its next tensors, as accelerators do.

    On Linux networks then run 1.2 to 1.9 times as fast on the CPU in batches. It holds for the whole process until it
    ends, so the library never does it by itself: call it once at the start of a program, before threads.

    Returns  whether the C library offers it (GNU's does)

    Example
        >>> isinstance(keep_freed_memory(), bool)
        True
    """
    global _kept
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        set_all = [mallopt(name, size) for name in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)] + [mallopt(_ARENAS, 1)]
        _kept = all(set_all)
    return _kept


def reused_bytes() -> int:
    """Bytes of a tensor on the CPU up to which it gets memory that was used before."""
    return _REUSED_WHEN_KEPT if _kept else _REUSED


class Memory:
    """What work takes on a device from now on, by the rise of the peak that process or allocator have recorded."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._at_rest, self._peak = device, _used(device), _peak(device)

    def most(self, rows: int) -> int | None:
        """Rows that fit, by what `rows` of them took; None where they took no more than was taken before."""
        peak = _peak(self._device)
        if peak <= self._peak:
            return None
        room = free(self._device) + _used(self._device) - self._at_rest
        # The resident size is counted in another place than its peak, and may be a little ahead of it.
        return max(1, int(rows * _SHARE * room / max(1, peak - self._at_rest))) if room > 0 else None


def holds(count: int, size: int, device: torch.device) -> int:
    """How many of `count` tensors of so many bytes a chunk may have; those that are computed from them come on top."""
    room = free(device) if count * size > _SMALL else 0
    return min(count, max(1, int(_SHARE * room / 4 / size))) if room else count


def free(device: torch.device) -> int:
    """Free bytes; 0 where they are not known."""
    if device.type == "cpu":
        return _free_here()
    backend: Any = getattr(torch, device.type, None)
    if not hasattr(backend, "mem_get_info"):
        return 0
    cached = backend.memory_reserved(device) - backend.memory_allocated(device)
    return int(backend.mem_get_info(device)[0] + cached)


def _used(device: torch.device) -> int:
    if device.type != "cpu":
        allocated = getattr(getattr(torch, device.type, None), "memory_allocated", None)
        return int(allocated(device)) if allocated else 0
    pages = _read("/proc/self/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _peak(device: torch.device) -> int:
    if device.type != "cpu":
        allocated = getattr(getattr(torch, device.type, None), "max_memory_allocated", None)
        return int(allocated(device)) if allocated else 0
    if not hasattr(resource, "getrusage"):
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _free_here() -> int:
    """What the machine has available, or less where the process's control group is limited."""
    lines = (line.split() for line in _read("/proc/meminfo").splitlines())
    available = next((1024 * int(words[1]) for words in lines if words and words[0] == "MemAvailable:"), 0)
    for limit, used in _CONTROL_GROUPS:
        numbers = _read(limit), _read(used)
        if all(number.strip().isdigit() for number in numbers):
            left = int(numbers[0]) - int(numbers[1])
            return max(1, min(available, left) if available else left)
    return available


_CONTROL_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
