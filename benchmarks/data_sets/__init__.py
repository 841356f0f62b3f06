"""Runs over data sets: their speed compared with forward passes, and their memory."""

import io

from PIL import Image


def decode(data: bytes) -> Image.Image:
    """Decode without the guard of the page; worker processes import this module."""
    return Image.open(io.BytesIO(data)).convert("RGB")
