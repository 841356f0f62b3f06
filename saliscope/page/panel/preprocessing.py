"""The preprocessing of the user's own network: what was assumed about it, and a form to change it."""

from __future__ import annotations

import re
from typing import Any

from saliscope import limits
from saliscope.compute.answers import LoadedModel
from saliscope.page.panel import messages
from saliscope.zoo import devices, overrides, variants
from saliscope.zoo.model import Preparation


def pack(loaded: LoadedModel) -> dict[str, Any]:
    """Return the notes on a network, its settings, and the name and settings without changes; empty if it needs none.

    A change selects the model `NAME?size=...`, so links, batches and the API have it too.
    """
    base, changes = variants.split_name(loaded.name)
    changed = dict(part.split("=", 1) for part in changes.split("&")) if changes else {}
    model = loaded.model
    available = [] if limits.SHARED_GPU else devices.available()
    choice = {"device": devices.full_name(loaded.device)} if len(available) > 1 else {}
    found: dict[str, Any] = {"notes": [], "base": base, "values": choice, "changed": changed, "devices": available}
    if not (model.notes or set(changed) - {"crop", "device"}):
        return found | {"summary": messages.device(choice["device"])} if choice else {"notes": []}
    hints = f" ({re.escape(overrides.SET_THEM)}|{re.escape(overrides.SET_SCORE)})\\."  # options of the command line
    (height, width), mean, std = model.size, _numbers(model.preparation.mean), _numbers(model.preparation.std)
    values = {"size": f"{height}x{width}", "mean": mean, "std": std}
    if model.task == "classification" and not loaded.encodes_text:
        values["score"] = loaded.score
    return found | {
        "notes": [re.sub(hints, "", note) for note in model.notes],
        "values": values | choice,
        "summary": messages.preprocessing(height, width, mean, std),
    }


def crop(loaded: LoadedModel) -> dict[str, Any]:
    """Return the crop of a network: its position (None for the whole image), and the name of the model without it.

    It is empty for a network with its own preprocessing, whose crop cannot be moved.
    """
    preparation = loaded.model.preparation
    if type(preparation) is not Preparation:
        return {}
    base, changes = variants.split_name(loaded.name)
    others = [part for part in changes.split("&") if part and not part.startswith("crop=")]
    return {"base": base, "others": others, "position": preparation.position}


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
