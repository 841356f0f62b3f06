"""The ranking as the dictionaries that its script reads; a row is packed once, for each of the reports that hold it."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ui import words as page_words
from ui.engine import packing
from ui.engine.messages import Waiting
from ui.ranking import words
from ui.ranking.engine import Ranking

if TYPE_CHECKING:
    import torch

    from explainers.metrics.recommendation import Recommendation, Tried

SIDE = 16
"""Cells of a small map's side, which the table draws at 40 pixels."""
PHOTO = 96

Row = dict[str, Any]
Packed = dict[tuple[str, int], Row]
"""The rows of one run by map and length of the curves, and the photograph."""
CROP = "", 0


def waiting(step: Waiting) -> dict[str, Any]:
    """Nothing yet, and why."""
    return _said("busy", [step.sentence], step.fraction)


def refused(sentence: str) -> dict[str, Any]:
    """One sentence above the table that was there."""
    return _said("error", [sentence])


def ranking(step: Ranking, known: Packed) -> dict[str, Any]:
    """The table as far as it is."""
    found, settings = step.found, step.settings
    over = step.left is None
    if found is None:
        return _said("busy", words.begun(step.whom), 0.0) | {"rows": []}
    rows = [_row(row, place, known) for place, row in enumerate(found.rows)]
    parts = (
        words.over(found, step.whom, rows[0]["title"] + _at(found.rows[0]), step.stopped)
        if over
        else words.going(found, step.whom, step.left or 0.0)
    )
    value = _said("stopped" if step.stopped else "done" if over else "busy", parts, None if over else step.fraction)
    if CROP not in known:
        known[CROP] = packing.picture(step.seen, PHOTO)
    value |= {"rows": [*rows, *_controls(found)], "crop": known[CROP]}
    value["steps"] = [min((row.steps for row in found.rows), default=0), max((r.steps for r in found.rows), default=0)]
    value["subject"] = settings.subject
    return value | ({"notes": _notes(found), "refused": _refused(found)} if over else {})


def _said(state: str, parts: list[Any], fraction: float | None = None) -> dict[str, Any]:
    return page_words.status(state, *parts, ident=packing.number(), fraction=fraction)


def _row(row: Tried, place: int, known: Packed) -> Row:
    at = row.name, row.steps
    if at not in known:
        known[at] = _packed(row)
    return known[at] | {"order": place, "rank": _number(row.rank)}


def _packed(row: Tried) -> Row:
    """What does not change while other rows arrive."""
    import explainers  # torch takes seconds to start

    method = explainers.METHODS[row.method]
    values = row.values
    places = [place for each in row.evaluation.places.values() for place in each.values()]
    notes = [row.evaluation.sentence(name) for name in values]
    return {
        "id": row.name,
        "method": row.method,
        "title": method.title,
        "layer": row.layer or "",
        "insertion": _number(values.get("insertion")),
        "deletion": _number(values.get("deletion")),
        "difference": _difference(values),
        "margin": _number(min((place.in_spreads for place in places), default=None)),
        "beside": words.beside(row),
        "beats": all(place.verdict == "better" for place in places),
        "about": [*notes, *([words.same_map(_title(row.same_as))] if row.same_as else [])],
        "seconds": _number(row.seconds),
        "steps": row.steps,
        "cut": row.cut,
        "map": _small(row.evaluation.maps[0]),
        "by_size": method.by_size,
    }


def _small(plane: torch.Tensor) -> dict[str, Any]:
    """A map [h, w] by the means of a few cells, in 127ths of the largest."""
    from torch.nn import functional  # torch takes seconds to start

    small = functional.adaptive_avg_pool2d(plane[None, None].float(), SIDE)[0, 0].nan_to_num()
    scaled = (127 * small / small.abs().max().clamp(min=1e-30)).round().char()
    return {"h": SIDE, "w": SIDE, "b64": base64.b64encode(scaled.cpu().numpy().tobytes()).decode("ascii")}


def _controls(found: Recommendation) -> list[Row]:
    """The controls, at their places: beside the rows with full curves, where they are better than one of them; else
    beside those with short ones, by which their own numbers are of short curves too.
    """
    lengths = sorted({row.steps for row in found.rows}, reverse=True)
    numbers = [row.values for row in found.rows]
    rows = []
    for control in words.CONTROLS:
        for steps in lengths:
            group = [place for place, row in enumerate(found.rows) if row.steps == steps]
            values = _values(found.rows[group[0]], control)
            if not values:
                break
            rank = _rank([numbers[place] for place in group], values)
            worse = [place for place in group if rank <= found.rows[place].rank]
            if worse or steps == lengths[-1]:
                order = (worse[0] if worse else group[-1] + 1) - 0.5
                rows.append(_control(control, values, order, steps))
                break
    return rows


def _values(row: Tried, control: str) -> dict[str, float]:
    """A control's numbers, which are the same beside every map."""
    found = {name: each[control] for name, each in row.evaluation.controls.items() if control in each}
    return {name: float(each[each.isfinite()].double().mean()) for name, each in found.items()}


def _rank(group: list[dict[str, float]], values: dict[str, float]) -> float:
    """The mean of the places that it would have by each metric among the numbers of its group."""
    import explainers  # torch takes seconds to start

    places = []
    for name, value in values.items():
        sign = -1 if explainers.METRICS[name].higher else 1
        places.append(1 + sum(sign * each[name] < sign * value for each in group))
    return sum(places) / len(places)


def _control(control: str, values: dict[str, float], order: float, steps: int) -> Row:
    title = words.CONTROLS[control]
    return {
        "id": control,
        "control": True,
        "title": title[0].upper() + title[1:],
        "order": order,
        "insertion": _number(values.get("insertion")),
        "deletion": _number(values.get("deletion")),
        "difference": _difference(values),
        "margin": None,
        "seconds": None,
        "steps": steps,
    }


def _notes(found: Recommendation) -> list[str]:
    """Where the metrics disagree, and whether any map is to be trusted."""
    import explainers  # torch takes seconds to start

    trusted = any(all(row.beats(control) for control in words.CONTROLS) for row in found.rows)
    notes = [] if trusted else [words.NONE_BEATS]
    compared = _compared(found)
    for (a, b), rho in compared.agreement.items():
        winners = _title(compared.winners[a].name), _title(compared.winners[b].name)
        notes.append(words.agreement(explainers.METRICS[a].title, explainers.METRICS[b].title, rho, winners))
    return notes


def _compared(found: Recommendation) -> Recommendation:
    """The rows with full curves, where there are three at least; else those with short ones."""
    short = min((row.steps for row in found.rows), default=0)
    if len(found.compared) > 2:
        return found
    return replace(found, rows=tuple(row for row in found.rows if row.steps == short))


def _refused(found: Recommendation) -> list[list[str]]:
    return [[_title(name), page_words.plain(reason)] for name, reason in found.refused.items()]


def _title(name: str) -> str:
    """ "Grad-CAM at head" for "grad_cam at head"."""
    import explainers  # torch takes seconds to start

    method, _, layer = name.partition(" at ")
    return words.title(explainers.METHODS[method].title, layer or None)


def _at(row: Tried) -> str:
    return f" at {row.layer}" if row.layer else ""


def _difference(values: dict[str, float]) -> float | None:
    return _number(values["insertion"] - values["deletion"]) if {"insertion", "deletion"} <= values.keys() else None


def _number(value: float | None) -> float | None:
    """Four digits; None for what JSON has no word for, infinity as a large number."""
    if value is None or value != value:
        return None
    return float(f"{max(-1e9, min(1e9, value)):.4g}")
