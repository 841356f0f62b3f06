"""Titles of torchvision's networks as their papers write them: `resnext50_32x4d` is ResNeXt-50 32x4d."""

from __future__ import annotations

import re

PATTERNS: tuple[tuple[str, str], ...] = (
    (r"alexnet", "AlexNet"),
    (r"convnext_(\w+)", "ConvNeXt {}"),
    (r"densenet(\d+)", "DenseNet-{}"),
    (r"efficientnet_b(\d)", "EfficientNet-B{}"),
    (r"efficientnet_v2_(\w)", "EfficientNetV2-{:upper}"),
    (r"googlenet", "GoogLeNet"),
    (r"inception_v3", "Inception v3"),
    (r"maxvit_(\w)", "MaxViT-{:upper}"),
    (r"mnasnet(\d)_(\d+)", "MNASNet {}.{}"),
    (r"mobilenet_v2", "MobileNetV2"),
    (r"mobilenet_v3_(\w+)", "MobileNetV3 {}"),
    (r"regnet_([xy])_(\d+)_(\d+)gf", "RegNet{:upper}-{}.{}GF"),
    (r"regnet_([xy])_(\d+)([gm]f)", "RegNet{:upper}-{}{:upper}"),
    (r"resnet(\d+)", "ResNet-{}"),
    (r"resnext(\d+)_(\w+)", "ResNeXt-{} {}"),
    (r"shufflenet_v2_x(\d)_(\d)", "ShuffleNetV2 {}.{}x"),
    (r"squeezenet1_(\d)", "SqueezeNet 1.{}"),
    (r"swin_v2_(\w)", "Swin V2-{:upper}"),
    (r"swin_(\w)", "Swin-{:upper}"),
    (r"vgg(\d+)", "VGG-{}"),
    (r"vgg(\d+)_bn", "VGG-{} BN"),
    (r"vit_(\w)_(\d+)", "ViT-{:upper}/{}"),
    (r"wide_resnet(\d+)_(\d)", "Wide ResNet-{}-{}"),
)


def title_of(name: str) -> str:
    """The title of `network` or `network:weights`; weights other than the default ones follow in brackets."""
    network, _, weights = name.partition(":")
    for pattern, template in PATTERNS:
        if match := re.fullmatch(pattern, network):
            title = template.format(*map(_Word, match.groups()))
            return f"{title} ({weights.removeprefix('IMAGENET1K_').replace('_', ' ')})" if weights else title
    return name


class _Word(str):
    """Text with the format `{:upper}`."""

    def __format__(self, spec: str) -> str:
        return self.upper() if spec == "upper" else str(self)
