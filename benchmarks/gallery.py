"""Every method on the same four images: `python -m benchmarks.gallery` writes docs/gallery.md and docs/gallery/.

`--only NAME` computes the maps of single methods, and `--text` writes only the text. The text consists
of the page's texts and of measured results, so that each sentence is written once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Template
from PIL import Image

import explainers
from benchmarks import options
from benchmarks.faithfulness.measure import ROOT, amount, question
from saliscope.compute.methods.badges import table as verdicts_table
from saliscope.compute.methods.costs import table as costs_table
from saliscope.compute.methods.explanations import GUIDES
from saliscope.compute.methods.lines import GROUP_TITLES, LINES
from saliscope.zoo import Model, load_model

PAGE, FOLDER = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
IMAGES = ("coffee", "goldfish", "pair", "hopper")
SIDE, GAP, SECONDS = 160, 4, 60.0
"""Side of a map and the gap between maps in pixels; time budget of a slow method for one map in seconds."""
ELSEWHERE = {
    "vit_b_16": "It needs attention between tokens, which this network does not have: see "
    "[Vision transformer](notebooks/8_vision_transformer.ipynb).",
    "ssdlite320_mobilenet_v3_large": "It needs an object detector: see [Detection](notebooks/6_detection.ipynb).",
}
"""Why the built-in network has no maps of a method, by the network on which its cost was measured."""


def open_image(name: str) -> Image.Image:
    """Open an example image of the project by name, or any image by path."""
    examples = {path.stem: path for path in (ROOT / "assets" / "examples").glob("*.jpg")}
    return Image.open(examples.get(name, Path(name))).convert("RGB")


# The images


def strip(images: list[Image.Image], side: int = SIDE) -> Image.Image:
    """Draw images of the same size in a row."""
    row = Image.new("RGB", (len(images) * (side + GAP) - GAP, side), "white")
    for column, image in enumerate(images):
        row.paste(image.resize((side, side), Image.Resampling.LANCZOS), (column * (side + GAP), 0))
    return row


def maps(model: Model, method: explainers.Method, images: list[Image.Image], side: int = SIDE) -> Image.Image:
    """Draw the maps of a method over the crops of the images, each for its top class."""
    options: dict[str, Any] = {"budget": SECONDS} if method.long else {}
    drawn = []
    for image in images:
        found = explainers.explain(method.name, model.network, model.prepare(image), compare=False, **options)
        drawn.append(found.overlay(model.crop(image).resize((side, side), Image.Resampling.LANCZOS))[0])
    return strip(drawn, side)


def has_maps(method: explainers.Method) -> bool:
    """Return whether the built-in network has maps of this method."""
    return method.returns != "channels" and method.name not in costs_table()["elsewhere"]


def save(image: Image.Image, name: str) -> None:
    """Write an image of the gallery."""
    FOLDER.mkdir(exist_ok=True)
    image.save(FOLDER / f"{name}.webp", quality=80, method=6)


# The text


def page(predictions: str) -> str:
    """Return docs/gallery.md; `predictions` says what the network predicts for the images."""
    groups = {}
    for group, lines in LINES.items():
        groups[GROUP_TITLES[group]] = [(explainers.METHODS[name], line) for name, (line, _) in lines.items()]
    template = Template(Path(__file__).with_suffix(".md").read_text("utf-8"), keep_trailing_newline=True)
    values = {"network": "EfficientNet-Lite0", "seconds": f"{SECONDS:.0f}", "count": verdicts_table()["photographs"]}
    functions = {"maps": maps_of, "guide": guide, "question": question, "cost": cost, "verdict": verdict}
    return template.render(predictions=predictions, groups=groups, **values, **functions)


def maps_of(method: explainers.Method) -> str:
    """Return the link to the maps of a method, or the sentence that replaces it."""
    if has_maps(method):
        return f"![Maps of {method.title} for the four images]({FOLDER.name}/{method.name}.webp)"
    if method.returns == "channels":
        return "It returns one value for each channel and has no map."
    return ELSEWHERE[costs_table()["elsewhere"][method.name]]


def guide(method: explainers.Method) -> list[str]:
    """Return what high values mean, and the limits of a method."""
    words = {"target": "the class", "layer": "the layer", "grid": "7 × 7"}
    high, _, limits = (text.format(**words) for text in GUIDES[method.name])
    return [high, " ".join(filter(None, [limits, method.caution]))]


def cost(method: explainers.Method) -> str:
    """Return the forward passes of one map, and what the method needs."""
    passes, network = costs_table()["passes"][method.name], costs_table()["elsewhere"].get(method.name)
    needs = {"a layer": method.takes_layer, "a gradient": method.gradients}
    needed = " and ".join(word for word, needed in needs.items() if needed) or "only scores"
    return f"{amount(passes)} forward passes{f' of {network}' if network else ''}. Needs {needed}."


def verdict(method: explainers.Method) -> str:
    """Return the results of the method in the words of a verdict."""
    if method.family == "control":
        return "A control. It does not use the network."
    measured = verdicts_table()["methods"][method.name]
    compared = {control: each["verdict"] for control, each in measured.get("beside", {}).items()}
    if not compared:
        reason = measured.get("reason", "not measured")
        return "Not measured." if reason == "not measured" else f"Not measured: {reason}."
    clauses, depends = [explainers.describe_results(compared)], measured["depends_on_weights"]
    if not method.reads_class:
        clauses.append("is the same for every class")
        if depends is not None:  # the last layer, which tells classes apart, cannot change such a map
            depends = abs(measured["cascade"]) < explainers.Randomization.ALL_LAYERS
    if depends is not None:
        clauses.append("depends on the weights" if depends else "hardly depends on the weights")
    sentence = "; ".join(clauses)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def predictions(model: Model, images: list[Image.Image]) -> str:
    """Return the top predictions of the network in words."""
    found = [model.labels[int(model.network(model.prepare(image)).argmax())] for image in images]
    return f"{', '.join(found[:-1])} and {found[-1]}"


def main() -> None:
    """Write the page and its images."""
    given = options(__doc__, text=False, only=tuple(explainers.METHODS))
    model, images = load_model(), [open_image(name) for name in IMAGES]
    save(strip([model.crop(image) for image in images]), "images")
    for method in explainers.METHODS.values():
        if has_maps(method) and method.name in given.only and not given.text:
            save(maps(model, method, images), method.name)
            print(method.name, flush=True)
    PAGE.write_text(page(predictions(model, images)), encoding="utf-8")


if __name__ == "__main__":
    main()
