"""What am I seeing: a map in at most `seen.MOST` words, beside it. `static/methods/guide.js` draws them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ui import words as page_words
from ui.methods import picker, seen, words
from ui.tabs.components import Canvas, canvas

if TYPE_CHECKING:
    import explainers
    from ui.engine.messages import Answer, Refining, Settings

NAME = 5  # words of a class's name


def guide(elem_id: str) -> Canvas:
    """The component: folded on a phone, open elsewhere."""
    return canvas("methods/guide", elem_id, title=words.GUIDE)


def packed(step: Answer | Refining, ident: int) -> dict[str, Any]:
    """Its value for the map of an answer."""
    return {"id": ident, "parts": parts(step)}


def parts(step: Answer | Refining) -> list[dict[str, Any]]:
    """The words, layer and class set apart."""
    settings, plane = step.settings, step.map
    assert plane is not None, "no map yet"
    signed = bool((plane < 0).any())
    names = {
        "whom": page_words.strong(_short(page_words.subject(step))),
        "layer": page_words.code(_layer(step)),
        "grid": {"text": f"{plane.shape[0]} × {plane.shape[1]}"},
    }
    pieces = re.split(r"\{(\w+)\}", text(settings.method, signed, settings))
    return [names[piece] if odd % 2 else {"text": piece} for odd, piece in enumerate(pieces) if piece]


def text(method: explainers.Method, signed: bool, settings: Settings | None = None) -> str:
    """The sentences, with {whom}, {layer} and {grid}; of a method that was added, its summary and its unit."""
    high, low, limit = seen.SEEN.get(method.name) or _of_summary(method)
    if signed and low and not method.by_size:
        first = f"Red: {high}; blue: {low}."
    else:
        first = f"Bright: {high}."
        if signed and low:
            first += f" With signs, blue: {low}."
    return " ".join(part for part in (first, unit(method, settings), limit) if part)


def unit(method: explainers.Method, settings: Settings | None = None) -> str:
    """What the values are measured in."""
    sentence = seen.OWN_UNITS.get(method.name) or seen.UNITS.get(method.unit, f"Values are in {method.unit}.")
    for word, instead in seen.TASKS.get(settings.loaded.model.task if settings else "", {}).items():
        sentence = sentence.replace(word, instead)
    return sentence


def _of_summary(method: explainers.Method) -> tuple[str, str, str]:
    summary = picker.line(method).rstrip(".")
    low = "negative values" if method.signed else ""
    return (
        " ".join(summary.split()[:30]),
        low,
        "It is a method of your own: its documentation says what it cannot show.",
    )


def _layer(step: Answer | Refining) -> str:
    """The layer of the map, which a method may have moved."""
    explanation = getattr(step, "explanation", None)
    return (explanation.layer if explanation else None) or step.settings.layer


def _short(name: str) -> str:
    """A name in a few words."""
    some = page_words.short(name).split()
    return " ".join(some[:NAME]) + ("…" if len(some) > NAME else "")
