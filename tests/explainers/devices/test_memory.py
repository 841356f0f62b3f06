"""Batches of slow methods on accelerators: free memory, one wait for each, and smaller ones if memory runs out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import METHODS
from explainers.call.batch_size import free
from explainers.call.loop import Loop, Rows, now
from explainers.errors import is_out_of_memory
from tests.support.calls import LONG, small
from tests.support.pretended_device import WITHOUT_FLOAT64, pretended_devices

MOST = 3
FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity)"),  # older torch
    RuntimeError("MPS backend out of memory (MPS allocated: 8.01 GB, other allocations: 1.07 GB, max: 9.07 GB)."),
    RuntimeError("Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("GET was unable to find an engine to execute this computation"),  # also cuDNN
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]
SMALL_PASSES = ("extremal_perturbation",)
"""Methods whose passes have two rows here."""
ROWS: list[int] = []
"""Rows of each finished pass."""


class Tight(nn.Module):
    """A network that fails with more than `most` rows, as accelerators do; it counts the rows of the other passes."""

    def __init__(self, most: int, error: Exception) -> None:
        super().__init__()
        self.first, self.act = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()
        self.second, self.head = nn.Conv2d(8, 6, 3, 1, 1), nn.Linear(6, 4)
        self.limit = [most, error]

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        maps = self.act(self.second(self.act(self.first(x))))
        self.check(maps)  # methods that change a layer run its output with more rows
        ROWS.append(len(maps))
        return self.head(maps.mean((2, 3)))

    def check(self, rows: Tensor) -> None:
        if len(rows) > self.limit[0]:
            raise self.limit[1]


def explain(name: str, most: int) -> tuple[Tensor, int, int]:
    """Return the map, the rows of the second call, and the largest pass; the first call also looks at the network."""
    torch.manual_seed(0)
    network, images = Tight(most, FULL[0]).eval().to(WITHOUT_FLOAT64), torch.rand(2, 3, 12, 16).to(WITHOUT_FLOAT64)
    chosen: dict[str, Any] = small(name) | ({"samples": 12} if "samples" in METHODS[name].options else {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("explainers.call.scores.fused_copy", lambda *_: None)  # it has no limit
        for _ in range(2):
            ROWS.clear()
            found = METHODS[name](network, images, 1, **chosen)
    return found.cpu(), sum(ROWS), max(ROWS)


def test_the_errors_of_all_backends_are_recognized_and_others_are_not() -> None:
    assert [error for error in FULL if not is_out_of_memory(error)] == []
    for message in ("CUDA error: device-side assert triggered", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "size"):
        assert not is_out_of_memory(RuntimeError(message))
    assert is_out_of_memory(MemoryError()) and not is_out_of_memory(ValueError("a label called out of memory"))


@pytest.mark.sample
@pytest.mark.parametrize("name", LONG)
def test_finished_rows_are_not_repeated_when_memory_runs_out(name: str) -> None:
    """Only the failed pass runs again, in halves: as many rows finish as without the limit, and the map is the same."""
    with pretended_devices():
        expected, rows, largest = explain(name, 10**6)
        found, limited, size = explain(name, MOST)
    assert size <= MOST and (largest > MOST or name in SMALL_PASSES)
    assert limited == rows
    # The map is a difference of scores, which are near 1.
    assert float((found - expected).abs().max()) <= 2e-5 * float(expected.abs().max()) + 1e-7


def pretend(monkeypatch: pytest.MonkeyPatch, kind: str, **functions: Any) -> torch.device:
    for name, function in functions.items():
        monkeypatch.setattr(getattr(torch, kind), name, function, raising=False)
    return torch.device(kind, 0) if kind == "mps" else torch.device(kind, 1)


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_free_memory_includes_what_the_allocator_has_reserved_but_not_used(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[torch.device] = []
    device = pretend(
        monkeypatch,
        kind,
        mem_get_info=lambda device: asked.append(device) or (3_000, 10_000),
        memory_reserved=lambda device: 5_000,
        memory_allocated=lambda device: 1_500,
        get_device_properties=lambda device: SimpleNamespace(total_memory=10_000),
    )
    assert free(device) == 3_000 + 5_000 - 1_500 and asked == [device]

    def refuse(device: torch.device) -> None:
        raise RuntimeError("The device doesn't support querying the available free memory.")

    pretend(monkeypatch, kind, mem_get_info=refuse)
    assert free(device) == 10_000 - 1_500


def test_free_memory_of_mps_is_the_rest_of_the_recommended_size(monkeypatch: pytest.MonkeyPatch) -> None:
    device = pretend(monkeypatch, "mps", recommended_max_memory=lambda: 9_000, current_allocated_memory=lambda: 2_000)
    assert free(device) == 7_000
    pretend(monkeypatch, "mps", recommended_max_memory=lambda: 2**60)
    assert free(device) < 2**45, "not more than the memory of the machine"


@pytest.mark.parametrize(("kind", "expected"), [("cuda", ("cuda:1",)), ("xpu", ("xpu:1",)), ("mps", ())])
def test_a_chunk_waits_once_for_its_own_device(
    kind: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[str, ...]] = []
    device = pretend(monkeypatch, kind, synchronize=lambda *device: waits.append(tuple(map(str, device))))
    now(device)
    assert waits == [expected]
    chunks: list[range] = []
    Loop().run(12, Rows(4, 0.0, device), chunks.append, lambda: torch.zeros(0))
    assert len(chunks) == 3 and waits == [expected] * 4
