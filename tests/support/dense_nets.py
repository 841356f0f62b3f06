"""A segmentation network and a detector that find blobs of pure color, with the outputs of torchvision's.

Their weights are set by hand: a channel for each of red, green and blue that is high where only this color is. As
models they are "blobs_segmentation" and "blobs_detection".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional

from explainers import connected_components
from saliscope.zoo import catalog
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model
from saliscope.zoo.sources import SOURCES
from saliscope.zoo.sources.source import ModelInfo, Source
from saliscope.zoo.sources.torchvision_dense import WholeImage

LABELS = ["__background__", "red blob", "green blob", "blue blob"]
SIDE = 96


class Backbone(nn.Sequential):
    """Three stages at strides 2, 4 and 8; [N, 3, H, W] in [0, 1] -> how much of each pure color is present."""

    def __init__(self) -> None:
        super().__init__(*(nn.Sequential(nn.Conv2d(3, 3, 2, 2), nn.ReLU()) for _ in range(3)))
        pure = torch.eye(3) * 2 - 1  # red - green - blue, and so on
        with torch.no_grad():
            for (layer, _), weights in zip(self, (pure, torch.eye(3), torch.eye(3)), strict=True):
                layer.weight.copy_((weights / 4)[:, :, None, None].expand(3, 3, 2, 2))
                layer.bias.zero_()


class Segmentation(nn.Module):
    """{"out": [N, 4, H, W]}: the background wins where no color exceeds the others by 0.25."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.classifier = Backbone(), nn.Conv2d(3, 4, 1)
        with torch.no_grad():
            self.classifier.weight.copy_(torch.cat([torch.zeros(1, 3), 8 * torch.eye(3)])[:, :, None, None])
            self.classifier.bias.copy_(torch.tensor([2.0, 0.0, 0.0, 0.0]))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        scores = self.classifier(self.backbone(x))
        return {"out": functional.interpolate(scores, x.shape[-2:], mode="bilinear", align_corners=False)}


class Red(Segmentation):
    """[N, 1, H, W], positive where the image is red: a binary network."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        scores = super().forward(x)["out"]
        return scores[:, 1:2] - scores[:, :1]


class Detection(nn.Module):
    """A box around each connected region of one color; scored by 1.25 times the channel's mean in it."""

    def __init__(self, least: float = 0.05) -> None:
        super().__init__()
        self.least, self.backbone = least, Backbone()

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        return [self._of(maps, images.shape[-2:]) for maps in self.backbone(images)]

    def _of(self, maps: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
        device = maps.device
        cell = torch.tensor([size[1] / maps.shape[2], size[0] / maps.shape[1]] * 2, device=device)
        boxes, labels, scores = [], [], []
        for label, plane in enumerate(maps, 1):
            inside = plane.detach().cpu() > self.least
            regions = connected_components(inside.long())
            for region in regions[inside].unique():
                rows, columns = torch.nonzero(regions == region, as_tuple=True)
                ends = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
                left, top, right, bottom = map(int, ends)
                boxes.append(torch.tensor([left, top, right, bottom], device=device) * cell)
                labels.append(label)
                scores.append((1.25 * plane[top:bottom, left:right].mean()).clamp(max=1))
        empty = maps.sum() * 0  # keeps an empty answer on the graph
        order = sorted(range(len(labels)), key=lambda k: -float(scores[k].detach()))
        return {
            "boxes": torch.stack([boxes[k] for k in order]) if order else torch.zeros(0, 4, device=device),
            "labels": torch.tensor([labels[k] for k in order], dtype=torch.long, device=device),
            "scores": torch.stack([scores[k] for k in order]) if order else empty.expand(0),
        }


class Blobs(Source):
    """Both as models."""

    NETWORKS: ClassVar = {"blobs_segmentation": Segmentation, "blobs_detection": Detection}

    def list(self) -> Iterator[ModelInfo]:
        for name in self.NETWORKS:
            task = name.partition("_")[2]
            yield ModelInfo(name, "Blobs", "by hand", 4, 0.1, SIDE, True, False, None, task)  # type: ignore[arg-type]

    def load(self, name: str, progress: Progress | None = None) -> Model:
        preparation = WholeImage(SIDE, SIDE, (0.0,) * 3, (1.0,) * 3)
        return Model(name, self.NETWORKS[name](), [*LABELS], preparation, name.partition("_")[2])  # type: ignore[arg-type]


def blobs(*shapes: tuple[str, tuple[int, int, int, int]], size: tuple[int, int] = (256, 192)) -> Image.Image:
    """An image with an ellipse of each color in each box, in pixels."""
    image = Image.new("RGB", size, (120, 120, 120))
    for color, box in shapes:
        ImageDraw.Draw(image).ellipse(box, fill=color)
    return image


def scene() -> Image.Image:
    """Two red blobs, the left one larger and paler, and a green one."""
    return blobs(("#ff2020", (16, 40, 112, 136)), ("#ff0000", (160, 24, 216, 80)), ("#00e000", (152, 112, 232, 176)))


def offer() -> None:
    """Put both models behind those that are listed already."""
    catalog.SOURCES = (*SOURCES, Blobs())
