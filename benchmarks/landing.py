"""`python -m benchmarks.landing` computes what the page shows before anything is computed; tests compare the two.

The answer for the first example is that of the engine with default settings, without the run time. The computed answer
replaces it after some seconds. The training lab shows the finished run of its first preset.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import explainers
from saliscope import zoo
from saliscope.compute import engine, headline, messages, model_cache, removal
from saliscope.compute.answers import Answer, Settings, Stages
from saliscope.compute.jobs import runs
from saliscope.compute.lab import messages as lab_messages
from saliscope.compute.lab import presets, training
from saliscope.compute.rail import network
from saliscope.compute.request import Request
from saliscope.images import examples
from saliscope.page.components import view
from saliscope.page.lab import view as lab_view
from saliscope.page.methods import guide
from saliscope.page.overlay.stored import FILE, LAYER
from saliscope.page.panel import settings as panel
from saliscope.zoo import catalog

LAB = Path(lab_view.__file__).with_name("example.json")
CROP_SIDE, LAYER_SIDE = 448, 360
"""Pixels of the crop of the stored answer, which is larger than needed on most screens, and of the layer."""
QUALITY = 50
"""The quality of both images, of 100. It is low, because the computed answer replaces them after some seconds."""


def compute() -> dict[str, Any]:
    """Compute the answer for the first example with default settings, in the stored format."""
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
    info = next(info for info in zoo.list_models() if info.name == loaded.name)
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
        "classes": view.classes(answer, 0) | {"all": None},  # the computed answer has them
        "guide": {"id": 0, "parts": guide.parts(answer)},
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
    packed = stored["view"]["map"]
    values = np.frombuffer(base64.b64decode(packed["b64"]), packed["dtype"]).astype("float32") * packed.get("scale", 1)
    plane, size = torch.from_numpy(values.reshape(packed["h"], packed["w"])), (LAYER_SIDE, LAYER_SIDE)
    draw = lambda shade: np.asarray(explainers.overlay(Image.new("RGB", size, shade), plane), "float32")  # noqa: E731
    black, white = draw("black"), draw("white")
    empty = explainers.overlay(Image.new("RGB", size, "white"), torch.zeros(1, 1))
    opacity = 1 - (white - black).mean(-1, keepdims=True) / float(np.asarray(empty).max())
    layer = np.concatenate([black / opacity.clip(min=0.01), 255 * opacity], -1)
    return Image.fromarray(layer.round().clip(0, 255).astype("uint8"))


def compute_lab() -> dict[str, Any]:
    """Train the first preset and return its curves in the format of `page/lab/training.js`."""
    model_cache.start()
    list(model_cache.wait())
    preset = next(iter(presets.PRESETS.values()))
    *_, last = training.train(presets.parse_form(asdict(preset)), runs.Run(600.0))
    return lab_view.curves(last) | {"id": 0, "line": lab_messages.example_line(last.step, last.loss[-1])}


if __name__ == "__main__":
    answer = compute()
    FILE.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    draw_layer(answer).save(LAYER, quality=QUALITY, alpha_quality=QUALITY, method=6)
    LAB.write_text(json.dumps(compute_lab(), separators=(",", ":")) + "\n", encoding="utf-8")
