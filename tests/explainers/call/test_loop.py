"""The loop of slow methods: batch sizes, budgets, and errors of single rows.

The network advances the clock by a second for each row of a forward pass, and nothing else takes time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from explainers import METHODS, BadTarget, LayerNotFound, explain, grad_cam
from explainers.call import batch_size
from explainers.call.at_layer import retry_with_repeated_batch
from explainers.call.batch_size import Estimate
from explainers.call.loop import Loop, largest_batch
from explainers.layers.flow.cost import Cost
from tests.support.calls import LONG, call
from tests.support.deciding_nets import Conv, lights
from tests.support.nets import random_images, residual

SMALL = {"xrai": {"steps": 8}, "extremal_perturbation": {"steps": 20}, "guided_integrated_gradients": {"steps": 12}}
TARGETS = {
    "scores": 1,
    "masks": lambda output: output["out"][:, 1].mean((1, 2)),
    "boxes": lambda output: torch.stack([each["scores"].sum() for each in output]),
}


class Slow(nn.Module):
    """A network whose clock advances by `each` seconds per row; `kind` selects the output.

    One that is `alone` processes each image of its input separately, as detectors do, and counts the images.
    """

    def __init__(self, monkeypatch, kind="scores", each=1.0, channels=24, alone=False):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.each, self.alone, self.clock, self.batches = kind, each, alone, [0.0], [0]
        monkeypatch.setattr(time, "monotonic", lambda: self.clock[0])
        self.features = nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1), nn.BatchNorm2d(channels), nn.ReLU())
        self.features[1].running_mean.normal_()
        self.head = nn.Conv2d(channels, 4, 1)
        self.eval()

    def forward(self, x):
        self.clock[0] += self.each * len(x)
        self.batches.append(len(x))
        features = self.features(x)
        if self.alone and len(features) != len(x):
            raise RuntimeError("one list of anchors for each image")
        maps = self.head(features)
        pooled = maps.mean((2, 3))
        if self.kind == "boxes":
            return [{"scores": row.sigmoid(), "labels": torch.arange(4), "boxes": torch.zeros(4, 4)} for row in pooled]
        return {"out": maps} if self.kind == "masks" else pooled

    def restart(self, name):
        """Find layers and layouts and check the rows, once per network, which a budget does not include."""
        METHODS[name].function(self, images(), TARGETS[self.kind], budget=1e-3, **options(name))
        self.clock[0], self.batches[1:] = 0.0, []


def images(count=1):
    return torch.rand(count, 3, 20, 16, generator=torch.Generator().manual_seed(0))


def options(name):
    return SMALL.get(name, {}) | ({"layer": "features"} if METHODS[name].takes_layer else {})


@pytest.mark.sample
@pytest.mark.parametrize("name", LONG)
def test_a_budget_ends_within_one_batch(name, monkeypatch):
    """Setup passes and findings count too. After the budget at most one batch runs, here one row per image."""
    for kind, target in TARGETS.items():
        net, seen = Slow(monkeypatch, kind), []
        net.restart(name)
        given = options(name) | ({"precision": "auto"} if name in ("ss_cam", "sess") else {})
        note = {"progress": lambda partial, net=net, seen=seen: seen.append(net.clock[0])}
        found = explain(name, net, images(2), target, budget=40.0, **note, **given)
        assert net.clock[0] <= 40 + 2 * 2, (net.clock, net.batches)
        assert net.clock[0] > 20 or len(seen) < 2, "the budget is used"
        assert len(found.map) == 2 and found.map.isfinite().all(), kind

    net = Slow(monkeypatch, each=0.01)
    net.restart(name)
    METHODS[name].function(net, images(), 1, budget=0.7, **options(name))
    assert net.clock[0] <= 0.7 + 0.12, "a full batch takes half a second; the last one is smaller"


def test_the_checks_of_a_network_do_not_use_up_the_budget(monkeypatch):
    """They run once for each network; here they take longer than the budget."""
    net, seen = Slow(monkeypatch), []
    METHODS["rise"].function(net, images(), 1, batch_size=1, budget=3.0, progress=lambda p: seen.append(p.done))
    assert len(seen) > 1 and net.clock[0] > 6


def test_a_network_that_runs_image_by_image_does_not_get_all_channels(monkeypatch):
    """The part after the layer does not accept a separate batch: each channel costs a full pass."""
    net = Slow(monkeypatch, "boxes", each=0.1, channels=60, alone=True)
    net.restart("ablation_cam")
    METHODS["ablation_cam"].function(net, images(), TARGETS["boxes"], layer="features", budget=3.0)
    assert max(net.batches) < 60 and net.clock[0] <= 3.0 + 0.8


# Batch sizes

CPU = torch.device("cpu")


def test_a_chunk_takes_half_a_second_and_a_slow_network_gets_a_few_rows(monkeypatch):
    def seconds(number):
        return Cost(round(number / Cost(1).seconds))

    for number, rows in ((0.01, 32), (0.6, 2)):
        assert Estimate(seconds(number), Cost(), 1, CPU).rows(1, sys.maxsize) == rows
    # Each chunk runs the layers before the ablated one again, so few large chunks are fastest if these are slow.
    assert Estimate(seconds(3.01), seconds(3), 1, CPU).rows(1, sys.maxsize, is_suffix=True) == 512
    # Forward passes keep a few tensors, backward passes all of them; half of the free memory may be taken.
    monkeypatch.setattr(batch_size, "free", lambda device: 2 * 1024**2)
    limited = Estimate(Cost(1, written=2**18, largest=2**14), Cost(), 1, torch.device("meta"))
    assert (limited.rows(1, 10**6), limited.rows(2, 10**6)) == (16, 4)


def test_batches_are_limited_by_the_page_and_to_reused_memory(monkeypatch):
    """Larger tensors use fresh pages in every layer; those of bfloat16 have half the size."""
    for limit, kept, precision, rows in ((5, 99, "float32", 5), (99, 6, "float32", 6), (99, 6, "bf16", 12)):
        monkeypatch.setattr(batch_size, "reused_bytes", kept * 4 * 24 * 10 * 8)
        net = Slow(monkeypatch, each=1e-9)
        METHODS["rise"].function(net, images(), 1, samples=20)  # the first call runs other batches
        net.batches.clear()
        with largest_batch(limit):
            METHODS["rise"].function(net, images(), 1, samples=20, precision=precision)
        assert max(net.batches) == rows


def test_the_first_map_only_imports_torch_and_freed_memory_is_kept_if_the_c_library_supports_it():
    """In a separate process. A dispatch mode imports torch._dynamo with its first operation, which took seconds."""
    lines = """
import sys, torch, resource
network = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
images = torch.rand(1, 3, 24, 32)
network(images.clone().requires_grad_()).sum().backward()
known = set(sys.modules)
import explainers
explainers.grad_cam(network, images, 0)
print(len({"torch._dynamo", "numpy"} & (set(sys.modules) - known)))
from explainers.call import batch_size as memory
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096 if sys.platform == "linux" else 0
before = memory.reused_bytes
print(explainers.keep_freed_memory(), before, memory.reused_bytes)
for _ in range(9): torch.ones(20_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(20_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
used = resident()
print(explainers.release_freed_memory(), used - resident())
"""
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    imported, kept, before, after, faults, is_released, released = done.stdout.split()
    assert imported == "0"
    assert kept == str(sys.platform == "linux" and os.confstr("CS_GNU_LIBC_VERSION") is not None)
    assert int(before) == 12 * 2**20 and int(after) == (32 if kept == "True" else 12) * 2**20
    assert kept == "False" or int(faults) < 500, "of about 20,000 pages"
    assert is_released == kept and (kept == "False" or int(released) > 70_000_000)


# Errors of single rows


def petabyte(*_):
    """Raise the error of the CPU allocator."""
    return torch.empty(2**50, dtype=torch.uint8).fill_(1)


def test_an_error_of_one_row_is_raised_unless_the_network_may_need_its_batch_size():
    for error in (torch.OutOfMemoryError("full"), ValueError("of the caller")):
        with pytest.raises(type(error), match=str(error)):
            Loop().run_in_halves(Mock(side_effect=error), torch.zeros(4, 1), [0] * 4)
    for error in (RuntimeError("shape"), ValueError("rows"), IndexError("5"), BadTarget("4 for 1")):
        assert retry_with_repeated_batch(Mock(side_effect=error), lambda: 7) == 7, error
    # The repeated batch would need even more memory, and our own errors would only occur a second time.
    for error in (torch.OutOfMemoryError("full"), petabyte, LayerNotFound("no such layer")):
        with pytest.raises((RuntimeError, LayerNotFound)):
            retry_with_repeated_batch(Mock(side_effect=error), lambda: 7)


# Progress, layers next to a skip connection, points on small images


def test_progress_runs_outside_of_the_call():
    """User code there, with the same model in another mode, is a separate call and leaves no findings."""
    net, images = residual(), random_images()
    expected, inside = grad_cam(net, images, 2, layer="layer1"), []

    def report(partial):
        net.train()
        inside.append(grad_cam(net, images, 2, layer="layer1"))
        net.eval()

    e = explain("score_cam", net, images, 1, layer="layer2", progress=report)

    assert e.layer == "layer2" and e.target == [1] * len(images)
    assert inside and all(torch.equal(map, expected) for map in inside)


@pytest.mark.parametrize("run", [METHODS["occlusion"], lambda *given, **call: explain("occlusion", *given, **call).map])
def test_partial_maps_also_have_a_row_for_an_image_that_is_not_finite(run):
    images, seen = random_images(), []
    images[1, 0, 0, 0] = torch.nan
    found = run(residual(), images, 1, window=4, progress=seen.append)
    torch.testing.assert_close(seen[-1].map, found, equal_nan=True)
    assert found.isnan().all((1, 2)).tolist() == [False, True, False]


class Skip(Conv):
    """A network with a concatenating skip connection and an optional second image."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        features = self.first(x).relu()
        skip = features if other is None else self.first(other).relu()
        return self.head(torch.cat([skip, self.second(features).relu()], 1)[:, 2:10].mean((2, 3)))


@pytest.mark.parametrize("name", ["ablation_cam", "layer_integrated_gradients"])
def test_a_function_runs_layers_beside_a_skip_connection(name: str) -> None:
    net, images, other = Skip(), lights(), lights(3)[2:]

    def compute(**options: object) -> Tensor:
        return call(name, net, images, 1, layer="second", **options)

    assert torch.equal(compute(), compute(forward=lambda batch: net(batch)))
    with_other = compute(forward=lambda batch: net(batch, other.expand(len(batch), -1, -1, -1)))
    assert with_other.isfinite().all() and with_other.shape == compute().shape
