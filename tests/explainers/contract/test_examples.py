"""The `Example` at the end of every public function's docstring runs and gives the output shown.

In an example `model` is torchvision's resnet18, `vit` its vit_b_16, `clip` a model with an image and a text encoder,
`detector` a detector and `images` one image of 224 px, normalized. The networks here have the names and the shapes of
those, and a thousandth of their operations.
"""

from __future__ import annotations

import copy
import doctest
import inspect
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import explainers
from tests.support.nets import Written
from tests.support.two_encoders import TwoEncoders

pytestmark = pytest.mark.sample

FUNCTIONS = [name for name in explainers.__all__ if inspect.isfunction(getattr(explainers, name))]
RUNNER = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def stage(channels: int, stride: int) -> nn.Sequential:
    width = 64 if stride == 1 else channels // 2
    conv = nn.Conv2d(width, channels, stride, stride, groups=width, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class ResNet18(nn.Module):
    """Layers of the names and output shapes of torchvision's resnet18."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 64, 2, 2, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(2)
        self.layer1, self.layer2, self.layer3, self.layer4 = stage(64, 1), stage(128, 2), stage(256, 2), stage(512, 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        x = self.layer4(self.layer3(self.layer2(x)))
        return self.fc(self.avgpool(x).flatten(1))


def detections(_: nn.Module, images: Tensor) -> list[dict[str, Tensor]]:
    """One box per image, in the center; its score is the mean brightness there."""
    box, label = torch.tensor([[56.0, 56.0, 168.0, 168.0]]), torch.tensor([17])
    means = images[:, :, 56:168, 56:168].mean((1, 2, 3)).sigmoid()
    return [{"boxes": box, "labels": label, "scores": score[None]} for score in means]


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """The names that an example may use without importing them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, detector, images = ResNet18().eval(), Written(detections), torch.randn(1, 3, 224, 224)
        vit = torchvision.models.VisionTransformer(224, 16, 12, 12, 24, 24, num_classes=1000).eval()
        nn.init.normal_(vit.heads.head.weight)
        clip = TwoEncoders().eval()
    given = {"model": model, "vit": vit, "clip": clip, "detector": detector, "images": images, "torch": torch}
    return given | {name: getattr(explainers, name) for name in explainers.__all__} | {"explainers": explainers}


def example_of(name: str) -> str:
    """The docstring's last part, from its `Example` on, of a public function or of a metric's formula."""
    found = explainers.METRICS[name].function if name in explainers.METRICS else getattr(explainers, name)
    return (inspect.getdoc(found) or "").partition("\nExample\n")[2]


def test_every_public_function_is_found() -> None:
    assert set(explainers.METHODS) <= set(FUNCTIONS) and "capture" in FUNCTIONS


@pytest.mark.parametrize("name", [*FUNCTIONS, *explainers.METRICS])
def test_the_example_runs_and_prints_its_output(name: str, names: dict[str, Any]) -> None:
    own = names | {"model": copy.deepcopy(names["model"])}  # some write gradients
    example = doctest.DocTestParser().get_doctest(example_of(name), own, name, None, 0)
    output: list[str] = []

    outcome = RUNNER.run(example, out=output.append)

    called = name if name in explainers.METRICS else f"{name}("
    assert called in "".join(each.source for each in example.examples), "an Example that calls the function"
    assert any(each.want for each in example.examples), "a result is shown"
    assert outcome.failed == 0, "".join(output)
