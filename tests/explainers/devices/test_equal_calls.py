"""Equal calls give equal maps, bit by bit, after other calls and if memory runs out; the generator of their noise."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explainers import METHODS
from explainers.call.batch_size import free
from explainers.errors import is_out_of_memory
from explainers.perturbation.rng import PerImageGenerators
from explainers.perturbation.threefry import words
from tests.support.calls import LONG, NAMES, call, small
from tests.support.nets import residual
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


def explain_tight(name: str, most: int) -> tuple[Tensor, int, int]:
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
        expected, rows, largest = explain_tight(name, 10**6)
        found, limited, size = explain_tight(name, MOST)
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


# Equal calls give equal maps; the generator of their noise


def images(count: int = 2, height: int = 32, width: int = 24) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height))


@pytest.mark.sample
@pytest.mark.parametrize("name", NAMES)
def test_earlier_calls_and_the_speed_of_the_machine_do_not_change_a_map(name: str, monkeypatch: Any) -> None:
    """Profiles, fused copies and checks of rows are cached per network by the first call that needs them.

    The batch sizes, and thus the rounding, do not depend on a clock.
    """
    expected = call(name, residual().float(), images(), 1)
    net = residual().float()
    others = {"grad_cam": images(1), "rise": images(1, 48, 40), "smooth_grad": images(3)}
    for other, x in (*others.items(), (name, images(1))):
        call(other, net, x, 1)
    for speed in (1e-6, 0.3, 10.0):
        clock = itertools.count(step=speed)  # each look at it takes so many seconds
        for name_of_clock in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, name_of_clock, clock.__next__)
        assert torch.equal(call(name, net, images(), 1), expected), speed


# The counter-based generator


ONES = 2**32 - 1
PI = (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3)
# From kat_vectors of Random123, the authors' library: rounds, two words of the key, two counters, two words.
KNOWN = [
    (13, (0, 0, 0, 0), (0x9D1C5EC6, 0x8BD50731)),
    (13, (ONES, ONES, ONES, ONES), (0xFD36D048, 0x2D17272C)),
    (13, PI, (0xBA3E4725, 0xF27D669E)),
    (20, (0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)),
    (20, (ONES, ONES, ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
    (20, PI, (0xC4923A9C, 0x483DF7A0)),
]


def test_words_are_those_of_the_authors() -> None:
    for rounds, (low, high, *counters), expected in KNOWN:
        row, column = (torch.tensor([word], dtype=torch.int64).to(torch.int32) for word in counters)
        found = words(low | high << 32, row, column, rounds)
        assert tuple(int(word) & ONES for word in found) == expected, (rounds, low)


def test_noise_has_the_moments_of_its_distribution() -> None:
    """Within four standard errors for a million numbers, and neighbors, rows and seeds are uncorrelated."""
    draws = PerImageGenerators(1, 3)
    normal, uniform = draws.normal_noise(0, 4, 250_000).double(), draws.uniform_noise(0, 4, 250_000).double()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert float((normal**power).mean()) == pytest.approx(moment, abs=4 * (variance / 1e6) ** 0.5)
    for power in (1, 2, 3):
        error = (1 / (2 * power + 1) - 1 / (power + 1) ** 2) ** 0.5 / 1e3
        assert float((uniform**power).mean()) == pytest.approx(1 / (power + 1), abs=4 * error)
    assert 0 <= float(uniform.min()) < 1e-5 and 1 - 1e-5 < float(uniform.max()) < 1
    assert 4.2 < float(normal.abs().max()) < 4.4

    other = PerImageGenerators(1, 4).normal_noise(0, 4, 250_000).double()
    halves = normal[:, :125_000], normal[:, 125_000:]
    pairs = [(normal[:, 1:], normal[:, :-1]), (normal[0], normal[1]), (normal, other), halves]
    assert all(abs(float((a * b).mean())) < 4 / a.numel() ** 0.5 for a, b in pairs)


def test_seeds_of_64_bits_give_different_noise() -> None:
    seeds = (0, 1, 2**31, 2**32, 2**63 - 1)
    found = [PerImageGenerators(1, seed).normal_noise(0, 1, 64) for seed in seeds]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(found, 2))
