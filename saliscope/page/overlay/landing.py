"""The stored answer for the first example, which the page shows while torch is imported.

It is the answer of the engine with default settings, without the run time. The computed answer replaces it. Run
`python -m saliscope.page.overlay.landing` to regenerate it; a test compares the two.
"""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from typing import Any

import numpy as np
from PIL import Image

from saliscope.compute import engine, headline, messages, model_cache, removal
from saliscope.compute.answers import Answer, Settings, Stages
from saliscope.compute.jobs import runs
from saliscope.compute.rail import network
from saliscope.compute.request import NAMES, Request
from saliscope.images import examples
from saliscope.page.components import view
from saliscope.page.components.components import Canvas, update_choice
from saliscope.page.maps.view import listed
from saliscope.page.methods import guide
from saliscope.page.panel import panel
from saliscope.zoo import settings as model_settings

FILE = examples.ASSETS / "landing.json"
LAYER = FILE.with_suffix(".webp")
"""The stored map as a transparent image, which the first image of the page shows over the crop."""
CROP_SIDE, LAYER_SIDE = 448, 360
"""Pixels of the crop of the stored answer, which is larger than needed on most screens, and of the layer."""
QUALITY = 50
"""Of their compression; the computed answer replaces them after some seconds."""


def load_stored(model: str) -> dict[str, Any] | None:
    """Return the stored answer, or None if another model is requested or this model is not installed or not offered.

    Returns  "status" parts, the "headline", "choices" of model, layer and method as (label, name), and the contents of
             the components "view", "classes", "guide", "findings", "strip", "network"
    """
    try:
        answer: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the page waits for torch
    wanted = model in (model_settings.AUTO, answer["model"]) and model_settings.offers(answer["model"])
    installed = importlib.util.find_spec(answer["package"]) is not None
    first = next(iter(examples.all_examples()))
    return answer if wanted and installed and answer["example"] == first else None


def matches(stored: dict[str, Any], question: Request, example: examples.Example | None) -> bool:
    """Return whether the stored answer matches a request, that is, its example with default settings."""
    defaults = {name: choice[1] for name, choice in stored["choices"].items()}
    names = {name: getattr(question, name) for name in NAMES}
    same = all(not value or value == defaults.get(name) for name, value in names.items())
    return example is not None and stored["example"] == example.id and same and not (question.options or question.bands)


def values(stored: dict[str, Any], ident: int, waiting: str) -> dict[str, Any]:
    """Return the new values of components by their ids, without the maps of the blocks; `waiting` ends the status."""
    choices = {name: stored["choices"][name] for name in NAMES if name in stored["choices"]}
    return {
        **{f"hl-{name}": update_choice([tuple(pair)], value=pair[1]) for name, pair in choices.items()},
        "hl-status": messages.landed(stored, waiting, ident),
        "hl-overlay": {**stored["view"], "id": ident},
        "hl-guide": {**stored["guide"], "id": ident},
        "hl-findings": {**stored["findings"], "id": ident},
        "hl-rail-network": stored["network"],
        "hl-bars": {**stored["classes"], "id": ident},
    }


def initial_props(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the props of these components by their ids; first_paint/bundle.js sets them at the start of the page."""
    props: dict[str, Any] = {}
    for name, value in values(stored, view.number(), messages.CONNECTING).items():
        if value.get("__type__") == "update":
            props[name] = {"value": value["value"], "props": {"names": value["names"]}}
        else:
            props[name] = {"value": Canvas.pack(value)}
    return props


def compute() -> dict[str, Any]:
    """Compute the answer for the first example with default settings, in the stored format."""
    from saliscope.zoo import catalog  # torch takes seconds to start

    example = next(iter(examples.all_examples().values()))
    model_cache.start()
    steps: dict[type, Any] = {}
    with runs.start(None) as run:
        assert run is not None
        for step in engine.explain(Request(str(example.path)), run):
            steps[type(step)] = step
        removal.measure(steps[Answer], Request(str(example.path)), run)
    settings, answer, stages = steps[Settings], steps[Answer], steps[Stages]
    loaded = settings.loaded
    info = next(info for info in model_cache.list_models() if info.name == loaded.name)
    layer = next(label for label, name, _ in panel.layers(loaded) if name == settings.layer)
    return {
        "example": example.id,
        "model": loaded.name,
        "package": catalog.source_of(loaded.name).package,
        "status": messages.answer_parts(answer, score=False),
        "headline": headline.headline(answer),
        "choices": {
            "model": [messages.model_choice(info), loaded.name],
            "layer": [layer, settings.layer],
            "method": [settings.method.title, settings.method.name],
        },
        # Record and time depend on the machine.
        "view": view.answer(answer, 0) | {"record": None, "seconds": None} | _small_crop(answer),
        "classes": view.classes(answer, 0) | listed(answer) | {"all": None},  # the computed answer has them
        "guide": guide.pack(answer, 0),
        "findings": view.findings(answer, 0),
        "strip": view.stages(stages, 0),
        "network": network.drawing(loaded),
    }


def _small_crop(answer: Answer) -> dict[str, Any]:
    """Return a small crop, because it is a part of the page; the computed answer has a larger one."""
    image, file = answer.crop.copy(), io.BytesIO()
    image.thumbnail((CROP_SIDE, CROP_SIDE), Image.Resampling.LANCZOS)
    image.save(file, "WEBP", quality=QUALITY, method=6)
    source = "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode("ascii")
    crop = view.answer(answer, 0)["crop"]
    del crop["key"]  # which stands for the large crop
    return {"crop": crop | {"src": source}}


def draw_layer(stored: dict[str, Any]) -> Image.Image:
    """Return the stored map as a transparent layer; over the muted crop it is the image that the page draws.

    Drawing is linear in the pixels of the image, so its results on black and on white give the layer.
    """
    import torch  # torch takes seconds to start

    import explainers  # as above

    packed = stored["view"]["map"]
    values = np.frombuffer(base64.b64decode(packed["b64"]), packed["dtype"]).astype("float32") * packed.get("scale", 1)
    plane, size = torch.from_numpy(values.reshape(packed["h"], packed["w"])), (LAYER_SIDE, LAYER_SIDE)
    black, white = (
        np.asarray(explainers.overlay(Image.new("RGB", size, shade), plane), "float32") for shade in ("black", "white")
    )
    empty = explainers.overlay(Image.new("RGB", size, "white"), torch.zeros(1, 1))
    opacity = 1 - (white - black).mean(-1, keepdims=True) / float(np.asarray(empty).max())
    layer = np.concatenate([black / opacity.clip(min=0.01), 255 * opacity], -1)
    return Image.fromarray(layer.round().clip(0, 255).astype("uint8"))


if __name__ == "__main__":
    answer = compute()
    FILE.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    draw_layer(answer).save(LAYER, quality=QUALITY, alpha_quality=QUALITY, method=6)
