"""The wire format of the ranking; each row is packed once and reused in later steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

import explainers
from explainers import RankedMap, Recommendation
from saliscope.compute.messages import plain, status
from saliscope.compute.methods import badges
from saliscope.compute.methods.messages import NO_WEIGHTS
from saliscope.compute.ranking import messages
from saliscope.compute.ranking.engine import Ranking
from saliscope.page.components import view
from saliscope.page.wire import base64_text

SIDE = 16
"""Cells of the side of a small map, which the table draws at 40 pixels."""
IMAGE = 96

Row = dict[str, Any]
Packed = dict[tuple[str, int], Row]
"""The rows of one run by map and number of curve steps, and the image."""
CROP = "", 0


def ranking(step: Ranking, known: Packed) -> dict[str, Any]:
    """Pack the current table."""
    result, settings = step.result, step.settings
    over = step.left is None
    if result is None:
        return status("busy", *messages.started(step.target), fraction=0.0) | {"rows": []}
    groups = _groups(result)
    rows = [_row(group, index, known) for index, group in enumerate(groups)]
    for row, group, rank in zip(rows, groups, _ranks(groups), strict=True):
        row |= {"rank": rank, "best": rank == 1 and row["beats"]}
        row["badges"] = badges.badges(explainers.METHODS[group[0].method], settings.loaded)
    parts = (
        messages.finished(result, step.target, *_conclusion(rows), step.stopped)
        if over
        else messages.progress(result, step.target, step.left or 0.0)
    )
    state = "stopped" if step.stopped else "done" if over else "busy"
    value = status(state, *parts, fraction=None if over else step.fraction)
    if CROP not in known:
        known[CROP] = view.jpeg(step.crop, IMAGE)
    value |= {"rows": [*rows, *_controls(groups)], "crop": known[CROP]}
    steps = [row.steps for row in result.rows]
    value["steps"] = [min(steps, default=0), max(steps, default=0)]
    value["subject"] = settings.subject
    return value | ({"notes": _notes(result), "refused": _refused(result)} if over else {})


def _groups(result: Recommendation) -> list[list[RankedMap]]:
    """Return the rows, equal maps together: those with full curves first, then by insertion minus deletion."""
    groups: dict[str, list[RankedMap]] = {}
    for row in sorted(result.rows, key=lambda row: bool(row.same_as)):
        groups.setdefault(row.same_as or row.name, []).append(row)

    def key(group: list[RankedMap]) -> tuple[int, float]:
        difference = _difference(group[0].values)
        return -group[0].steps, math.inf if difference is None else -difference

    return sorted(groups.values(), key=key)


def _ranks(groups: list[list[RankedMap]]) -> list[int | None]:
    """Return the rank of every group: the same one for equal differences, as displayed, and None for short curves."""
    longest = max((group[0].steps for group in groups), default=0)
    full = [_shown(group) if group[0].steps == longest else None for group in groups]
    known = [value for value in full if value is not None]
    return [None if value is None else 1 + sum(other > value for other in known) for value in full]


def _shown(group: list[RankedMap]) -> float | None:
    """Return the difference of a group as the table displays it."""
    difference = _difference(group[0].values)
    return None if difference is None else round(difference, messages.DIGITS)


def _conclusion(rows: list[Row]) -> tuple[str, str, bool]:
    """Return the first row, the first one that is better than all controls, and whether that has a warning."""
    better = next((row for row in rows if row["beats"] and row["rank"]), None)
    first, found = (messages.title(row["title"], row["layer"]) if row else "" for row in (rows[0], better))
    warned = better is not None and any(label == NO_WEIGHTS for label, _ in better["badges"])
    return first, found, warned


def _row(group: list[RankedMap], index: int, known: Packed) -> Row:
    row, *others = group
    key = row.name, row.steps
    if key not in known:
        known[key] = _pack_row(row)
    equal = [[each.method, each.layer or "", _title(each.name)] for each in others]
    return known[key] | _compare(row) | {"order": index, "equal": equal}


def _compare(row: RankedMap) -> Row:
    """Pack the comparison with the controls, which depends on the number of rows."""
    comparisons = [comparison for by_control in row.comparisons.values() for comparison in by_control.values()]
    return {
        "beside": row.verdict.sentence,
        "beats": bool(comparisons) and all(comparison.verdict == "better" for comparison in comparisons),
        "about": [row.evaluation.sentence(name) for name in row.values],
    }


def _pack_row(row: RankedMap) -> Row:
    """Pack the part of a row that does not depend on other rows."""
    method = explainers.METHODS[row.method]
    values = row.values
    comparisons = [
        comparison for by_control in row.evaluation.unadjusted.values() for comparison in by_control.values()
    ]
    return {
        "id": row.name,
        "method": row.method,
        "title": method.title,
        "layer": row.layer or "",
        "insertion": _number(values.get("insertion")),
        "deletion": _number(values.get("deletion")),
        "difference": _difference(values),
        "margin": _number(min((comparison.in_spreads for comparison in comparisons), default=None)),
        "seconds": _number(row.seconds),
        "steps": row.steps,
        "cut": row.cut,
        "map": _small(row.evaluation.maps[0]),
        "by_size": method.by_size,
    }


def _small(plane: torch.Tensor) -> dict[str, Any]:
    """Pack a map [h, w] as the means of a few cells, scaled to a maximum of 127."""
    small = functional.adaptive_avg_pool2d(plane[None, None].float(), SIDE)[0, 0].nan_to_num()
    scaled = (127 * small / small.abs().max().clamp(min=1e-30)).round().char()
    return {"h": SIDE, "w": SIDE, "b64": base64_text(scaled.cpu().numpy().tobytes())}


def _controls(groups: list[list[RankedMap]]) -> list[Row]:
    """Pack the controls at their position in the table.

    A control is among the rows with full curves if it is better than one of them, otherwise among the rows with short
    curves, with its results for short curves.
    """
    lengths = sorted({group[0].steps for group in groups}, reverse=True)
    rows = []
    for control in messages.CONTROLS:
        for steps in lengths:
            inside = [index for index, group in enumerate(groups) if group[0].steps == steps]
            values = _values(groups[inside[0]][0], control)
            if not values:
                break
            difference = _difference(values)
            own = -math.inf if difference is None else difference
            worse = [index for index in inside if own >= (_difference(groups[index][0].values) or 0.0)]
            if worse or steps == lengths[-1]:
                order = (worse[0] if worse else inside[-1] + 1) - 0.5
                rows.append((-own, _control(control, values, order, steps)))
                break
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _values(row: RankedMap, control: str) -> dict[str, float]:
    """Return the results of a control, which are the same for every map."""
    control_values = {name: values[control] for name, values in row.evaluation.controls.items() if control in values}
    return {name: float(values[values.isfinite()].double().mean()) for name, values in control_values.items()}


def _control(control: str, values: dict[str, float], order: float, steps: int) -> Row:
    title = messages.CONTROLS[control]
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


def _notes(result: Recommendation) -> list[str]:
    """Return whether the metrics agree on the order."""
    compared = _full_rows(result)
    return [
        messages.agreement(explainers.METRICS[a].title, explainers.METRICS[b].title, rho)
        for (a, b), rho in compared.agreement.items()
    ]


def _full_rows(result: Recommendation) -> Recommendation:
    """Return the rows with full curves if there are at least three, or else the rows with short curves."""
    short = min((row.steps for row in result.rows), default=0)
    if len(result.compared) > 2:
        return result
    return replace(result, rows=tuple(row for row in result.rows if row.steps == short))


def _refused(result: Recommendation) -> list[list[str]]:
    return [[_title(name), plain(reason)] for name, reason in result.refused.items()]


def _title(name: str) -> str:
    """Return the title of a map: "Grad-CAM at head" for "grad_cam at head"."""
    method, _, layer = name.partition(" at ")
    return messages.title(explainers.METHODS[method].title, layer or None)


def _difference(values: dict[str, float]) -> float | None:
    return _number(values["insertion"] - values["deletion"]) if {"insertion", "deletion"} <= values.keys() else None


def _number(value: float | None) -> float | None:
    """Round to four digits; NaN becomes None, and infinity a large number, because JSON supports neither."""
    if value is None or value != value:
        return None
    return float(f"{max(-1e9, min(1e9, value)):.4g}")
