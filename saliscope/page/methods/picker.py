"""The list of methods, grouped by question, with descriptions, badges and estimated times."""

from __future__ import annotations

from typing import Any

import explainers
from saliscope.compute import model_cache
from saliscope.compute.answers import LoadedModel, Settings
from saliscope.compute.methods import badges, costs, lines, messages
from saliscope.page.components.list_columns import method_columns
from saliscope.page.elements import Item, Props, names

LONGEST = 200  # characters of a reason


def update(settings: Settings) -> Props:
    """Return the update of the list, and of the selected method."""
    return Props(names=names(items(settings)), value=settings.method.name, note=note(settings))


def note(settings: Settings) -> str:
    """Return the note below the list on the estimated times."""
    loaded = settings.loaded
    return (messages.measured if costs.is_measured(loaded) else messages.estimated)(loaded.title)


def items(settings: Settings) -> list[Item]:
    """Return the methods by group, and then those that do not support the model or layer, with the reason."""
    loaded = settings.loaded
    available: list[Item] = []
    others: list[tuple[explainers.Method, str]] = []
    for method in sorted_methods():
        reason = messages.NO_MAP if method.returns not in model_cache.MAPS else None
        reason = reason or model_cache.why_not(method, loaded)
        if reason:
            others.append((method, first_sentence(reason)))
        else:
            more = _details(method, loaded) | {"group": lines.GROUP_TITLES[group_of(method)]}
            available.append((method.title, method.name, method_columns(method, loaded), more))
    group = messages.unavailable(len(others))
    for method, why in others:
        columns = [method.title, method.family, ""]
        available.append((method.title, method.name, columns, _details(method, loaded) | {"group": group, "why": why}))
    return available


def _details(method: explainers.Method, loaded: LoadedModel) -> dict[str, Any]:
    """Return the description and keywords of a method, and its badges, if any."""
    found = badges.badges(method, loaded)
    return {"line": line(method), "words": _texts(method)[1]} | ({"badges": found} if found else {})


def sorted_methods() -> list[explainers.Method]:
    """Return all methods in display order: those of lines.py, and custom methods at the end of their group."""
    known = [name for group in lines.LINES.values() for name in group]
    listed = [explainers.METHODS[name] for name in known if name in explainers.METHODS]
    custom = [method for method in explainers.METHODS.values() if method.name not in known]
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


def _texts(method: explainers.Method) -> tuple[str, str]:
    return lines.LINES[group_of(method)].get(method.name, ("", ""))


def first_sentence(text: str) -> str:
    """Return the first sentence, truncated; the following ones are for programmers."""
    head = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return (head if len(head) < LONGEST else head[: LONGEST - 1] + "…") + "."
