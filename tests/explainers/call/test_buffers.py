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
from explainers import explain, saliency
from tests.support.kinds import WRITING, Observed
from tests.support.traces import nothing_left

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 3
MAPS = torch.rand(2, 16, 16, generator=torch.Generator().manual_seed(1))


def fails(net: nn.Module) -> None:
    with pytest.raises(ZeroDivisionError):
        saliency(net, IMAGES, 1, forward=lambda images: net(images) / (1 // 0))


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
    "forward=": lambda net: saliency(net, IMAGES, 1, forward=lambda images: net(images)),
    "a failing forward=": fails,
    "randomization_test": lambda net: explainers.randomization_test(net, IMAGES, "saliency", seeds=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_leaves_all_buffers_as_they_were(call: str) -> None:
    """Also in training mode, in which a function that runs the model itself is refused."""
    trained = [] if "forward=" in call else [Observed().train()]
    for net in [*(WRITING[kind]() for kind in ("in place", "inside", "replaced", "resized")), *trained]:
        for _ in range(2):
            with nothing_left(net, IMAGES):
                CALLS[call](net)


def codes(net: nn.Module, **options: Any) -> set[str]:
    found = explain("grad_cam", net, IMAGES, 1, layer="conv", **options).findings
    return {finding.code for row in found for finding in row}


def test_the_map_is_that_of_a_pass_with_the_buffers_of_the_model() -> None:
    net = Observed()
    for image in IMAGES.split(1):
        frozen = Observed("none")
        frozen.size.copy_(0.9 * net.size + 0.1 * image.abs().mean())
        torch.testing.assert_close(saliency(net, image, 1), saliency(frozen, image, 1), rtol=1e-4, atol=1e-7)


def test_only_a_network_that_writes_has_a_finding_also_if_it_starts_to() -> None:
    """The new values depend on the image, but only the guard reads them: they are no decision."""
    net = Observed("none")
    assert [codes(net) for _ in range(3)] == [set()] * 3
    net.update = "in place"
    assert "buffers_written" in codes(net) | codes(net)
    assert float(net.size) == 1 and int(net.count) == 0
    for update in ("in place", "replaced"):
        assert codes(Observed(update)) == {"buffers_written", "rows_depend"}


def test_statistics_that_training_in_another_thread_updates_are_not_restored() -> None:
    """The call runs a copy, so it does not undo what the other thread writes."""
    net, reached, go_on = Observed(), threading.Event(), threading.Event()

    def watch(step: Any) -> None:
        reached.set()
        go_on.wait(10)

    call = threading.Thread(target=lambda: explainers.occlusion(net, IMAGES, 1, window=8, batch_size=1, progress=watch))
    call.start()
    assert reached.wait(30)
    net.size.fill_(5.0)
    go_on.set()
    call.join()
    assert float(net.size) == 5.0


def test_a_network_that_counts_its_passes_is_refused_for_that_reason() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.passes = nn.Linear(3, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            return self.head(x.mean((2, 3))) * self.passes

    for method in ("lrp", "deep_lift"):
        with pytest.raises(explainers.UnsupportedOperation, match="from pass to pass, even with fixed seeds"):
            explain(method, Counting().eval(), IMAGES, 1)
