"""Automatic batch sizes of slow methods: a function of the network, the image size, the device and its memory.

They do not depend on a clock, because backends compute a row slightly differently in batches of other sizes: with equal
sizes, equal calls give equal maps, bit by bit.

Free memory is that of the machine on the CPU, and that of torch's allocator on an accelerator. If the system reports
none, a chunk is limited only by its time.
"""

from __future__ import annotations

import ctypes
import math
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from explainers.call.profile import profile
from explainers.call.view import EvalView
from explainers.layers.flow.cost import Cost

SECONDS = 0.5
"""Typical duration of a chunk on two CPU cores. On these, ResNet-18 at 224 and 64 px and a small network are as fast
with such chunks as with larger ones. Progress, cancellation and budget take effect after each chunk.
"""
# A slow network still gets `_FEW` rows, up to `_LONGEST` seconds: single rows cost a quarter more each.
_FEW, _LONGEST = 4, 2.0
# Time of the variants as a multiple of the fixed cost of a chunk, which then takes at most a third of the time.
_AMORTIZED = 2.0
# Rows that an accelerator computes at least in the time in which two CPU cores compute one.
_ACCELERATOR = 50
# Fraction of the free memory that a chunk may take.
_SHARE = 0.5
# Cost per value of the image if the operations are unknown (scripted and exported networks): that of ResNet-18.
_UNKNOWN = Cost(12_000, 150, 21)


@dataclass(frozen=True)
class Estimate:
    """The cost of a row of a network, and that of the layers before the requested one, on a device."""

    network: Cost
    before: Cost
    images: int
    device: torch.device

    @cached_property
    def seconds(self) -> tuple[float, float]:
        """Duration of a forward pass of the images in total, and up to the layer."""
        faster = 1 if self.device.type == "cpu" else _ACCELERATOR
        whole, before = (self.images * cost.seconds / faster for cost in (self.network, self.before))
        return whole, before

    def rows(self, passes: int, largest: int, *, half: bool = False, is_suffix: bool = False) -> int:
        """Return how many rows to run at once, each of which takes as long as `passes` forward passes.

        They run in the target duration, and fit into memory, with all tensors of the graph if there is a backward pass.
        With `half`, tensors have half of their size. On the CPU, the tensors are small enough to reuse freed memory.
        With `is_suffix`, rows run behind the requested layer, and the layers before it once a chunk.
        """
        whole, prefix = self.seconds if is_suffix else (self.seconds[0], 0.0)
        if self.device.type == "cpu" and not is_suffix:
            reused = reused_bytes // max(1, self.network.largest // (2 if half else 1))
            largest = min(largest, max(1, reused))
        seconds = max(passes * (whole - prefix), 1e-6)
        fits = max(1.0, max(SECONDS, _AMORTIZED * prefix) / seconds, min(_FEW, _LONGEST / seconds))
        size = self.network.written if passes > 1 else 4 * self.network.largest
        # Powers of two: backends prepare for each batch size, so few are used.
        room = 2 ** (max(1, int(_SHARE * free(self.device))).bit_length() - 1) // max(1, size)
        return max(1, min(2 ** (int(fits).bit_length() - 1), largest, room or largest))


def estimate(view: EvalView, images: Tensor, layer: str | None = None) -> Estimate:
    """Return the cost of a row, from the profile of the network; `layer` is the requested layer."""
    key = estimate, images.shape, images.device, layer
    known = None if view.snapshot is None else view.snapshot.known.get(key)
    if known is not None:
        return cast(Estimate, known)
    network, before = Cost(*(images[0].numel() * each for each in _UNKNOWN)), Cost()
    if view.kind is None:
        layers = profile(view, images)
        network, before = layers.cost, layers.costs[layer][0] if layer in layers.costs else before
    found = Estimate(network, before, len(images), images.device)
    if view.snapshot is not None:
        view.snapshot.known[key] = found
    return found


# Below this number of bytes, free memory is not checked.
_SMALL = 64_000_000

# On the CPU a large tensor is allocated from fresh pages in every layer, which the system clears one by one: at 224 px
# EfficientNet-Lite0 takes 5 ms per row in small batches, and 9 to 14 ms in large ones. Tensors up to the first number
# of bytes reuse freed memory; up to the second number if the process keeps the memory that it frees.
reused_bytes, _WHEN_KEPT = 12 * 2**20, 32 * 2**20
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS = -1, -3, -8  # the GNU C library's mallopt


def keep_freed_memory(size: int = 2**30) -> bool:
    """Let this process keep up to `size` bytes of freed memory for later tensors, as accelerator allocators do.

    On Linux, batches then run 1.2 to 1.9 times as fast on the CPU. The setting applies to the whole process until it
    exits, so the library never changes it by itself: call this once at program start, before starting threads.

    Returns  whether the C library supports it (GNU's does)

    Example
        >>> isinstance(keep_freed_memory(), bool)
        True
    """
    global reused_bytes
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        set_all = [mallopt(name, size) for name in (_TRIM_THRESHOLD, _MMAP_THRESHOLD)] + [mallopt(_ARENAS, 1)]
        reused_bytes = _WHEN_KEPT if all(set_all) else reused_bytes
    return reused_bytes == _WHEN_KEPT


def release_freed_memory() -> bool:
    """Return the memory that this process has freed and kept to the system, which takes up to 0.15 s per gigabyte.

    Returns  whether the C library supports it (GNU's does)

    Example
        >>> isinstance(release_freed_memory(), bool)
        True
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim is not None and trim(0) >= 0


def max_tensor_count(count: int, size: int, device: torch.device) -> int:
    """Return how many of `count` tensors of `size` bytes a chunk may hold.

    Memory is left for tensors that are computed from them.
    """
    room = free(device) if count * size > _SMALL else 0
    return min(count, max(1, int(_SHARE * room / 4 / size))) if room else count


def free(device: torch.device) -> int:
    """Return the free memory of a device in bytes, with what torch's allocator has reserved but not used; 0 if unknown.

    On the CPU, it is the available memory of the machine, or less if the process's control group is limited. On Apple's
    MPS, which shares its memory with the CPU, it is the rest of the size that Metal recommends, or the free
    memory of the machine if that is less.
    """
    backend: Any = getattr(torch, device.type, None)
    if hasattr(backend, "mem_get_info") and device.type != "cpu":
        cached = backend.memory_reserved(device) - backend.memory_allocated(device)
        try:
            return int(backend.mem_get_info(device)[0] + cached)
        except RuntimeError:  # some Intel GPUs do not report their free memory
            total = int(backend.get_device_properties(device).total_memory)
            return max(1, total - int(backend.memory_allocated(device)))
    rest = math.inf
    if hasattr(backend, "recommended_max_memory"):
        rest = backend.recommended_max_memory() - backend.current_allocated_memory()
    elif device.type != "cpu":
        return 0
    texts = []
    for path in ("/proc/meminfo", *_CONTROL_GROUPS):
        try:
            with open(path) as file:
                texts.append(file.read().strip())
        except OSError:
            texts.append("")
    found = re.search(r"MemAvailable:\s*(\d+)", texts[0])
    rooms = [rest, 1024 * int(found[1]) if found else math.inf]
    for most, used in zip(texts[1::2], texts[2::2], strict=True):
        if most.isdigit() and used.isdigit():
            rooms.append(int(most) - int(used))
            break
    room = min(rooms)
    return 0 if room == math.inf else max(1, int(room))


# Limit and use of memory, in both versions of control groups.
_CONTROL_GROUPS = (
    "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
)  # fmt: skip
