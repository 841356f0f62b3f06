"""The stored answer to the first example, so that the page shows a map while torch is being imported.

It is the engine's answer at the defaults without its run time; the engine's own answer replaces it once computed.
`python -m ui.landing` regenerates it; a test compares the two.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from models import settings as model_settings
from ui import examples, words
from ui.engine import engine, model_cache, packing, runs
from ui.engine.messages import Answer, Settings, Stages
from ui.engine.request import NAMES, Request
from ui.maps.packing import listed
from ui.methods import guide
from ui.rail import network
from ui.tabs import picture_panel

FILE = examples.ASSETS / "landing.json"


def stored(model: str) -> dict[str, Any] | None:
    """What the page shows first; None where another model is requested, or this one is not installed or offered.

    Returns  "status" parts, "choices" of model, layer and method as (label, name), and the contents of the components
             "view", "classes", "guide", "findings", "strip", "network"
    """
    try:
        answer: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # the page then waits for torch
    wanted = model in (model_settings.AUTO, answer["model"]) and model_settings.offers(answer["model"])
    installed = importlib.util.find_spec(answer["package"]) is not None
    first = next(iter(examples.all_examples()))
    return answer if wanted and installed and answer["example"] == first else None


def answers(stored: dict[str, Any], question: Request, example: examples.Example | None) -> bool:
    """Whether the stored answer is that to this question: about its example, and at the defaults, named or not."""
    usual = {name: choice[1] for name, choice in stored["choices"].items()}
    named = {name: getattr(question, name) for name in NAMES}
    alike = all(not value or value == usual.get(name) for name, value in named.items())
    return (
        example is not None and stored["example"] == example.id and alike and not (question.options or question.bands)
    )


def made() -> dict[str, Any]:
    """The engine's answer to the first example at the defaults, in the stored form."""
    from models import zoo  # torch takes seconds to start

    example = next(iter(examples.all_examples().values()))
    model_cache.start()
    steps: dict[type, Any] = {}
    with runs.begin(None) as run:
        for step in engine.explain(Request(str(example.path)), run):
            steps[type(step)] = step
    settings, answer, stages = steps[Settings], steps[Answer], steps[Stages]
    loaded = settings.loaded
    info = next(info for info in model_cache.list_models() if info.name == loaded.name)
    layer = next(label for label, name in picture_panel.layers(loaded) if name == settings.layer)
    return {
        "example": example.id,
        "model": loaded.name,
        "package": zoo.source_of(loaded.name).package,
        "status": words.answer_parts(answer),
        "choices": {
            "model": [words.model_choice(info), loaded.name],
            "layer": [layer, settings.layer],
            "method": [words.method_choice(settings.method), settings.method.name],
        },
        "view": packing.answer(answer, 0) | {"record": None, "seconds": None},  # of this machine
        "classes": packing.classes(answer, 0) | listed(answer),
        "guide": guide.packed(answer, 0),
        "findings": packing.findings(answer, 0),
        "strip": packing.stages(stages, 0),
        "network": network.drawing(loaded),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(made(), indent=1) + "\n", encoding="utf-8")
