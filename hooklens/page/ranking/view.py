"""The wire format of the ranking; each row is packed once and reused in later steps."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hooklens.page.components import view
from hooklens.session import messages as page_messages
from hooklens.session.answers import Waiting
from hooklens.session.ranking import messages
from hooklens.session.ranking.engine import Ranking

if TYPE_CHECKING:
    import torch

    from explainers.metrics.recommendation import RankedMap, Recommendation

SIDE = 16
"""Cells of the side of a small map, which the table draws at 40 pixels."""
IMAGE = 96

Row = dict[str, Any]
Packed = dict[tuple[str, int], Row]
"""The rows of one run by map and number of curve steps, and the image."""
CROP = "", 0


def waiting(step: Waiting) -> dict[str, Any]:
    """Pack the status before the first result."""
    return _status("busy", [step.message], step.fraction)


def refused(message: str) -> dict[str, Any]:
    """Pack an error message; the table does not change."""
    return _status("error", [message])


def ranking(step: Ranking, known: Packed) -> dict[str, Any]:
    """Pack the current table."""
    result, settings = step.result, step.settings
    over = step.left is None
    if result is None:
        return _status("busy", messages.started(step.target), 0.0) | {"rows": []}
    rows = [_row(row, index, known) for index, row in enumerate(result.rows)]
    parts = (
        messages.finished(result, step.target, rows[0]["title"] + _at(result.rows[0]), step.stopped)
        if over
        else messages.progress(result, step.target, step.left or 0.0)
    )
    value = _status("stopped" if step.stopped else "done" if over else "busy", parts, None if over else step.fraction)
    if CROP not in known:
        known[CROP] = view.jpeg(step.crop, IMAGE)
    value |= {"rows": [*rows, *_controls(result)], "crop": known[CROP]}
    value["steps"] = [
        min((row.steps for row in result.rows), default=0),
        max((r.steps for r in result.rows), default=0),
    ]
    value["subject"] = settings.subject
    return value | ({"notes": _notes(result), "refused": _refused(result)} if over else {})


def _status(state: str, parts: list[Any], fraction: float | None = None) -> dict[str, Any]:
    return page_messages.status(state, *parts, ident=view.number(), fraction=fraction)


def _row(row: RankedMap, index: int, known: Packed) -> Row:
    key = row.name, row.steps
    if key not in known:
        known[key] = _pack_row(row)
    return known[key] | _compare(row) | {"order": index, "rank": _number(row.rank)}


def _compare(row: RankedMap) -> Row:
    """Pack the comparison with the controls, which depends on the number of rows."""
    comparisons = [comparison for by_control in row.comparisons.values() for comparison in by_control.values()]
    notes = [row.sentence(name) for name in row.values]
    return {
        "beside": messages.compared(row),
        "beats": all(comparison.verdict == "better" for comparison in comparisons),
        "about": [*notes, *([messages.same_map(_title(row.same_as))] if row.same_as else [])],
    }


def _pack_row(row: RankedMap) -> Row:
    """Pack the part of a row that does not depend on other rows."""
    import explainers  # torch takes seconds to start

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
    from torch.nn import functional  # torch takes seconds to start

    small = functional.adaptive_avg_pool2d(plane[None, None].float(), SIDE)[0, 0].nan_to_num()
    scaled = (127 * small / small.abs().max().clamp(min=1e-30)).round().char()
    return {"h": SIDE, "w": SIDE, "b64": base64.b64encode(scaled.cpu().numpy().tobytes()).decode("ascii")}


def _controls(result: Recommendation) -> list[Row]:
    """Pack the controls at their position in the table.

    A control is ranked among the rows with full curves if it is better than one of them, otherwise among the rows with
    short curves, with its results for short curves.
    """
    lengths = sorted({row.steps for row in result.rows}, reverse=True)
    numbers = [row.values for row in result.rows]
    rows = []
    for control in messages.CONTROLS:
        for steps in lengths:
            group = [index for index, row in enumerate(result.rows) if row.steps == steps]
            values = _values(result.rows[group[0]], control)
            if not values:
                break
            rank = _rank([numbers[index] for index in group], values)
            worse = [index for index in group if rank <= result.rows[index].rank]
            if worse or steps == lengths[-1]:
                order = (worse[0] if worse else group[-1] + 1) - 0.5
                rows.append(_control(control, values, order, steps))
                break
    return rows


def _values(row: RankedMap, control: str) -> dict[str, float]:
    """Return the results of a control, which are the same for every map."""
    control_values = {name: values[control] for name, values in row.evaluation.controls.items() if control in values}
    return {name: float(values[values.isfinite()].double().mean()) for name, values in control_values.items()}


def _rank(group: list[dict[str, float]], values: dict[str, float]) -> float:
    """Return the mean rank of a control over all metrics within its group."""
    import explainers  # torch takes seconds to start

    ranks = []
    for name, value in values.items():
        sign = -1 if explainers.METRICS[name].higher else 1
        ranks.append(1 + sum(sign * other[name] < sign * value for other in group))
    return sum(ranks) / len(ranks)


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
    """Return notes about disagreeing metrics, and a warning if no map is better than all controls."""
    import explainers  # torch takes seconds to start

    trusted = any(all(row.beats(control) for control in messages.CONTROLS) for row in result.rows)
    notes = [] if trusted else [messages.NONE_BEATS]
    compared = _full_rows(result)
    for (a, b), rho in compared.agreement.items():
        winners = _title(compared.winners[a].name), _title(compared.winners[b].name)
        notes.append(messages.agreement(explainers.METRICS[a].title, explainers.METRICS[b].title, rho, winners))
    return notes


def _full_rows(result: Recommendation) -> Recommendation:
    """Return the rows with full curves if there are at least three, or else the rows with short curves."""
    short = min((row.steps for row in result.rows), default=0)
    if len(result.compared) > 2:
        return result
    return replace(result, rows=tuple(row for row in result.rows if row.steps == short))


def _refused(result: Recommendation) -> list[list[str]]:
    return [[_title(name), page_messages.plain(reason)] for name, reason in result.refused.items()]


def _title(name: str) -> str:
    """Return the title of a map: "Grad-CAM at head" for "grad_cam at head"."""
    import explainers  # torch takes seconds to start

    method, _, layer = name.partition(" at ")
    return messages.title(explainers.METHODS[method].title, layer or None)


def _at(row: RankedMap) -> str:
    return f" at {row.layer}" if row.layer else ""


def _difference(values: dict[str, float]) -> float | None:
    return _number(values["insertion"] - values["deletion"]) if {"insertion", "deletion"} <= values.keys() else None


def _number(value: float | None) -> float | None:
    """Round to four digits; NaN becomes None, and infinity a large number, because JSON supports neither."""
    if value is None or value != value:
        return None
    return float(f"{max(-1e9, min(1e9, value)):.4g}")
