"""`Display`: HTML that a notebook shows as the result of a cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explainers.display.encoding import escape, png, style

if TYPE_CHECKING:
    from PIL import Image

NO_PILLOW = "Maps are drawn with Pillow, which is not installed. Run: pip install pillow"
PADDING = 12
"""Pixels between images."""


class Display:
    """HTML that a notebook shows as the result of a cell, and that `to_html` writes as a page.

    The HTML contains its images, scripts and styles: it needs no server and no network, and a saved notebook keeps it.
    Where scripts are blocked, static images remain. `text` is what `repr` returns, and `images` are shown by hosts that
    show no HTML.
    """

    def __init__(self, content: str, text: str, images: Sequence[Image.Image] = ()) -> None:
        self.content, self.text = content, text
        self._images = images

    @property
    def html(self) -> str:
        """The content with its style sheet."""
        return f'<div class="saliscope">{style()}{self.content}</div>'

    def to_html(self, path: str | Path, title: str = "Saliscope") -> None:
        """Write a page with this content."""
        page = (
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
            '<meta name="viewport" content="width=device-width">\n'
            "<style>body { margin: 24px; color-scheme: light dark; background: Canvas; color: CanvasText; }</style>\n"
            f"{self.html}\n</html>\n"
        )
        Path(path).write_text(page, encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return what notebooks show: HTML, and a PNG file for hosts without HTML, such as exports to PDF."""
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        return bundle | {"image/png": png(_in_rows(self._images))} if self._images else bundle

    def __repr__(self) -> str:
        return self.text


class Displayed:
    """A result that a notebook shows as its `display`, and `show` with the names of the classes."""

    def display(self, labels: Sequence[str] | None = None) -> Display:
        """Return what a notebook shows; `labels` are the names of the classes."""
        raise NotImplementedError

    def _repr_html_(self) -> str | None:
        return self.display().html

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self.display()._repr_mimebundle_()


def _in_rows(images: Sequence[Image.Image]) -> Image.Image:
    """Paste images next to each other, in rows of four or eight."""
    from PIL import Image  # optional: the library requires only torch

    columns = min(4, len(images)) if len(images) <= 16 else 8
    width, height = max(image.width for image in images), max(image.height for image in images)
    rows = math.ceil(len(images) / columns)
    whole = Image.new("RGB", (columns * (width + PADDING) - PADDING, rows * (height + PADDING) - PADDING), "white")
    for k, image in enumerate(images):
        whole.paste(image, (k % columns * (width + PADDING), k // columns * (height + PADDING)))
    return whole
