"""The stored answer for the first example, which the page shows while torch is imported.

`python -m benchmarks.landing` computes it.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from saliscope.compute import messages
from saliscope.compute.request import NAMES, Request
from saliscope.images import examples
from saliscope.page.elements import Props, example_image
from saliscope.page.maps import parts as maps_parts
from saliscope.page.methods import parts as methods_parts
from saliscope.page.overlay import parts as overlay_parts
from saliscope.page.panel import parts as panel_parts
from saliscope.page.wire import Updates, new_number, pack
from saliscope.zoo import settings as model_settings

FILE = examples.ASSETS / "landing.json"
LAYER = FILE.with_suffix(".webp")
"""The stored map as a transparent image, which the first image of the page shows over the crop."""


def load_stored(model: str) -> dict[str, Any] | None:
    """Return the stored answer, or None if another model is requested or this model is not installed or not offered.

    Returns  "status" parts, the "headline", "choices" of model, layer and method as (label, name), and the contents of
             the parts "view", "classes", "guide", "findings", "strip", "network"
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


def values(stored: dict[str, Any], ident: int, waiting: str) -> Updates:
    """Return the new values of parts, without the maps of the blocks; `waiting` ends the status."""
    choices = {name: stored["choices"][name] for name in NAMES if name in stored["choices"]}
    return {
        **{panel_parts.CHOICES[name]: Props(names=[pair], value=pair[1]) for name, pair in choices.items()},
        panel_parts.IMAGE: example_image(examples.all_examples()[stored["example"]]),
        overlay_parts.STATUS: messages.landed(stored, waiting, ident),
        overlay_parts.OVERLAY: {**stored["view"], "id": ident},
        methods_parts.GUIDE: {**stored["guide"], "id": ident},
        overlay_parts.FINDINGS: {**stored["findings"], "id": ident},
        "network": stored["network"],
        maps_parts.BARS: {**stored["classes"], "id": ident},
    }


def initial(stored: dict[str, Any]) -> dict[str, Any]:
    """Return these values for the start of the page: the props of parts by their ids, and the state of the scripts."""
    message = json.loads(pack(values(stored, new_number(), messages.CONNECTING)))
    return {"props": message["props"], "state": message["state"]}
