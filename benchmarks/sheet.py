"""A contact sheet of every method on several images: `python -m benchmarks.sheet --out sheet.jpg`.

Each map is drawn over the network's crop of the image, with the method's default options, for the predicted class.
Below it are the run time and the library's findings, or the reason why the method does not apply to the network.

python -m benchmarks.sheet --photos dog coffee holiday.jpg    examples by name, other images by path
python -m benchmarks.sheet --only cam lrp                     methods whose name contains one of these texts
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


def open_image(name: str) -> Image.Image:
    """Open an example image of the project by name, or any image by path."""
    examples = {path.stem: path for path in (ROOT / "assets" / "examples").glob("*.jpg")}
    return Image.open(examples.get(name, Path(name))).convert("RGB")


def draw_map(
    model: Model, photo: Image.Image, method: explainers.Method, side: int = SIDE, seconds: float = SECONDS
) -> tuple[Image.Image, str]:
    """Return the overlay and its caption."""
    seen, images = model.crop(photo), model.prepare(photo)
    options: dict[str, Any] = {"budget": seconds} if method.long else {}
    start = time.perf_counter()
    explanation = explainers.explain(method.name, model.network, images, **options)
    seconds_taken = time.perf_counter() - start
    overlay = explanation.overlay(seen.resize((side, side), Image.Resampling.LANCZOS))[0]
    findings = "; ".join(finding.code.replace("_", " ") for finding in explanation.findings[0])
    return overlay, f"{seconds_taken:.2f} s" + (f" · {findings}" if findings else "")


def entry(
    model: Model, method: explainers.Method, photos: list[Image.Image], side: int = SIDE, seconds: float = SECONDS
) -> Image.Image:
    """Draw one method: its title, and a map and a caption for each image."""
    reason = (method.applies(model.network) or "").partition(". ")[0]
    cells: list[tuple[Image.Image | None, str]] = []
    for photo in photos:
        if method.returns == "channels":
            cells.append((None, "one value per channel, not a map"))
        elif reason:
            cells.append((None, f"not for this network: {reason}"))
        else:
            try:
                cells.append(draw_map(model, photo, method, side, seconds))
            except explainers.ExplainerError as error:
                cells.append((None, f"error: {error}"))
    return strip(f"{method.title}  ({method.name})", cells, side)


def strip(title: str, cells: list[tuple[Image.Image | None, str]], side: int) -> Image.Image:
    """Draw images in a row below a title, each with its caption; for a missing image, the caption replaces it."""
    width = len(cells) * (side + GAP) - GAP
    sheet = Image.new("RGB", (width, HEAD + side + LINES * LINE + 2 * GAP), PAPER)
    pen, small = ImageDraw.Draw(sheet), ImageFont.load_default(10)
    pen.text((0, 2), title.replace("×", "x"), INK, ImageFont.load_default(13))
    for column, (image, caption) in enumerate(cells):
        left, top = column * (side + GAP), HEAD
        if image is None:
            sheet.paste(BLANK, (left, top, left + side, top + side))
            left, top, most = left + GAP, top + GAP, side // LINE
        else:
            sheet.paste(image, (left, top))
            top, most = top + side + 2, LINES
        lines = textwrap.wrap(caption, max(10, side // 5))
        pen.multiline_text((left, top), "\n".join(lines[:most]), FAINT, small, spacing=1)
    return sheet


def contact_sheet(
    model: Model,
    methods: list[explainers.Method],
    photos: list[Image.Image],
    *,
    side: int = SIDE,
    across: int = ACROSS,
    seconds: float = SECONDS,
) -> Image.Image:
    """Draw the crops of the images, then the methods, `across` in a row."""
    originals: list[tuple[Image.Image | None, str]] = []
    for photo in photos:
        seen = model.crop(photo).resize((side, side), Image.Resampling.LANCZOS)
        probabilities = model.network(model.prepare(photo)).softmax(1)[0]
        label = model.labels[int(probabilities.argmax())]
        originals.append((seen, f"{label}, {100 * float(probabilities.max()):.0f}%"))
    entries = [strip(f"Images, and the prediction of {model.name}", originals, side)]
    for method in methods:
        entries.append(entry(model, method, photos, side, seconds))
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
    parser.add_argument("--side", type=int, default=SIDE, help="side of a map in pixels")
    parser.add_argument("--across", type=int, default=ACROSS, help="methods per row")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time budget of a long method for one map")
    arguments = parser.parse_args()
    methods = [method for method in explainers.METHODS.values() if any(text in method.name for text in arguments.only)]
    photos = [open_image(name) for name in arguments.photos]
    sheet = contact_sheet(
        load_model(arguments.model),
        methods,
        photos,
        side=arguments.side,
        across=arguments.across,
        seconds=arguments.seconds,
    )
    sheet.save(arguments.out, quality=88)


if __name__ == "__main__":
    main()
