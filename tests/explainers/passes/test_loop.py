"""The loop of slow methods: batch sizes, budgets, and out-of-memory errors.

The network advances the clock by a second for each row of a forward pass, and nothing else takes time.
"""

import os
import random
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from explainers import METHODS, explain
from explainers.layers.flow.cost import Cost
from explainers.layers.profile import profile
from explainers.passes.batches import batch_size, memory
from explainers.passes.batches.batch_size import Estimate
from explainers.passes.loop import Loop, largest_batch
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
    """Setup passes and findings count too. After the budget at most one batch runs, here one row per image."""
    clock = Clock(monkeypatch)
    net, images, seen = slow(clock, kind), torch.rand(2, 3, 20, 16), []
    explain_first(net, images, name, kind)
    clock.seconds, clock.batches[:] = 0.0, []
    given = options(name) | ({"precision": "auto"} if name in ("ss_cam", "sess") else {})

    found = explain(
        name, net, images, TARGETS[kind], budget=40.0, progress=lambda _: seen.append(clock.seconds), **given
    )

    assert clock.seconds <= 40 + 2 * len(images), (clock.seconds, clock.batches)
    assert clock.seconds > 20 or len(seen) < 2, "the budget is used"
    assert len(found.map) == 2 and found.map.isfinite().all()


def test_the_checks_of_a_network_do_not_use_up_the_budget(monkeypatch):
    """They run once for each network; here they take longer than the budget."""
    clock, seen = Clock(monkeypatch), []
    METHODS["rise"].function(
        slow(clock), torch.rand(1, 3, 20, 16), 1, batch_size=1, budget=3.0, progress=lambda p: seen.append(p.done)
    )
    assert len(seen) > 1 and clock.seconds > 6


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


@pytest.mark.parametrize("name", LONG)
def test_equal_calls_give_equal_maps(name, monkeypatch):
    """Bit by bit, however fast the machine is: the batch sizes, and thus the rounding, do not depend on a clock."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 5),
    ).eval()  # fmt: skip
    images, chosen = torch.rand(2, 3, 32, 24), SMALL.get(name, {})
    chosen = chosen | ({"layer": "4"} if METHODS[name].takes_layer else {})
    chosen |= {"samples": 40} if "samples" in METHODS[name].options else {}
    maps = []
    for speed in (1e-6, 10.0, 0.3):
        clock, jumps = [0.0], random.Random(speed)

        def tick(clock=clock, jumps=jumps, speed=speed):
            clock[0] += speed * jumps.random()
            return clock[0]

        monkeypatch.setattr(time, "monotonic", tick)
        monkeypatch.setattr(time, "perf_counter", tick)
        maps.append(METHODS[name].function(net, images, 1, **chosen))

    assert torch.equal(maps[0], maps[1]) and torch.equal(maps[0], maps[2])


CPU = torch.device("cpu")


@pytest.mark.parametrize(("seconds", "rows"), [(0.001, 256), (0.01, 32), (0.2, 4), (0.6, 2), (5.0, 1)])
def test_a_chunk_takes_half_a_second_and_a_slow_network_gets_a_few_rows(seconds, rows):
    cost = Cost(multiplications=round(seconds / Cost(1).seconds))
    assert Estimate(cost, Cost(), 1, CPU).rows(1, sys.maxsize) == rows
    assert Estimate(cost, Cost(), 1, CPU).rows(1, 3) == min(rows, 3)


def test_work_before_the_layer_does_not_shrink_the_batch():
    """Each chunk runs the layers before the ablated one again, so few large chunks are fastest if these are slow."""
    second = Cost(round(1 / Cost(1).seconds))
    network, before = Cost(301 * second.multiplications // 100), Cost(3 * second.multiplications)
    assert Estimate(network, before, 1, CPU).suffix_rows(1, sys.maxsize) == 512


def test_the_cost_of_a_network_is_that_of_its_operations():
    """By hand: a strided convolution with groups, a transposed one, and a linear layer."""
    net = nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), nn.ReLU(inplace=True), nn.ConvTranspose2d(6, 5, 2, stride=2),
        nn.Flatten(), nn.Linear(5 * 64, 7),
    ).eval()  # fmt: skip
    layers = profile(net, torch.rand(3, 4, 8, 8))
    first, second, last = 6 * 16 * 2 * 9, 6 * 16 * 5 * 4, 5 * 64 * 7
    assert layers.cost == Cost(first + second + last, 4 * (6 * 16 + 5 * 64 + 7), 4 * 5 * 64)
    assert layers.costs["0"].multiplications == layers.costs["1"].multiplications == first
    assert layers.costs["2"].multiplications == first + second


def test_memory_limits_the_rows(monkeypatch):
    """Forward passes keep a few tensors, backward passes all of them; half of the free memory may be taken."""
    monkeypatch.setattr(batch_size, "free", lambda device: 2 * 1024**2)
    estimate = Estimate(Cost(1, written=2**18, largest=2**14), Cost(), 1, torch.device("meta"))
    assert (estimate.rows(1, 10**6), estimate.rows(2, 10**6)) == (16, 4)


def test_the_page_limits_what_the_library_chooses(monkeypatch):
    clock = Clock(monkeypatch)
    net, images = slow(clock, each=1e-9), torch.rand(1, 3, 20, 16)

    with largest_batch(5):
        METHODS["rise"].function(net, images, 1, samples=20)

    assert max(clock.batches) == 5


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

    assert max(clock.batches) < 60 and clock.seconds <= 3.0 + 0.8


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
    assert chosen.size == rows == memory.reused_bytes() // size


def test_freed_memory_is_kept_if_the_c_library_supports_it():
    """In a separate process, since it applies until the process exits."""
    lines = """
import explainers, torch, resource
print(explainers.keep_freed_memory())
for _ in range(9): torch.ones(20_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(20_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
from explainers.passes.batches import memory
used = memory.allocated_here()
print(memory.release_freed_memory(), used - memory.allocated_here())
"""
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    kept, faults, is_released, released = done.stdout.split()
    assert kept == str(sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION") is not None)
    assert kept == "False" or int(faults) < 500, "of about 20,000 pages"
    assert is_released == kept and (kept == "False" or int(released) > 70_000_000)
