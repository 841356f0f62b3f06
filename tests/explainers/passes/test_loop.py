"""The loop of slow methods: measured batch sizes, budgets, and out-of-memory errors.

The network advances the clock by a second for each row of a forward pass, and nothing else takes time.
"""

import os
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from explainers import METHODS, explain
from explainers.passes import memory
from explainers.passes.loop import Loop, Rows, largest_batch
from explainers.passes.run import open_run

pytestmark = pytest.mark.sample

LONG = [name for name, each in METHODS.items() if each.long]
SMALL = {"xrai": {"steps": 8}, "extremal_perturbation": {"steps": 20}, "guided_integrated_gradients": {"steps": 12}}


class Clock:
    """A clock that a network advances."""

    def __init__(self, monkeypatch):
        self.seconds, self.batches = 0.0, []
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)


class Slow(nn.Module):
    """A network whose clock advances by one second per row; `kind` selects the output."""

    def __init__(self, clock, kind="scores", each=1.0):
        super().__init__()
        self.clock, self.kind, self.each = [clock], kind, each
        self.features = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU())
        self.head = nn.Conv2d(24, 4, 1)

    def forward(self, x):
        self.clock[0].seconds += self.each * len(x)
        self.clock[0].batches.append(len(x))
        maps = self.head(self.features(x))
        if self.kind == "masks":
            return {"out": maps}
        pooled = maps.mean((2, 3))
        if self.kind == "boxes":
            return [{"scores": row.sigmoid(), "labels": torch.arange(4), "boxes": torch.zeros(4, 4)} for row in pooled]
        return pooled


TARGETS = {
    "scores": 1,
    "masks": lambda output: output["out"][:, 1].mean((1, 2)),
    "boxes": lambda output: torch.stack([each["scores"].sum() for each in output]),
}


def slow(clock, kind="scores", each=1.0):
    torch.manual_seed(0)
    net = Slow(clock, kind, each).eval()
    net.features[1].running_mean.normal_()
    return net


def options(name):
    return SMALL.get(name, {}) | ({"layer": "features"} if METHODS[name].takes_layer else {})


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", LONG)
def test_a_budget_ends_within_one_batch(name, kind, monkeypatch):
    """Setup passes count too. After the budget at most one batch runs, here one row per image."""
    clock = Clock(monkeypatch)
    net, images, seen = slow(clock, kind), torch.rand(2, 3, 20, 16), []
    method = METHODS[name]
    explain_first(net, images, name, kind)
    clock.seconds, clock.batches[:] = 0.0, []

    map = method.function(
        net, images, TARGETS[kind], budget=40.0, progress=lambda partial: seen.append(clock.seconds), **options(name)
    )

    assert clock.seconds <= 40 + 2 * len(images), (clock.seconds, clock.batches)
    assert clock.seconds > 20 or len(seen) < 2, "the budget is used"
    assert len(map) == 2 and map.isfinite().all()


@pytest.mark.parametrize("name", LONG)
def test_the_last_batch_is_limited_by_the_remaining_budget(name, monkeypatch):
    """A full batch takes half a second; the last one before the end of the budget is smaller."""
    clock = Clock(monkeypatch)
    net, images = slow(clock, each=0.01), torch.rand(1, 3, 20, 16)
    explain_first(net, images, name, "scores")
    clock.seconds = 0.0

    METHODS[name].function(net, images, 1, budget=0.7, **options(name))

    assert clock.seconds <= 0.7 + 0.12, clock.batches


def explain_first(net, images, name, kind):
    """Find layers and layouts and check the network's rows once per network, which a budget does not include."""
    METHODS[name].function(net, images, TARGETS[kind], budget=1e-3, **options(name))


@pytest.mark.parametrize(
    "name", ["integrated_gradients", "guided_integrated_gradients", "xrai", "extremal_perturbation"]
)
def test_findings_that_cost_a_pass_keep_to_the_budget(name, monkeypatch):
    clock = Clock(monkeypatch)
    net, images = slow(clock), torch.rand(2, 3, 20, 16)
    explain_first(net, images, name, "scores")
    clock.seconds = 0.0

    explain(name, net, images, 1, budget=40.0, **options(name))

    assert clock.seconds <= 40 + 2 * len(images), clock.batches


@pytest.mark.parametrize("name", ["ss_cam", "sess"])
def test_precision_is_not_timed_if_the_budget_is_too_short(name, monkeypatch):
    clock = Clock(monkeypatch)
    net, images = slow(clock).float(), torch.rand(1, 3, 20, 16)
    explain_first(net, images, name, "scores")
    clock.seconds = 0.0

    METHODS[name].function(net, images, 1, budget=20.0, precision="auto", **options(name))

    assert clock.seconds <= 22, clock.batches


def test_the_batch_grows_to_half_a_second_and_no_further(monkeypatch):
    """The cold clean pass is not representative: each chunk is four times the last until it takes half a second."""
    clock = Clock(monkeypatch)
    chunks = []

    def work(chunk):
        chunks.append(len(chunk))
        clock.seconds += 0.01 + 0.004 * len(chunk)

    Loop().run(1000, Rows(0.2, torch.device("cpu"), 10**6), work, lambda: torch.zeros(1))

    assert chunks[:3] == [4, 16, 64] and set(chunks[3:-1]) == {64}


def test_a_batch_that_saves_no_time_is_not_enlarged(monkeypatch):
    clock = Clock(monkeypatch)
    chunks = []

    def work(chunk):
        chunks.append(len(chunk))
        clock.seconds += 1e-5 * len(chunk)

    Loop().run(10_000, Rows(0.1, torch.device("cpu"), 10**6), work, lambda: torch.zeros(1))

    assert chunks[0] == 4 and set(chunks[1:-1]) == {16}


def test_a_batch_that_costs_time_is_reduced_again(monkeypatch):
    """For example if every layer allocates fresh memory."""
    clock = Clock(monkeypatch)
    chunks = []

    def work(chunk):
        chunks.append(len(chunk))
        clock.seconds += (0.004 if len(chunk) <= 8 else 0.006) * len(chunk)

    Loop().run(1000, Rows(0.01, torch.device("cpu"), 10**6, first=8), work, lambda: torch.zeros(1))

    assert chunks[:2] == [8, 32] and set(chunks[2:]) == {8}


def test_work_before_the_layer_does_not_shrink_the_batch(monkeypatch):
    """Each chunk runs the layers before the ablated one again, so few large chunks are fastest if these are slow."""
    clock = Clock(monkeypatch)
    chunks = []

    def work(chunk):
        chunks.append(len(chunk))
        clock.seconds += 3.0 + 0.01 * len(chunk)

    Loop().run(2000, Rows(0.01, torch.device("cpu"), 10**6, prefix=3.0), work, lambda: torch.zeros(1))

    assert min(chunks[:-1]) == 512


@pytest.mark.parametrize("name", ["rise", "smooth_grad", "ablation_cam"])
def test_a_given_batch_size_is_kept_and_changes_nothing(name, monkeypatch):
    clock = Clock(monkeypatch)
    net, images = slow(clock, each=1e-9).double(), torch.rand(1, 3, 20, 16, dtype=torch.float64)
    expected = METHODS[name].function(net, images, 1, **options(name))
    done = []

    found = METHODS[name].function(
        net, images, 1, batch_size=5, progress=lambda partial: done.append(partial.done), **options(name)
    )

    assert done[:3] == [5, 10, 15]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_page_limits_what_the_library_chooses(monkeypatch):
    clock = Clock(monkeypatch)
    net, images = slow(clock, each=1e-9), torch.rand(1, 3, 20, 16)

    with largest_batch(3):
        METHODS["rise"].function(net, images, 1, samples=20)

    assert max(clock.batches) == 3


class Tight(Slow):
    """Raise an out-of-memory error with more than `most` rows at the layer."""

    most = 3

    def forward(self, x):
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        maps = self.features(x)
        if len(maps) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.clock[0].batches.append(len(maps))
        return self.head(maps).mean((2, 3))


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize(
    "name",
    ["rise", "smooth_grad", "ablation_cam", "channel_effects", "smooth_grad_cam_pp", "lime", "integrated_gradients"],
)
def test_a_batch_is_halved_when_memory_runs_out(name, size, monkeypatch):
    """The same map from smaller batches: nothing is sampled again or counted twice."""
    clock = Clock(monkeypatch)
    torch.manual_seed(0)
    net = Tight(clock).eval().double()
    images, method = torch.rand(2, 3, 20, 16, dtype=torch.float64), METHODS[name].function
    chosen = options(name) | {"rise": {"samples": 40}, "lime": {"samples": 40}}.get(name, {})
    found = method(net, images, 1, batch_size=size, **chosen)
    assert max(clock.batches) <= 3
    monkeypatch.setattr(Tight, "most", 10**6)

    expected = method(net, images, 1, batch_size=7, **chosen)

    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_an_error_of_one_row_is_raised():
    with pytest.raises(torch.OutOfMemoryError):
        Loop().run_in_halves(lambda batch, random_images: _out_of_memory(), torch.zeros(4, 1), [0] * 4)
    with pytest.raises(ValueError, match="of the caller"):
        Loop().run_in_halves(lambda batch, random_images: _refuse(), torch.zeros(4, 1), [0] * 4)


def _out_of_memory():
    raise torch.OutOfMemoryError("out of memory")


def _refuse():
    raise ValueError("of the caller")


class Detector(nn.Module):
    """Like a detector, it processes each image of its input separately, and counts the images."""

    def __init__(self, clock):
        super().__init__()
        self.clock = [clock]
        self.features = nn.Sequential(nn.Conv2d(3, 60, 3, 2, 1), nn.ReLU())
        self.head = nn.Conv2d(60, 4, 1)

    def forward(self, x):
        self.clock[0].batches.append(len(x))
        self.clock[0].seconds += 0.1 * len(x)
        maps = self.features(x)
        self.clock[0].seconds += 1e-4 * len(maps)
        if len(maps) != len(x):
            raise RuntimeError("one list of anchors for each image")
        return [{"scores": one.mean((1, 2)).sigmoid()} for one in self.head(maps)]


def test_a_network_that_runs_image_by_image_does_not_get_all_channels(monkeypatch):
    """The part after the layer is fast, but does not accept a separate batch: each channel costs a full pass."""
    clock = Clock(monkeypatch)
    net, images = Detector(clock).eval(), torch.rand(1, 3, 20, 16)
    explain_first(net, images, "ablation_cam", "boxes")
    clock.seconds, clock.batches[:] = 0.0, []

    METHODS["ablation_cam"].function(net, images, TARGETS["boxes"], layer="features", budget=3.0)

    assert max(clock.batches) <= 8 and clock.seconds <= 3.0 + 0.8


def test_memory_without_a_peak_increase_is_not_a_limit(monkeypatch):
    """The two numbers come from different counters of the system."""
    from explainers.passes import memory

    used, peaks = 10**9, iter([10**9 - 5, 10**9, 3 * 10**9])
    monkeypatch.setattr(memory, "_used", lambda device: used)
    monkeypatch.setattr(memory, "_peak", lambda device: next(peaks))
    monkeypatch.setattr(memory, "free", lambda device: 8 * 10**9)
    taken = memory.Memory(torch.device("cpu"))

    assert taken.max_rows(16) > 10**6, "almost no rise"
    assert taken.max_rows(16) == 32, "16 rows took 2 GB, and half of 8 GB may be taken"


@pytest.mark.parametrize(("seconds", "rows"), [(0.001, 256), (0.01, 32), (0.2, 4), (0.6, 2), (5.0, 1)])
def test_a_slow_network_gets_a_few_rows_per_chunk(seconds, rows):
    assert Rows(seconds, torch.device("cpu"), 10**6).size == rows


@pytest.mark.parametrize(("side", "size"), [(64, 256), (224, 8)])
def test_large_images_start_with_few_rows_independent_of_time(side, size, monkeypatch):
    clock = Clock(monkeypatch)
    loop = Loop()
    clock.seconds = 0.001
    loop.measure(torch.zeros(1, 3, side, side), 0.0)
    assert loop.rows().size == size


@pytest.mark.parametrize(
    ("kept", "precision", "rows"), [(False, "float32", 3), (True, "float32", 8), (True, "bf16", 16)]
)
def test_batches_are_limited_to_reused_memory(kept, precision, rows, monkeypatch):
    """Larger tensors use fresh pages in every layer; a tensor of 4 MB in float32 is 2 MB in bfloat16."""
    monkeypatch.setattr(memory, "_kept", kept)
    net = nn.Sequential(nn.Conv2d(3, 80, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, 5)).eval()
    Clock(monkeypatch)
    loop = Loop()
    with open_run(net, torch.rand(1, 3, 112, 117), 1, many=True, precision=precision, loop=loop) as run:
        run.scoring.score_inputs()
        chosen = loop.rows()
    size = 80 * 112 * 117 * (2 if precision == "bf16" else 4)
    assert chosen.largest == chosen.size == rows == memory.reused_bytes() // size


def test_freed_memory_is_kept_if_the_c_library_supports_it():
    """In a separate process, since it applies until the process exits."""
    lines = """
import explainers, torch, resource
print(explainers.keep_freed_memory())
for _ in range(9): torch.ones(20_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(20_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
from explainers.passes import memory
used = memory.allocated_here()
print(memory.release_freed_memory(), used - memory.allocated_here())
"""
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    kept, faults, is_released, released = done.stdout.split()
    assert kept == str(sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION") is not None)
    assert kept == "False" or int(faults) < 500, "of about 20,000 pages"
    assert is_released == kept and (kept == "False" or int(released) > 70_000_000)
