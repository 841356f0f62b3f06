"""The first example's answer, kept with the project, so that a map stands on the page while torch is being imported.

It is what the engine answers at the defaults, with the time left out; the engine's own answer takes its place as soon
as it is there. `python -m ui.landing` writes it anew, and a test holds the one against the other.
"""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

from ui import examples, words
from ui.engine import engine, model_cache, packing, runs
from ui.engine.messages import Answer, Request, Settings, Stages
from ui.tabs import picture_panel

FILE = examples.ASSETS / "landing.json"


def stored(wish: str) -> dict[str, Any] | None:
    """What stands on the page first; None where another model is wished for, or this one is not there.

    Returns  "status" parts, "choices" of model, layer and method as (label, name), and by component what is shown:
             "view", "classes", "findings", "strip"
    """
    try:
        kept: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the page is only later
    limited = [name.strip() for name in os.environ.get("HOOKLENS_MODELS", "").split(",") if name.strip()]
    own = wish in ("auto", kept["model"]) and (not limited or kept["model"] in limited)
    first = next(iter(examples.all_examples()))
    here = importlib.util.find_spec(kept["package"]) is not None
    return kept if own and here and kept["example"] == first else None


def made() -> dict[str, Any]:
    """The answer to the first example at the defaults, as it is kept."""
    from models import efficientnet_lite  # torch takes seconds to start

    example = next(iter(examples.all_examples().values()))
    model_cache.start()
    found: dict[type, Any] = {}
    with runs.begin(None) as run:
        for step in engine.explain(Request(str(example.path)), run):
            found[type(step)] = step
    settings, answer, stages = found[Settings], found[Answer], found[Stages]
    loaded = settings.loaded
    info = next(each for each in model_cache.list_models() if each.name == loaded.name)
    layer = next(label for label, name in picture_panel.layers(loaded) if name == settings.layer)
    return {
        "example": example.id,
        "model": loaded.name,
        "package": efficientnet_lite.PACKAGE,
        "status": words.answer_parts(answer),
        "choices": {
            "model": [words.model_choice(info), loaded.name],
            "layer": [layer, settings.layer],
            "method": [words.method_choice(settings.method), settings.method.name],
        },
        "view": packing.answer(answer, 0),
        "classes": packing.classes(answer, 0),
        "findings": packing.findings(answer, 0),
        "strip": packing.stages(stages, 0),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(made(), indent=1) + "\n", encoding="utf-8")
