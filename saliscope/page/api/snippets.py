"""The API view: the current settings as code."""

from __future__ import annotations

import json
from typing import Any

from saliscope.compute import api_messages, scene
from saliscope.compute.answers import Settings
from saliscope.images.bands import LUMINANCE

PYTHON = """from gradio_client import Client, handle_file

client = Client("{origin}")
answer = client.predict(
    image=handle_file("photo.jpg"),
%s    api_name="/explain",
)
print(answer["predictions"], answer["map"], answer["overlay"])"""

LIBRARY = """import explainers
from saliscope import load_model
from PIL import Image

model = load_model(%r)
image = Image.open("photo.jpg")
images = model.prepare(image)
%se = explainers.explain(%s)
e.overlay(model.crop(image))[0].save("overlay.png")"""

BANDS = """import explainers
import numpy
from saliscope import load_model

model = load_model(%r)
bands = numpy.load("image.npy")  # [%d, height, width]
images = model.prepare(%s)
%se = explainers.explain(%s)
print(e.map.shape, e.findings)"""

SENTENCES = """text = explainers.text_embedding(model.network, model.tokenize(%r))
target = explainers.Similarity(text[0]%s)
"""

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


def snippets(settings: Settings) -> dict[str, Any]:
    """Return the settings as code; `snippets.js` replaces {origin} by the address of the page."""
    names, bands = settings.names, ",".join(map(str, settings.bands.three)) if settings.bands else ""
    given = {**names, "options": settings.options, "bands": bands}
    if not settings.method.takes_layer:
        del given["layer"]
    keywords = "".join(f"    {name}={value!r},\n" for name, value in given.items() if value)
    values = [*(names[name] for name in ("model", "method", "layer", "target")), settings.options, bands]
    quoted = json.dumps(values)[1:-1].replace("'", "'\\''")  # within single quotes of a shell
    items: tuple[tuple[str, str, str], ...] = (
        (*api_messages.PYTHON, PYTHON % keywords),
        (*api_messages.LIBRARY, _library(settings)),
        (*api_messages.SHELL, SHELL % quoted),
    )
    if settings.bands:
        items = tuple((title, text, code.replace("photo.jpg", "image.npy")) for title, text, code in items)
    return {"items": [dict(zip(("title", "text", "code"), item, strict=True)) for item in items]}


def _library(settings: Settings) -> str:
    if settings.bands is None:
        return LIBRARY % (settings.loaded.name, _target(settings), _call(settings))
    bands, channels, bands_code = settings.bands, settings.loaded.model.channels, "bands"
    if channels == 3 or (channels == 1 and len(set(bands.three)) > 1):
        bands_code = f"bands[{[band - 1 for band in bands.three]}]"
    elif channels == 1:
        bands_code = f"bands[[{bands.three[0] - 1}]]"
    if channels == 1 and len(set(bands.three)) > 1:
        bands_code = f"({bands_code}.T @ {list(LUMINANCE)}).T[None].astype(bands.dtype)"
    return BANDS % (settings.loaded.name, bands.count, bands_code, _target(settings), _call(settings))


def _target(settings: Settings) -> str:
    """Return the lines that create the target of a sentence, an object or a region; none for a class."""
    if settings.sentences:
        against = ", against=text[1]" if settings.sentences.against else ""
        return SENTENCES % (settings.sentences.listed, against)
    label, rank = settings.target, settings.rank
    if settings.loaded.model.task == "detection":
        which = f'(found["labels"] == {label}).nonzero()[{max(rank, 1) - 1}, 0]  # {settings.names["target"]}'
        return DETECTION % ("0" if label is None else which, scene.least_overlap(settings))
    if settings.loaded.model.task == "segmentation":
        is_binary = len(settings.loaded.names) == 1
        classes = "explainers.pixel_classes(scores)[0]" if is_binary else "scores[0].argmax(0)"
        ground = next((k for k in range(len(settings.loaded.names)) if scene.is_background(settings.loaded, k)), -1)
        largest = f"int(classes[classes != {ground}].mode().values)  # the largest region except the background"
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
    """Return the arguments of `explainers.explain`."""
    options = {name: repr(value) for name, value in settings.method_options.items()}
    if settings.loaded.detects_objects or settings.sentences:
        options = {"target": "target", **options}
    elif settings.unit:
        layer, channel = settings.unit
        options = {"target": f"explainers.unit({layer!r}, {channel})", **options}
    elif settings.target is not None:
        options = {"target": repr(settings.target), **options}
    if settings.method.takes_layer:
        options = {"layer": repr(settings.layer), **options}
    keywords = "".join(f", {name}={value}" for name, value in options.items())
    return f"{settings.method.name!r}, model.network, images{keywords}"
