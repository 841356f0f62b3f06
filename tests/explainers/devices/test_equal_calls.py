"""Equal calls give equal maps, bit by bit: after other calls, in another thread, and in another process."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from explainers import METHODS
from tests.support.calls import LONG, NAMES, small
from tests.support.nets import residual

ROOT = Path(__file__).resolve().parents[3]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 5),
    ).eval()  # fmt: skip


SHORT = [name for name in NAMES if name not in LONG]


def make(name: str) -> nn.Module:
    """A network for the method: some methods of one pass need average pooling and a linear head."""
    return network() if name in LONG else residual().float()


def images(count: int = 2, height: int = 32, width: int = 24) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(height))


def explain(name: str, net: nn.Module, x: Tensor) -> Tensor:
    layer = {"layer": "4"} if METHODS[name].takes_layer and isinstance(net, nn.Sequential) else {}
    return METHODS[name](net, x, 1, **small(name), **layer)


def digests(names: list[str]) -> dict[str, str]:
    """Return the hash of each method's map, computed in this order with one network."""
    net = network()
    return {name: hashlib.sha256(explain(name, net, images()).numpy().tobytes()).hexdigest() for name in names}


@pytest.mark.sample
@pytest.mark.parametrize("name", [*LONG, *SHORT])
def test_earlier_calls_do_not_change_a_map(name: str) -> None:
    """Profiles, fused copies and checks of rows are cached per network by the first call that needs them."""
    expected = explain(name, make(name), images())
    net = make(name)
    others = {"grad_cam": images(1), "rise": images(1, 48, 40), "smooth_grad": images(3)}
    for other, x in (*others.items(), (name, images(1))):
        explain(other, net, x)
    assert torch.equal(explain(name, net, images()), expected)
    assert torch.equal(explain(name, net, images()), expected)


@pytest.mark.slow
def test_another_process_gives_equal_maps_in_any_order() -> None:
    code = (
        "import json, sys, torch; torch.set_num_threads(1);"
        "from tests.explainers.devices.test_equal_calls import digests;"
        "print(json.dumps(digests(sys.argv[1:])))"
    )
    command, found = [sys.executable, "-c", code], []
    for names in (LONG, LONG[::-1]):
        found.append(json.loads(subprocess.run([*command, *names], capture_output=True, check=True, cwd=ROOT).stdout))
    assert found[0] == found[1]
