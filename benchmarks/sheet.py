"""A contact sheet of every method on two photographs: `python -m benchmarks.sheet --out sheet.png`.

Each map is drawn over what the network saw, at the options that a method has by itself, for the class that the network
thinks most likely. Below stands how long it took and what the library itself has to say about the map; a method that
cannot explain the network says why.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

import explainers
from models import Model, load_model

ROOT = Path(__file__).resolve().parent.parent
PHOTOS = ("coffee", "cat")
CELL, GAP, TEXT, ACROSS = 168, 10, 86, 4
SECONDS = 10.0
"""What a long method may take for one map; it then gives its best one so far."""
INK, FAINT, PAPER = (20, 20, 24), (96, 96, 104), (255, 255, 255)


def photograph(name: str) -> Image.Image:
    """An example photograph that ships with the project."""
    return Image.open(next((ROOT / "assets" / "examples").glob(f"{name}.*"))).convert("RGB")


def draw_map(model: Model, photo: Image.Image, method: explainers.Method, **options: Any) -> tuple[Image.Image, str]:
    """(the overlay, what is to be said about it)."""
    seen, images = model.crop(photo), model.prepare(photo)
    if method.long:
        options = {"budget": SECONDS, **options}
    began = time.perf_counter()
    found = explainers.explain(method.name, model.network, images, **options)
    seconds = time.perf_counter() - began
    picture = explainers.overlay(seen, found.map[0]).resize((CELL, CELL), Image.Resampling.LANCZOS)
    said = "; ".join(finding.code.replace("_", " ") for finding in found.findings[0])
    return picture, f"{seconds:.2f} s" + (f" · {said}" if said else "")


def blank() -> Image.Image:
    """Where there is no map."""
    return Image.new("RGB", (CELL, CELL), (236, 236, 240))


def entry(model: Model, method: explainers.Method, photos: list[Image.Image], **options: Any) -> Image.Image:
    """One method: its title, a map for each photograph, and a line for each."""
    width = len(photos) * (CELL + GAP) - GAP
    sheet = Image.new("RGB", (width, CELL + TEXT), PAPER)
    pen, small = ImageDraw.Draw(sheet), ImageFont.load_default(10)
    pen.text((0, 0), f"{method.title}  ({method.name})".replace("×", "x"), INK, ImageFont.load_default(12))
    reason = (method.applies(model.network) or "").partition(". ")[0]
    for column, photo in enumerate(photos):
        if method.returns == "channels":
            picture, line = blank(), "one value a channel, not a map"
        elif reason:
            picture, line = blank(), f"not for this network: {reason}"
        else:
            try:
                picture, line = draw_map(model, photo, method, **options)
            except explainers.ExplainerError as refusal:
                picture, line = blank(), f"refused: {refusal}"
        left = column * (CELL + GAP)
        sheet.paste(picture, (left, 18))
        pen.multiline_text((left, CELL + 22), "\n".join(textwrap.wrap(line, 30)[:5]), FAINT, small)
    return sheet


def contact_sheet(model: Model, methods: list[explainers.Method], photos: list[Image.Image]) -> Image.Image:
    """All entries, `ACROSS` in a row."""
    entries = []
    for method in methods:
        entries.append(entry(model, method, photos))
        print(method.name, flush=True)
    width, height = entries[0].size
    rows = -(-len(entries) // ACROSS)
    sheet = Image.new("RGB", (ACROSS * (width + 3 * GAP), rows * (height + GAP) + GAP), PAPER)
    for index, one in enumerate(entries):
        row, column = divmod(index, ACROSS)
        sheet.paste(one, (GAP + column * (width + 3 * GAP), GAP + row * (height + GAP)))
    return sheet


def main() -> None:
    """Draw the sheet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sheet", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("sheet.png"))
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--photos", nargs="+", default=list(PHOTOS))
    parser.add_argument("--only", default="", help="only methods whose name holds this text")
    given = parser.parse_args()
    methods = [each for each in explainers.METHODS.values() if given.only in each.name]
    contact_sheet(load_model(given.model), methods, [photograph(name) for name in given.photos]).save(given.out)


if __name__ == "__main__":
    main()
