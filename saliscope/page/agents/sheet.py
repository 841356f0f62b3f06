"""Images for agents: channels as numbered tiles, and a PNG or JPEG of limited size."""

from __future__ import annotations

import math

import torch
from PIL import Image, ImageDraw, ImageFont

from explainers import color_map
from saliscope.images import pixels
from saliscope.page.components.thumbnails import thumbnails

TILE, GAP, LINE = 112, 8, 16
"""Pixels of the longer side of a tile, between tiles, and of the line with its number."""
COLUMNS = 8
LARGEST = 512 * 1024
"""Bytes of a PNG; larger images are sent as JPEG, because programs of agents limit the size of a result to 1 MB."""
QUALITY = 90


def draw_channels(maps: torch.Tensor, numbers: list[int]) -> Image.Image:
    """Draw channels [k, h, w] as tiles, each from black to bright in its own range, with its number above it."""
    planes, _, _ = thumbnails(maps, TILE)
    colored = color_map("magma")[planes.long()].numpy()
    scale = TILE / max(planes.shape[1:])
    height, width = (max(1, round(side * scale)) for side in planes.shape[1:])
    step = max(width, 40) + GAP  # as wide as a number of five digits
    columns = min(len(numbers), max(COLUMNS // 2, min(COLUMNS, math.isqrt(len(numbers)))))
    rows = -(-len(numbers) // columns)
    image = Image.new("RGB", (columns * step + GAP, rows * (height + LINE + GAP) + GAP), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(12)
    for place, (number, tile) in enumerate(zip(numbers, colored, strict=True)):
        left, top = GAP + place % columns * step, GAP + place // columns * (height + LINE + GAP)
        draw.text((left, top), str(number), "black", font)
        image.paste(Image.fromarray(tile).resize((width, height), Image.Resampling.NEAREST), (left, top + LINE))
    return image


def encode(image: Image.Image) -> tuple[bytes, str]:
    """Return an image as PNG, or as JPEG if that is too large, and its media type."""
    data = pixels.encode(image, "PNG")
    if len(data) <= LARGEST:
        return data, "image/png"
    return pixels.encode(image.convert("RGB"), "JPEG", quality=QUALITY), "image/jpeg"
