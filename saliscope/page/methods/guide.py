"""The guide next to a map: how to read it, in at most `explanations.MOST` words. `page/methods/guide.js` draws it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import explainers
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import Answer, Refining, Settings
from saliscope.compute.methods import explanations
from saliscope.page.methods import picker

NAME = 5  # words of a class name
SENTENCE = 100  # characters of one or two sentences
FINE = 32  # cells of a map that is not too coarse for outlines; such maps are also drawn as fine ones


def parts(step: Answer | Refining) -> list[dict[str, Any]]:
    """Return the text in parts, with layer and class highlighted."""
    settings, plane = step.settings, step.map
    assert plane is not None, "no map yet"
    signed = bool((plane < 0).any())
    changed = step.explanation.layer if isinstance(step, Answer) else None  # a method may use another layer
    names = {
        "target": page_messages.strong(_subject(step)),
        "layer": page_messages.code(changed or settings.layer),
        "grid": {"text": f"{plane.shape[0]} × {plane.shape[1]}"},
    }
    words = text(settings.method, signed, settings)
    if min(plane.shape) >= FINE:
        words = words.replace(explanations.COARSE, "").strip()
    pieces = re.split(r"\{(\w+)\}", words)
    return [names[piece] if index % 2 else {"text": piece} for index, piece in enumerate(pieces) if piece]


def text(method: explainers.Method, signed: bool, settings: Settings | None = None) -> str:
    """Return the text with {target}, {layer} and {grid}; for a custom method, its summary and unit."""
    high, low, limit = explanations.GUIDES.get(method.name) or _from_summary(method)
    if signed and low and not method.by_size:
        first = f"Red: {high}; blue: {low}."
    else:
        first = f"Bright: {high}."
        if signed and low:
            first += f" If signed, blue: {low}."
    return " ".join(part for part in (first, unit(method, settings), limit) if part)


def unit(method: explainers.Method, settings: Settings | None = None) -> str:
    """Return the description of the unit of the values."""
    words = explanations.SCORES["softmax"]
    if settings is not None and settings.unit:
        words = explanations.CHANNEL
    elif settings is not None and settings.sentences:
        words = explanations.SENTENCE
    elif settings is not None:
        words = explanations.TASKS.get(settings.loaded.model.task) or explanations.SCORES[settings.loaded.score]
    known = explanations.OWN_UNITS.get(method.name) or explanations.UNITS.get(method.unit)
    own = method.unit if settings is None else page_messages.unit(replace(settings, method=method))
    return known.format(**vars(words)) if known else f"Values are in {own}."


def _from_summary(method: explainers.Method) -> tuple[str, str, str]:
    summary = picker.line(method).rstrip(".")
    low = "negative values" if method.signed else ""
    return (
        " ".join(summary.split()[:30]),
        low,
        "This is a custom method. See its documentation for limitations.",
    )


def _subject(step: Answer | Refining) -> str:
    """Return the explained sentence, or a class in a few words."""
    subject = page_messages.subject(step)
    if step.settings.sentences:
        return page_messages.short(subject, SENTENCE)
    words = page_messages.short(subject).split()
    return " ".join(words[:NAME]) + ("…" if len(words) > NAME else "")
