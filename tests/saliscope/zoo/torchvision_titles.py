"""Titles of torchvision's networks as in their papers: `resnext50_32x4d` is ResNeXt-50 32x4d."""

from __future__ import annotations

import re

PATTERNS: tuple[tuple[str, str], ...] = (
    (r"alexnet", "AlexNet"),
    (r"convnext_(\w+)", "ConvNeXt {}"),
    (r"deeplabv3_(mobilenet_v3_large|resnet\d+)", "DeepLabV3 {:network}"),
    (r"densenet(\d+)", "DenseNet-{}"),
    (r"efficientnet_b(\d)", "EfficientNet-B{}"),
    (r"efficientnet_v2_(\w)", "EfficientNetV2-{:upper}"),
    (r"fasterrcnn_(mobilenet_v3_large|resnet50)_fpn", "Faster R-CNN {:network} FPN"),
    (r"fasterrcnn_(mobilenet_v3_large)_(320)_fpn", "Faster R-CNN {:network} {} FPN"),
    (r"fasterrcnn_(resnet50)_fpn_(v2)", "Faster R-CNN {:network} FPN {}"),
    (r"fcn_(resnet\d+)", "FCN {:network}"),
    (r"fcos_(resnet50)_fpn", "FCOS {:network} FPN"),
    (r"googlenet", "GoogLeNet"),
    (r"inception_v3", "Inception v3"),
    (r"lraspp_(mobilenet_v3_large)", "LR-ASPP {:network}"),
    (r"maskrcnn_(resnet50)_fpn", "Mask R-CNN {:network} FPN"),
    (r"maskrcnn_(resnet50)_fpn_(v2)", "Mask R-CNN {:network} FPN {}"),
    (r"maxvit_(\w)", "MaxViT-{:upper}"),
    (r"mnasnet(\d)_(\d+)", "MNASNet {}.{}"),
    (r"mobilenet_v2", "MobileNetV2"),
    (r"mobilenet_v3_(\w+)", "MobileNetV3 {}"),
    (r"regnet_([xy])_(\d+)_(\d+)gf", "RegNet{:upper}-{}.{}GF"),
    (r"regnet_([xy])_(\d+)([gm]f)", "RegNet{:upper}-{}{:upper}"),
    (r"resnet(\d+)", "ResNet-{}"),
    (r"resnext(\d+)_(\w+)", "ResNeXt-{} {}"),
    (r"retinanet_(resnet50)_fpn", "RetinaNet {:network} FPN"),
    (r"retinanet_(resnet50)_fpn_(v2)", "RetinaNet {:network} FPN {}"),
    (r"shufflenet_v2_x(\d)_(\d)", "ShuffleNetV2 {}.{}x"),
    (r"squeezenet1_(\d)", "SqueezeNet 1.{}"),
    (r"ssd(300)_(vgg16)", "SSD{} {:network}"),
    (r"ssdlite(320)_(mobilenet_v3_large)", "SSDlite{} {:network}"),
    (r"swin_v2_(\w)", "Swin V2-{:upper}"),
    (r"swin_(\w)", "Swin-{:upper}"),
    (r"vgg(\d+)", "VGG-{}"),
    (r"vgg(\d+)_bn", "VGG-{} BN"),
    (r"vit_(\w)_(\d+)", "ViT-{:upper}/{}"),
    (r"wide_resnet(\d+)_(\d)", "Wide ResNet-{}-{}"),
)


def title_of(name: str) -> str:
    """Return the title of `network` or `network:weights`; non-default weights follow in parentheses."""
    network, _, weights = name.partition(":")
    for pattern, template in PATTERNS:
        if match := re.fullmatch(pattern, network):
            title = template.format(*map(_Word, match.groups()))
            return f"{title} ({weights.removeprefix('IMAGENET1K_').replace('_', ' ')})" if weights else title
    return name


class _Word(str):
    """Text with the format specifiers `{:upper}` and `{:network}` (the title of a backbone)."""

    def __format__(self, spec: str) -> str:
        if spec == "network":
            return title_of(self)
        return self.upper() if spec == "upper" else str(self)
