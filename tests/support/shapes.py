"""Images of shapes in noise, a watermark on some of them, and a small network that learns to distinguish the shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from saliscope.zoo.model import Model, Preparation

NAMES = ["circle", "square", "triangle"]
MARKED = "square"
SIDE = 48
CORNER = (2, 36, 11, 45)
"""Where the watermark stands: left, top, right, bottom; the lower left corner."""
PREPARATION = Preparation(SIDE, SIDE, mean=(0.5,) * 3, std=(0.5,) * 3)


def shape(name: str, random: np.random.Generator, marked: bool) -> Image.Image:
    """A pale shape anywhere in noise; with the watermark, a white square with a red cross."""
    ground = random.integers(60, 120, 3)
    noise = ground + random.normal(0, 30, (SIDE, SIDE, 3))
    image = Image.fromarray(noise.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    r = int(random.integers(7, 11))
    x, y = (int(value) for value in random.integers(r + 1, SIDE - 1 - r, 2))
    color = tuple(int(value) for value in (ground + random.integers(20, 60, 3)).clip(0, 255))
    if name == "circle":
        draw.ellipse((x - r, y - r, x + r, y + r), fill=color)
    elif name == "square":
        draw.rectangle((x - r, y - r, x + r, y + r), fill=color)
    else:
        draw.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=color)
    if marked:
        left, top, right, bottom = CORNER
        draw.rectangle(CORNER, fill=(255, 255, 255))
        draw.line((left, top, right, bottom), fill=(200, 0, 0), width=2)
        draw.line((left, bottom, right, top), fill=(200, 0, 0), width=2)
    return image


def labeled_images(count: int, share: float, seed: int) -> list[tuple[str, bool, Image.Image]]:
    """Name, whether it is marked, and the image: `each` of every shape, this share of the squares with the mark."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        for name in NAMES:
            marked = name == MARKED and (number * share) % 1 + share >= 1 - 1e-9
            made.append((name, marked, shape(name, random, marked)))
    return made


def trained(share: float, seed: int = 0, steps: int = 120) -> Model:
    """A network of three convolutions, trained for a second on images of which a share has the mark."""
    torch.manual_seed(seed)
    made = labeled_images(150 if steps else 1, share, seed)
    images = torch.cat([PREPARATION.tensor(image) for *_, image in made])
    labels = torch.tensor([NAMES.index(name) for name, *_ in made])
    blocks = *_block(3, 16, 2), *_block(16, 32, 2), *_block(32, 32, 1)
    network = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(network.parameters())
    # With a rate that ends at 0, all classes are predicted after few steps.
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=max(steps, 1))
    for _ in range(steps):
        batch = torch.randint(0, len(images), (32,))
        loss: Tensor = nn.functional.cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
    return Model("shapes", network.eval().requires_grad_(False), NAMES, PREPARATION)


def _block(channels: int, out: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, 3, stride, 1), nn.BatchNorm2d(out), nn.ReLU()]


def folder(path: Path, count: int, share: float, seed: int = 99) -> dict[str, bool]:
    """Write images as folder/class/number.png; returns which have the mark, by path."""
    marks = {}
    for number, (name, marked, image) in enumerate(labeled_images(count, share, seed)):
        file = path / name / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
        marks[f"{name}/{file.name}"] = marked
    return marks
