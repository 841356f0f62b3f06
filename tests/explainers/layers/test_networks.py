"""One or two networks of each package, as checked by `benchmarks.zoo`; `make zoo` has 180, and handwritten ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.zoo import checks
from benchmarks.zoo.networks import networks
from benchmarks.zoo.runner import Limits, examine

SAMPLE = ["timm cait_xxs24_224", "transformers ConvNextForImageClassification", "smp Unet resnet18"]
SAMPLE += ["torchvision mobilenet_v3_small"]
PACKAGES = {"smp": "segmentation_models_pytorch"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("name", SAMPLE)
def test_default_layer_layout_and_grad_cam_are_those_of_oracles(name: str) -> None:
    """Oracles: layers frozen, axes that rotate with the image and lit patches, a hook and autograd in float64."""
    package = name.partition(" ")[0]
    pytest.importorskip(PACKAGES.get(package, package))
    network = next(each for each in networks() if each.name == name)
    network = network if network.fixed else replace(network, sizes=((96, 64),))
    rows = list(examine(network, checks.FOR_EVERY_SIZE, Limits(check=60)))
    assert rows and all(row.verdict == "right" for row in rows), rows
