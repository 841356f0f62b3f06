"""Calls leave buffers as they were, also if the forward pass writes to them, and every pass finds the same values.

`test_kinds.py` compares the maps of all networks of this kind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import explain
from tests.support.kinds import WRITING, Observed
from tests.support.traces import nothing_left

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 3
MAPS = torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(1))


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "list_layers": lambda net: explainers.list_layers(net, IMAGES),
    "default_layer": lambda net: explainers.default_layer(net, IMAGES),
    "describe": lambda net: explainers.describe(net, IMAGES),
    "evaluate": lambda net: explainers.evaluate(net, IMAGES, MAPS, steps=2, controls=False),
    "compare_models": lambda net: explainers.compare_models(net, net, IMAGES),
    "intervene": lambda net: explainers.intervene(net, IMAGES),
    "smallest_region": lambda net: explainers.smallest_region(net, IMAGES, MAPS),
    "smooth": lambda net: explainers.smooth("saliency", sigma=0.1, samples=2)(net, IMAGES, 1),
    "patch_effects": lambda net: explainers.patch_effects(net, IMAGES, IMAGES.flip(0), 1),
    "forward=": lambda net: explain("saliency", net, IMAGES, 1, forward=lambda images: net(images)),
    "a failing forward=": lambda net: fails(net),
    "randomization_test": lambda net: explainers.randomization_test(net, IMAGES, "saliency", seeds=1),
}


def fails(net: nn.Module) -> None:
    def broken(images: Tensor) -> Tensor:
        net(images)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        explainers.saliency(net, IMAGES, 1, forward=broken)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_leaves_all_buffers_as_they_were(call: Callable[[nn.Module], Any]) -> None:
    for kind in ("in place", "inside", "replaced", "resized"):
        net = WRITING[kind]()
        for _ in range(2):
            with nothing_left(net, IMAGES):
                call(net)


def test_the_map_is_that_of_a_pass_with_the_buffers_of_the_model() -> None:
    net = Observed()
    for image in IMAGES.split(1):
        frozen = Observed("none")
        frozen.load_state_dict(net.state_dict())
        frozen.size.copy_(0.9 * net.size + 0.1 * image.abs().mean())
        expected = explainers.saliency(frozen, image, 1)
        torch.testing.assert_close(explainers.saliency(net, image, 1), expected, rtol=1e-4, atol=1e-7)


def test_a_network_that_does_not_write_has_no_finding_and_one_that_starts_to_is_noticed() -> None:
    net = Observed("none")
    for _ in range(3):
        assert not {finding.code for row in explain("saliency", net, IMAGES, 1).findings for finding in row}
    net.update = "in place"
    both = [explain("saliency", net, IMAGES, 1) for _ in range(2)]
    assert float(net.size) == 1 and int(net.count) == 0
    assert "buffers_written" in {finding.code for each in both for finding in each.findings[0]}


def test_statistics_that_training_in_another_thread_updates_are_not_restored() -> None:
    """The call runs a copy, so it does not undo what the other thread writes."""
    net = Observed()
    reached, go_on = threading.Event(), threading.Event()

    def watch(step: Any) -> None:
        reached.set()
        go_on.wait(10)

    call = threading.Thread(target=lambda: explainers.occlusion(net, IMAGES, 1, window=8, batch_size=1, progress=watch))
    call.start()
    assert reached.wait(30)
    with torch.no_grad():
        net.size.fill_(5.0)
    go_on.set()
    call.join()
    assert float(net.size) == 5.0


def test_a_model_in_training_mode_is_not_changed_either() -> None:
    net = nn.Sequential(Observed(), nn.BatchNorm1d(5)).train()
    with nothing_left(net):
        explain("saliency", net, IMAGES, 1)


def test_comparing_the_buffers_is_no_decision_of_the_network() -> None:
    """Their new values depend on the image; only the guard reads them."""
    for update in ("in place", "replaced"):
        for each in explain("grad_cam", Observed(update), IMAGES, 1, layer="conv").findings:
            assert {finding.code for finding in each} == {"buffers_written", "rows_depend"}


@pytest.mark.parametrize("method", ["lrp", "deep_lift"])
def test_a_network_that_counts_its_passes_is_refused_for_that_reason(method: str) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.passes = nn.Linear(3, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            return self.head(x.mean((2, 3))) * self.passes

    with pytest.raises(explainers.UnsupportedOperation, match="from pass to pass, even with fixed seeds"):
        explain(method, Counting().eval(), IMAGES, 1)
