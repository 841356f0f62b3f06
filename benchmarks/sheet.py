"""Contact sheet of every method on a few images, to compare by eye: `python -m benchmarks.sheet --out sheet.jpg`.

Captions have the seconds and the codes of the findings. A method that does not apply has its reason.
"""

from __future__ import annotations

import argparse
import textwrap
import time
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

import explainers
from saliscope.zoo import Model, load_model

ROOT = Path(__file__).resolve().parent.parent
PHOTOS = ("coffee", "goldfish", "hopper", "cat")
SIDE, ACROSS, SECONDS = 150, 3, 10.0
"""Side of a map in pixels; methods per row; time budget of a long method for one map in seconds."""
GAP, HEAD, LINE, LINES = 4, 20, 12, 2
INK, FAINT, PAPER, BLANK = (20, 20, 24), (96, 96, 104), (255, 255, 255), (236, 236, 240)
Cell = tuple[Image.Image | None, str]
"""An image and its caption, which replaces a missing image."""


def open_image(name: str) -> Image.Image:
    """Open an example image of the project by name, or any image by path."""
    examples = {path.stem: path for path in (ROOT / "assets" / "examples").glob("*.jpg")}
    return Image.open(examples.get(name, Path(name))).convert("RGB")


def entry(model: Model, method: explainers.Method, photos: list[Image.Image], side: int = SIDE) -> Image.Image:
    """Draw one method: its title, and an overlay and a caption for each image."""
    reason = (method.applies(model.network) or "").partition(". ")[0]
    if method.returns == "channels":
        reason = "one value per channel, not a map"
    options: dict[str, Any] = {"budget": SECONDS} if method.long else {}
    cells: list[Cell] = []
    for photo in photos:
        start = time.perf_counter()
        try:
            if reason:
                raise explainers.BadOption(reason)
            found = explainers.explain(method.name, model.network, model.prepare(photo), **options)
        except explainers.ExplainerError as error:
            cells.append((None, str(error)))
            continue
        seconds = time.perf_counter() - start
        overlay = found.overlay(model.crop(photo).resize((side, side), Image.Resampling.LANCZOS))[0]
        findings = "; ".join(finding.code.replace("_", " ") for finding in found.findings[0])
        cells.append((overlay, f"{seconds:.2f} s" + (f" · {findings}" if findings else "")))
    return strip(f"{method.title}  ({method.name})", cells, side)


def strip(title: str, cells: list[Cell], side: int) -> Image.Image:
    """Draw images in a row below a title, each with its caption."""
    sheet = Image.new("RGB", (len(cells) * (side + GAP) - GAP, HEAD + side + LINES * LINE + 2 * GAP), PAPER)
    pen, small = ImageDraw.Draw(sheet), ImageFont.load_default(10)
    pen.text((0, 2), title.replace("×", "x"), INK, ImageFont.load_default(13))
    for column, (image, caption) in enumerate(cells):
        left = column * (side + GAP)
        sheet.paste(image or BLANK, (left, HEAD, left + side, HEAD + side))
        at, most = ((left, HEAD + side + 2), LINES) if image else ((left + GAP, HEAD + GAP), side // LINE)
        lines = textwrap.wrap(caption, max(10, side // 5))
        pen.multiline_text(at, "\n".join(lines[:most]), FAINT, small, spacing=1)
    return sheet


def contact_sheet(
    model: Model, methods: list[explainers.Method], photos: list[Image.Image], side: int = SIDE, across: int = ACROSS
) -> Image.Image:
    """Draw the crops of the images, then the methods, `across` in a row."""
    originals: list[Cell] = []
    for photo in photos:
        probability, label = model.network(model.prepare(photo)).softmax(1)[0].max(0)
        crop = model.crop(photo).resize((side, side), Image.Resampling.LANCZOS)
        originals.append((crop, f"{model.labels[int(label)]}, {100 * float(probability):.0f}%"))
    entries = [strip(f"Images, and the prediction of {model.name}", originals, side)]
    for method in methods:
        entries.append(entry(model, method, photos, side))
        print(method.name, flush=True)
    width, height = entries[0].size
    across = min(across, len(entries))
    rows = -(-len(entries) // across)
    sheet = Image.new("RGB", (across * (width + 3 * GAP) + GAP, rows * (height + GAP) + GAP), PAPER)
    for index, image in enumerate(entries):
        row, column = divmod(index, across)
        sheet.paste(image, (2 * GAP + column * (width + 3 * GAP), GAP + row * (height + GAP)))
    return sheet


def main() -> None:
    """Draw the sheet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sheet", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("sheet.jpg"), help="a .jpg or .png file")
    parser.add_argument("--model", default="auto")
    parser.add_argument("--photos", nargs="+", default=list(PHOTOS), help="names of examples, or paths")
    parser.add_argument("--only", nargs="+", default=[""], help="only methods whose name contains one of these texts")
    given = parser.parse_args()
    methods = [method for method in explainers.METHODS.values() if any(text in method.name for text in given.only)]
    photos = [open_image(name) for name in given.photos]
    contact_sheet(load_model(given.model), methods, photos).save(given.out, quality=88)


if __name__ == "__main__":
    main()
