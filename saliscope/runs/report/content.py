"""Write a report: the content of the page, collected from a run. The template `report.html` has its texts."""

from __future__ import annotations

import itertools
import json
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from saliscope.runs import formats
from saliscope.runs.pages import SCRIPTS, render
from saliscope.runs.report import analysis, answers, images
from saliscope.runs.report.analysis import summary
from saliscope.runs.report.analysis.columns import evenly
from saliscope.runs.report.analysis.maps import MAPS, pool
from saliscope.runs.report.context import Page, Report
from saliscope.runs.rows import SCHEMA, Floats, RunData
from saliscope.runs.shards import refuse_disk_errors

SHOWN = 1000
"""Maximum number of images on the page."""
MISTAKES = 24
RECORD = [name for name in SCHEMA.names if name not in MAPS]
LIMITS = {"answers": answers.SHOWN, "error_cards": 48, "ancestors": 30, "paths": 20, "groups": 60}
"""The most entries that are shown."""


def write(data: RunData, out: str | Path, inputs: Report) -> Path:
    """Write the report of a finished run, and return its path.

    Errors   Refused for a run without a readable image, for an invalid box or mask, and for a full disk
    """
    with ExitStack() as stack:  # Arrow's own pool keeps 60 MB more of a report of a million rows
        stack.callback(pa.set_memory_pool, pa.default_memory_pool())
        pa.set_memory_pool(pa.system_memory_pool())
        text = render(gather(data, inputs), "report.html", SCRIPTS)
    path = Path(out).expanduser()
    with refuse_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def gather(data: RunData, report: Report) -> dict[str, Any]:
    """Return the variables of the template and the data of the script of the page.

    Errors   Refused for a run without a readable image
    """
    page = Page(data, report)
    columns, found = page.columns, answers.Answers(page)
    unit = formats.unit(page.settings.get("method", ""), data.manifest.get("score", ""))
    mistakes = summary.most_confident(columns, columns.wrong, MISTAKES)
    errors = page.errors.rows[: LIMITS["error_cards"]].tolist() if page.errors and page.errors.tested else []
    evidence = [row for answer in found.all[: LIMITS["answers"]] for row in answer.rows]
    _choose(page, [*evidence, *mistakes, *errors])
    rows, findings = summary.class_rows(columns, page.all_maps), summary.finding_rows(columns)
    means = [(row, page.add_map(row["mean"])) for row in rows]
    entries = _images(page)
    places = page.features.places() if page.features else []
    titles = {row["code"]: row["title"] for row in findings}
    by_class = {name: list(group) for name, group in itertools.groupby(page.clusters, lambda each: each.name)}
    marked = {each.name for each in page.shortcuts}
    several = [name for name, group in by_class.items() if len(group) > 1]
    compared = [(row, *_maps_of_mistake(page, row)) for row in mistakes]
    return {
        "page": page,
        "answers": found,
        "analysis": analysis,
        "limits": LIMITS,
        "rows": rows,
        "means": means,
        "classes": sorted(rows, key=lambda row: (row["rate"].value if row["rate"] else 2.0, row["name"])),
        "findings": findings,
        "data_address": images.data_address,
        "clusters": by_class,
        "marked": marked,
        "several": sorted(several, key=lambda name: (name not in marked, -len(by_class[name]), name)),
        "mistakes": compared,
        "incomplete": sum(len(maps) == 1 for _, maps, _ in compared),
        "evaluation": _evaluation(data),
        "error_rows": errors,
        "devices": sorted(filter(None, data.columns(["device"])["device"].unique().to_pylist())),
        "folder": shlex.quote(str(data.folder)),
        "has_places": bool(places),
        "unit": unit,
        "data": lambda: {
            "images": entries, "places": places, "maps": page.packed_maps, "findings": titles, "unit": unit
        },
    }  # fmt: skip


def _evaluation(data: RunData) -> dict[str, Any]:
    """Return the content of evaluation.json, or an empty dictionary if it is missing or damaged."""
    try:
        content = json.loads(data.store.read("evaluation.json") or b"{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) and content.get("metrics") else {}


def _choose(page: Page, first: list[int]) -> None:
    """Choose the images of the page: those shown elsewhere on it, more mistakes, and an even sample of the rest."""
    members = [each.members for each in page.shortcuts] + [each.members for each in page.clusters]
    typical = [row for each in members for row in page.typical(each)]
    mistakes = summary.most_confident(page.columns, page.columns.wrong, SHOWN // 4)
    chosen = list(dict.fromkeys([*first, *typical, *mistakes]))[:SHOWN]
    rest = page.columns.readable.copy()
    rest[chosen] = False
    page.show(chosen + evenly(np.flatnonzero(rest), SHOWN - len(chosen)).tolist())


def _images(page: Page) -> list[dict[str, Any]]:
    """Return the data of the images on the page for report.js."""
    columns, known = page.columns, formats.as_numbers
    budget, border = images.budget(len(page.shown)), page.all_maps.regions["border"].shares
    classes = page.manifest.get("classes", ())
    address = images.Links(page.report.link, page.settings, classes) if page.report.link else None
    cluster_of = {int(page.maps.rows[k]): number for number, each in enumerate(page.clusters) for k in each.members}
    names, entries = dict(enumerate(page.names)), []
    records = page.data.take(list(page.shown), RECORD).to_pylist()
    for done, (row, record) in enumerate(zip(page.shown, records, strict=True)):
        entry: dict[str, Any] = {name: getattr(columns, name)[row] for name in ("label", "prediction", "target")}
        entry |= {name: known(record[name]) for name in "probability label_probability score path correct".split()}
        entry |= {
            "findings": record["findings"] or [],
            "texts": record["finding_texts"] or [],
            "top": [[names.get(c["index"], c["class"]), known(c["probability"])] for c in record["top5"] or []],
            "map": page.add_map(page.shown_maps[row]),
            "border": known(float(border[row])),
            "cluster": cluster_of.get(row),
            "image": None,
            "w": 1,
            "h": 1,
        }
        if (image := page.image(row)) is not None:
            entry |= images.small(images.crop(image, page.preparation), budget)
            if page.features is not None:
                page.features.add(done, image)
        if address is not None:
            entry["link"], entry["known"] = address.of(record)
        entries.append(entry)
        if page.report.progress is not None:
            page.report.progress(done + 1, len(page.shown))
    return entries


def _maps_of_mistake(page: Page, row: int) -> tuple[dict[str, Floats], float | None]:
    """Return the map of a mistake, or those of both classes and their difference, and their largest value.

    The maps of the other classes are computed with the method, layer and options of the run, if the image and the
    network are available.
    """
    columns, model, own, limit = page.columns, page.report.model, page.shown_maps[row], None
    found = {f"map of {columns.target[row]}": own}
    if model is not None and (image := page.image(row)) is not None:
        predicted, expected = (
            own
            if index == columns.target_index[row]
            else pool(images.explain(image, index, model, page.settings), own.shape)
            for index in (int(columns.prediction_index[row]), int(columns.label_index[row]))
        )
        limit = float(np.abs(np.stack([predicted, expected])).max()) or None
        found = {f"{columns.prediction[row]} (predicted)": predicted, f"{columns.label[row]} (expected)": expected}
        found["predicted − expected"] = predicted - expected
    return found, limit
