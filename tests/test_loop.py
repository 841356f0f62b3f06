"""The loop of long methods: batch sizes by measurement, budgets, and memory that runs out.

The clock is the network's own: it moves on by a second for each row of a forward pass, and nothing else takes time.
"""

import time

import pytest
import torch
from torch import nn

from explainers import METHODS, explain
from explainers.passes import loop as loops
from explainers.passes.loop import Loop, Rows, largest_batch

LONG = [name for name, each in METHODS.items() if each.long]
SMALL = {"xrai": {"steps": 8}, "extremal_perturbation": {"steps": 20}, "guided_integrated_gradients": {"steps": 12}}


class Clock:
    """Seconds that a network spends."""

    def __init__(self, monkeypatch):
        self.seconds, self.batches = 0.0, []
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)


class Slow(nn.Module):
    """A network whose clock moves on by a second for each row that it gets; `kind` says what it answers."""

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
    """Set-up passes count too; after the budget no more than a batch runs, which is a row for each image here."""
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


def explain_first(net, images, name, kind):
    """Default layers and layouts are found once for a network, which no budget can shorten."""
    METHODS[name].function(net, images, TARGETS[kind], budget=1e-3, **options(name))
