"""The method picker: a button that opens a grouped list with search. `static/methods/methods.js` draws it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gradio as gr

from hooklens.page.components.components import Named, named
from hooklens.session import model_cache
from hooklens.session.methods import badges, costs, lines, messages

if TYPE_CHECKING:
    import explainers
    from hooklens.session.answers import Settings

LONGEST = 200  # characters of a reason


def picker(label: str, elem_id: str) -> Named:
    """Create a picker, which `update` fills; it raises "input" when a method is chosen."""
    return named("methods/methods", elem_id, title=label, words=messages.PICKER, offer="", names="[]")


def update(settings: Settings) -> Any:
    """Return the update of a picker: all methods by group, and unsupported methods with the reason."""
    return gr.update(offer=json.dumps(_content(settings), ensure_ascii=False), value=settings.method.name)


def _content(settings: Settings) -> dict[str, Any]:
    loaded, methods, others = settings.loaded, [], []
    for method in sorted_methods():
        reason = messages.NO_MAP if method.returns not in model_cache.MAPS else None
        reason = reason or model_cache.why_not(method, loaded, settings.layer)
        entry: dict[str, Any] = {"name": method.name, "title": method.title, "group": group_of(method)}
        entry |= {"line": line(method), "words": _keywords(method), "badges": badges.badges(method, loaded)}
        if reason:
            others.append(entry | {"why": first_sentence(reason)})
        else:
            methods.append(entry | {"cost": costs.badge(costs.seconds(method.name, loaded))})
    note = (messages.measured if costs.is_measured(loaded) else messages.estimated)(loaded.title)
    return {"groups": lines.GROUP_TITLES, "methods": methods, "others": others, "note": note}


def sorted_methods() -> list[explainers.Method]:
    """Return all methods in display order: those of lines.py, and custom methods at the end of their group."""
    import explainers  # torch takes seconds to start

    names = [name for group in lines.LINES.values() for name in group]
    listed = [explainers.METHODS[name] for name in names if name in explainers.METHODS]
    custom = [method for method in explainers.METHODS.values() if method.name not in names]
    groups = list(lines.GROUP_TITLES)
    return sorted([*listed, *custom], key=lambda method: groups.index(group_of(method)))


def group_of(method: explainers.Method) -> str:
    """Return the group of a method: from lines.py, or else from its result type and family."""
    group = next((group for group, names in lines.LINES.items() if method.name in names), None)
    if group:
        return group
    return lines.FEATURES if method.returns in ("features", "channels") else lines.FAMILIES.get(method.family, "where")


def line(method: explainers.Method) -> str:
    """Return the one-line description of a method; for a custom method, its summary."""
    return _texts(method)[0] or first_sentence(method.summary.partition(": ")[2] or method.summary)


def _keywords(method: explainers.Method) -> str:
    return f"{_texts(method)[1]} {method.family}"


def _texts(method: explainers.Method) -> tuple[str, str]:
    return lines.LINES[group_of(method)].get(method.name, ("", ""))


def first_sentence(text: str) -> str:
    """Return the first sentence, truncated; the following ones are for programmers."""
    head = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return (head if len(head) < LONGEST else head[: LONGEST - 1] + "…") + "."
