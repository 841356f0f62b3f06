"""The choice of a method: a button that opens a list by question, with search. `static/methods/methods.js` draws it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gradio as gr

from ui.engine import model_cache
from ui.methods import badges, costs, lines, words
from ui.tabs.components import Named

if TYPE_CHECKING:
    import explainers
    from ui.engine.messages import Settings

SCRIPT = (
    "import(new URL('hl/methods/methods.js', document.baseURI))"
    ".then((methods) => methods.mount(element, props, (name) => { element.dispatchEvent(new CustomEvent('hl-select', "
    "{ bubbles: true, detail: { method: name } })); trigger('input'); }, watch))"  # see address.js
)
LONGEST = 200  # characters of a reason


def picker(label: str, elem_id: str) -> Named:
    """A picker that is empty until `offered` fills it; it raises "input" when a method is chosen."""
    return Named(
        value="",
        html_template="<div class='hl-methods'></div>",
        js_on_load=SCRIPT,
        apply_default_css=False,
        elem_id=elem_id,
        title=label,
        words=words.PICKER,
        offer="",
        choices=[],
    )


def offered(settings: Settings) -> Any:
    """The update of a picker: all methods by what they are for, those that do not fit with the reason."""
    return gr.update(offer=json.dumps(_offer(settings), ensure_ascii=False), value=settings.method.name)


def _offer(settings: Settings) -> dict[str, Any]:
    loaded, methods, others = settings.loaded, [], []
    for method in ordered():
        reason = words.NO_MAP if method.returns not in model_cache.MAPS else None
        reason = reason or model_cache.why_not(method, loaded, settings.layer)
        entry = {"name": method.name, "title": method.title, "group": question(method), "line": line(method)}
        entry |= {"words": _words(method), "badges": badges.badges(method, loaded)}
        if reason:
            others.append(entry | {"why": first_sentence(reason)})
        else:
            methods.append(entry | {"cost": costs.badge(costs.seconds(method.name, loaded))})
    note = (words.measured if costs.is_measured(loaded) else words.estimated)(loaded.title)
    return {"groups": lines.QUESTIONS, "methods": methods, "others": others, "note": note}


def ordered() -> list[explainers.Method]:
    """All methods in the order of the list: those of lines.py, then any that were added, at the end of their group."""
    import explainers  # torch takes seconds to start

    names = [name for group in lines.LINES.values() for name in group]
    known = [explainers.METHODS[name] for name in names if name in explainers.METHODS]
    added = [method for method in explainers.METHODS.values() if method.name not in names]
    places = list(lines.QUESTIONS)
    return sorted([*known, *added], key=lambda method: places.index(question(method)))


def question(method: explainers.Method) -> str:
    """The group of a method: that of lines.py, else by what it gives and by its family."""
    listed = next((group for group, names in lines.LINES.items() if method.name in names), None)
    if listed:
        return listed
    return lines.FEATURES if method.returns in ("features", "channels") else lines.FAMILIES.get(method.family, "where")


def line(method: explainers.Method) -> str:
    """The method in a line; of one that was added, what its own summary says behind the name."""
    return _listed(method)[0] or first_sentence(method.summary.partition(": ")[2] or method.summary)


def _words(method: explainers.Method) -> str:
    return f"{_listed(method)[1]} {method.family}"


def _listed(method: explainers.Method) -> tuple[str, str]:
    return lines.LINES[question(method)].get(method.name, ("", ""))


def first_sentence(text: str) -> str:
    """The first sentence, cut to a few lines: what follows it is for programs."""
    head = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return (head if len(head) < LONGEST else head[: LONGEST - 1] + "…") + "."
