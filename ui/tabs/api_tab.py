"""The tab that shows the settings on the page as calls of a program."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from ui import words
from ui.engine import packing, scene
from ui.engine.messages import Settings
from ui.serving import words as api_words
from ui.serving.bands import LUMINANCE
from ui.tabs.components import canvas
from ui.tabs.tab import Tab

PYTHON = """from gradio_client import Client, handle_file

client = Client("{origin}")
answer = client.predict(
    image=handle_file("photo.jpg"),
%s    api_name="/explain",
)
print(answer["predictions"], answer["map"], answer["overlay"])"""

LIBRARY = """import explainers
from models import load_model
from PIL import Image

model = load_model(%r)
photo = Image.open("photo.jpg")
images = model.prepare(photo)
%se = explainers.explain(%s)
e.overlay(model.crop(photo))[0].save("overlay.png")"""

BANDS = """import explainers
import numpy
from models import load_model

model = load_model(%r)
bands = numpy.load("picture.npy")  # [%d, height, width]
images = model.prepare(%s)
%se = explainers.explain(%s)
print(e.map.shape, e.findings)"""

DETECTION = """found = model.network(images)[0]  # the strongest first
k = %s
target = explainers.BoxScores(found["boxes"][k, None], (int(found["labels"][k]),), overlap=%s)
"""

SEGMENTATION = """output = model.network(images)
scores = output["out"] if isinstance(output, dict) else output
classes = %s
label = %s
target = explainers.MaskScores(%s, label)
"""

SHELL = """file=$(curl -s -F files=@photo.jpg {origin}gradio_api/upload | tr -d '[]"')
event=$(curl -s {origin}gradio_api/call/explain -H 'Content-Type: application/json' \\
  -d '{"data": [
    {"path": "'$file'", "meta": {"_type": "gradio.FileData"}},
    %s]}' | cut -d'"' -f4)
answer=$(curl -s {origin}gradio_api/call/explain/$event)
echo "$answer"
map=$(echo "$answer" | grep -o '"map": {"path": "[^"]*' | cut -d'"' -f6)
curl -s -o map.npy {origin}gradio_api/file=$map"""


class Api(Tab):
    """A text, and snippets that follow the settings."""

    title, id = words.API, "api"

    def build(self) -> None:
        """Lay the tab out."""
        gr.Markdown(api_words.API_TEXT, elem_id="hl-api-text")
        self.page.resolved[canvas("panel/snippets", "hl-api", value={"items": []})] = snippets


def snippets(settings: Settings) -> dict[str, Any]:
    """The settings as code; `snippets.js` puts the page's address in the place of {origin}."""
    items = (
        (*api_words.PYTHON, PYTHON % _keywords(settings)),
        (*api_words.LIBRARY, _library(settings)),
        (*api_words.SHELL, SHELL % _positional(settings)),
    )
    if settings.bands:
        items = tuple((title, text, code.replace("photo.jpg", "picture.npy")) for title, text, code in items)
    return {
        "id": packing.number(),
        "items": [dict(zip(("title", "text", "code"), item, strict=True)) for item in items],
    }


def _library(settings: Settings) -> str:
    if settings.bands is None:
        return LIBRARY % (settings.loaded.name, _target(settings), _call(settings))
    bands, channels, given = settings.bands, settings.loaded.model.channels, "bands"
    if channels == 3 or (channels == 1 and len(set(bands.three)) > 1):
        given = f"bands[{[band - 1 for band in bands.three]}]"
    elif channels == 1:
        given = f"bands[[{bands.three[0] - 1}]]"
    if channels == 1 and len(set(bands.three)) > 1:
        given = f"({given}.T @ {list(LUMINANCE)}).T[None].astype(bands.dtype)"
    return BANDS % (settings.loaded.name, bands.count, given, _target(settings), _call(settings))


def _keywords(settings: Settings) -> str:
    arguments = {**settings.names, "options": settings.options, "bands": _bands(settings)}
    if not settings.takes_layer:
        del arguments["layer"]
    return "".join(f"    {name}={value!r},\n" for name, value in arguments.items() if value)


def _bands(settings: Settings) -> str:
    """The bands shown as red, green and blue; empty for a photograph."""
    return ",".join(map(str, settings.bands.three)) if settings.bands else ""


def _target(settings: Settings) -> str:
    """The lines that make the target of what a network found; none for a class."""
    label, rank = settings.target, settings.rank
    if settings.loaded.model.task == "detection":
        which = f'(found["labels"] == {label}).nonzero()[{max(rank, 1) - 1}, 0]  # {settings.names["target"]}'
        return DETECTION % ("0" if label is None else which, scene.least_overlap(settings))
    if settings.loaded.model.task == "segmentation":
        # As `pixel_classes` in ui/engine/network_calls.py: one channel says yes (0) or no (-1).
        classes = "(scores[0, 0] > 0).long() - 1" if len(settings.loaded.names) == 1 else "scores[0].argmax(0)"
        ground = next((k for k in range(len(settings.loaded.names)) if scene.is_background(settings.loaded, k)), -1)
        largest = f"int(classes[classes != {ground}].mode().values)  # the largest but the background"
        mask = "classes == label"
        if rank:
            mask = f"explainers.regions(({mask}).float(), classes.shape)[{rank - 1}].mask"
        return SEGMENTATION % (
            classes,
            largest if label is None else f"{label}  # {settings.loaded.name_of(label)}",
            mask,
        )
    return ""


def _call(settings: Settings) -> str:
    """The arguments of `explainers.explain`."""
    options = {name: repr(value) for name, value in settings.method_options.items()}
    if settings.loaded.finds:
        options = {"target": "target", **options}
    elif settings.unit:
        layer, channel = settings.unit
        options = {"target": f"explainers.unit({layer!r}, {channel})", **options}
    elif settings.target is not None:
        options = {"target": repr(settings.target), **options}
    if settings.takes_layer:
        options = {"layer": repr(settings.layer), **options}
    named = "".join(f", {name}={value}" for name, value in options.items())
    return f"{settings.method.name!r}, model.network, images{named}"


def _positional(settings: Settings) -> str:
    """The arguments of the endpoint after the picture, as JSON between a shell's single quotes."""
    values = [settings.names[name] for name in ("model", "method", "layer", "target")]
    return json.dumps([*values, settings.options, _bands(settings)])[1:-1].replace("'", "'\\''")
