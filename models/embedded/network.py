"""The embedded network: a small ReLU ResNet of torchvision's own blocks for 64x64 pictures.

A 3x3 stem without stride, a max-pool and a last stage without stride leave maps of 32, 16, 8 and 8 cells a side,
so that a class-activation map of so small a picture still has something to show.
"""

from __future__ import annotations

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

SIDE = 64
"""Height and width of the input in pixels."""

MEAN = (0.480, 0.448, 0.398)
STD = (0.277, 0.269, 0.282)
"""Channel means and deviations of the training pictures, values in [0, 1]."""


def build(classes: int) -> ResNet:
    """Return the untrained network with `classes` logits."""
    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=classes)
    network.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    network.layer4[0].conv1.stride = (1, 1)
    network.layer4[0].downsample[0].stride = (1, 1)
    network.layer4[0].stride = 1
    return network
