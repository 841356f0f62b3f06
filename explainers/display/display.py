"""`Display`: HTML that a notebook shows as the result of a cell, and its parts: tables, sentences, names of classes."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from explainers.errors import wrong_type

if TYPE_CHECKING:
    from PIL import Image

NO_PILLOW = "Maps are drawn with Pillow, which is not installed. Run: pip install pillow"
PADDING = 12
"""Pixels between images."""
OF_TARGETS = re.compile(r"\b(class_|classes|against|labels)=(\d+|\([\d, ]+\))")
IN_SENTENCES = re.compile(r"\bclass (\d+)", re.IGNORECASE)


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
        return self._repr_mimebundle_().get("text/html")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return what notebooks show: the display, and the text; only the text if the display needs Pillow."""
        try:
            shown = self.display()._repr_mimebundle_()
        except ImportError:
            shown = {}
        return shown | {"text/plain": repr(self)}


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


def table_html(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table; columns of text are aligned left, numbers right, and missing values are empty."""
    is_text = [any(isinstance(row[k], str) for row in rows) for k in range(len(heads))]

    def line(tag: str, row: Sequence[Any]) -> str:
        kinds = [' class="saliscope-text"' if left else "" for left in is_text]
        cells = (f"<{tag}{kind}>{escape(_text(value))}</{tag}>" for kind, value in zip(kinds, row, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', heads)}</thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else "not measured" if math.isnan(value) else f"{value:.4g}"


def findings_html(sentences: Iterable[str]) -> str:
    """Return findings as paragraphs with a mark."""
    return "".join(f'<p class="saliscope-finding">{escape(each)}</p>' for each in sentences)


def folded(title: str, content: str) -> str:
    """Return content that a click on the title shows."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def paragraphs(lines: Sequence[str]) -> str:
    """Return lines of text as paragraphs."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def check_labels(labels: object) -> None:
    """Check the names of classes, which are found by index.

    Errors   WrongType
    """
    is_list = hasattr(labels, "__len__") and hasattr(labels, "__getitem__")
    if labels is not None and (not is_list or isinstance(labels, (str, bytes, Tensor))):
        raise wrong_type("labels", labels, "a list with the name of each class")


def class_name(index: int, labels: Sequence[str] | None) -> str:
    """Return the name of a class with its index, "tabby (class 281)", or "class 281" without a name."""
    known = labels is not None and 0 <= index < len(labels)
    return f"{labels[index]} (class {index})" if known and labels is not None else f"class {index}"


def target_name(target: list[int] | str | None, labels: Sequence[str] | None) -> str:
    """Return the explained classes, or the text of a target, with the names of its classes."""
    if target is None:
        return "no class"
    if isinstance(target, str):

        def name(found: re.Match[str]) -> str:
            return f"{found[1]}=" + re.sub(r"\d+", lambda index: class_name(int(index[0]), labels), found[2])

        return target if labels is None else OF_TARGETS.sub(name, target)
    names = list(dict.fromkeys(class_name(index, labels) for index in target))
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def name_classes(sentence: str, labels: Sequence[str] | None) -> str:
    """Replace "class 281" in a sentence by the name of the class."""
    if labels is None:
        return sentence

    def name(found: re.Match[str]) -> str:
        index = int(found[1])
        return class_name(index, labels) if index < len(labels) else found[0]

    return IN_SENTENCES.sub(name, sentence)


def has_pillow() -> bool:
    """Return whether images can be encoded."""
    return importlib.util.find_spec("PIL") is not None


def image_address(image: Image.Image) -> str:
    """Encode an image as the address of a JPEG file, in place."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def png(image: Image.Image) -> bytes:
    """Encode an image as a PNG file with 256 colors, which is a third as large as one with all colors."""
    file = io.BytesIO()
    image.convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return file.getvalue()


def packed_map(values: Tensor) -> dict[str, Any]:
    """Encode a map [h, w] for `floats` of saliscope/page/wire.js.

    Small maps are exact (float32). Others are float16 relative to their maximum: 11 bits of each value.
    """
    values = values.detach().to("cpu", torch.float32)
    packed: dict[str, Any] = {"h": values.shape[0], "w": values.shape[1], "dtype": "float32"}
    if values.numel() > 64 * 64:
        scale = float(values[values.isfinite()].abs().max()) if bool(values.isfinite().any()) else 0.0
        packed |= {"dtype": "float16", "scale": scale or 1.0}
        values = (values / (scale or 1.0)).half()
    data = bytes(values.contiguous().view(torch.uint8).flatten().tolist())
    return packed | {"b64": base64.b64encode(data).decode("ascii")}


def script_json(value: object) -> str:
    """Encode a value as JSON inside a script element, which no text in it can end."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def escape(text: object) -> str:
    """Encode text for HTML, also inside attributes."""
    return html.escape(str(text))


def style() -> str:
    """Return the style sheet of all displays as an element."""
    return f"<style>{Path(__file__).with_name('display.css').read_text(encoding='utf-8')}</style>"
