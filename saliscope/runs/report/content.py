"""Write a report: the content of the page, collected from a run. The template `report.html` has its texts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from saliscope.runs import formats
from saliscope.runs.pages import SCRIPTS, render
from saliscope.runs.report import answers, images
from saliscope.runs.report.analysis import label_errors, shortcuts, slices, summary
from saliscope.runs.report.analysis.clusters import FEWEST, MOST_CLASSES, Cluster
from saliscope.runs.report.analysis.maps import LEAST, MAPS, pool
from saliscope.runs.report.context import Page, Report
from saliscope.runs.rows import SCHEMA, RunData
from saliscope.runs.shards import refuse_disk_errors

SHOWN = 1000
"""Maximum number of images on the page."""
MISTAKES = 24
GROUPS = 60
"""Maximum number of classes whose clusters are shown."""
RECORD = [name for name in SCHEMA.names if name not in MAPS]
LIMITS = {
    "clusters": LEAST,
    "classes": MOST_CLASSES,
    "shortcuts": shortcuts.MANY,
    "slices": slices.LEAST,
    "errors": label_errors.LEAST,
    "features": FEWEST,
    "bins": summary.BINS,
    "simulations": summary.SIMULATIONS,
    "level": slices.LEVEL,
    "answers": answers.SHOWN,
    "error_cards": 48,
    "ancestors": 30,
    "paths": 20,
}
"""Numbers that the template names. The last four are the most entries that are shown."""


def write(data: RunData, out: str | Path, inputs: Report) -> Path:
    """Write the report of a finished run, and return its path.

    Errors   Refused for a run without a readable image, for an invalid box or mask, and for a full disk
    """
    with _freed_memory():
        text = render(gather(data, inputs), "report.html", SCRIPTS)
    path = Path(out).expanduser()
    with refuse_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def _freed_memory() -> Iterator[None]:
    """Let Arrow allocate with the system: its own pool keeps 60 MB more of a report of a million rows."""
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)


def analyze(data: RunData, report: Report) -> answers.Answers:
    """Return what is wrong in a run; its `page` has all results.

    Errors   Refused for a run without a readable image
    """
    return answers.Answers(Page(data, report))


def gather(data: RunData, report: Report) -> dict[str, Any]:
    """Return the variables of the template and the data of the script of the page.

    Errors   Refused for a run without a readable image
    """
    found = analyze(data, report)
    page, columns, manifest = found.page, found.page.columns, data.manifest
    unit = formats.unit(page.settings.get("method", ""), manifest.get("score", ""))
    mistakes = summary.most_confident_mistakes(columns, MISTAKES)
    errors = page.errors.rows[: LIMITS["error_cards"]].tolist() if page.errors and page.errors.tested else []
    _choose(page, [*found.rows, *mistakes, *errors])
    rows, findings = summary.class_rows(columns, page.all_maps), summary.finding_rows(columns)
    means = [(row, page.add_map(row["mean"])) for row in rows if row["mean"] is not None]
    entries = _images(page)
    places = page.features.places() if page.features else []
    titles = {row["code"]: row["title"] for row in findings}
    ancestors = summary.by_ancestor(columns, manifest.get("classes") or [])
    return {
        "page": page,
        "answers": found,
        "limits": LIMITS,
        "accuracy": summary.accuracy(columns),
        "rows": rows,
        "means": means,
        "classes": sorted(rows, key=lambda row: (row["rate"].value if row["rate"] else 2.0, row["name"])),
        "findings": findings,
        "tested": shortcuts.count_tested(page.maps, page.clusters, page.classes, page.candidates),
        "describe": shortcuts.describe,
        "data_address": images.data_address,
        **_clusters(page),
        **_mistakes(page, mistakes),
        "evaluation": _evaluation(data),
        "ancestors": ancestors,
        "median_size": summary.median_size(ancestors or []),
        "error_rows": errors,
        "unreadable": summary.unreadable(columns),
        "devices": sorted(
            {name for table in data.tables(["device"]) for name in table["device"].unique().to_pylist() if name}
        ),
        "folder": shlex.quote(str(data.folder)),
        "has_places": bool(places),
        "unit": unit,
        "data": lambda: {
            "images": entries, "places": places, "maps": page.packed_maps, "findings": titles, "unit": unit
        },
    }  # fmt: skip


def _evaluation(data: RunData) -> dict[str, Any]:
    """Return the content of evaluation.json, or an empty dictionary if the run was not evaluated."""
    try:
        content = json.loads(data.store.read("evaluation.json") or b"{}")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("metrics") else {}


def _choose(page: Page, first: list[int]) -> None:
    """Choose the images of the page: those shown elsewhere on it, more mistakes, and an even sample of the rest."""
    members = [each.members for each in page.shortcuts] + [each.members for each in page.clusters]
    preferred = first + [row for each in members for row in page.typical(each)]
    preferred += summary.most_confident_mistakes(page.columns, SHOWN // 4)
    chosen = list(dict.fromkeys(preferred))[:SHOWN]
    rest = page.columns.readable.copy()
    rest[chosen] = False
    others = np.flatnonzero(rest)
    count = min(len(others), SHOWN - len(chosen))
    chosen += others[np.linspace(0, len(others) - 1, count).round().astype(int)].tolist() if count else []
    page.show(chosen)


def _images(page: Page) -> list[dict[str, Any]]:
    """Return the data of the images on the page for report.js."""
    columns, model, known = page.columns, page.report.model, formats.as_numbers
    budget, border = images.budget(len(page.shown)), page.all_maps.regions["border"].shares
    classes = page.manifest.get("classes", ())
    address = images.Links(page.report.link, page.settings, classes) if page.report.link else None
    cluster_of = {int(page.maps.rows[k]): number for number, each in enumerate(page.clusters) for k in each.members}
    entries = []
    records = page.data.take(list(page.shown), RECORD).to_pylist()
    for done, (row, record) in enumerate(zip(page.shown, records, strict=True)):
        values, correct = page.shown_maps.get(row), int(columns.correct[row])
        entry: dict[str, Any] = {name: getattr(columns, name)[row] for name in ("label", "prediction", "target")}
        entry |= {name: known(record[name]) for name in ("probability", "label_probability", "score")}
        entry |= {
            "path": record["path"],
            "correct": None if correct < 0 else bool(correct),
            "findings": record["findings"] or [],
            "texts": record["finding_texts"] or [],
            "top": [[page.class_name(each), known(each["probability"])] for each in record["top5"] or []],
            "image": None,
            "w": 1,
            "h": 1,
        }
        if values is not None:
            entry |= {"map": page.add_map(values), "border": known(float(border[row])), "cluster": cluster_of.get(row)}
            if (image := page.image(row)) is not None:
                entry["image"], entry["w"], entry["h"] = images.small(images.crop(image, model), budget)
                if page.features is not None:
                    page.features.add(done, image)
        if address is not None:
            entry["link"], entry["known"] = address.of(record)
        entries.append(entry)
        if page.report.progress is not None:
            page.report.progress(done + 1, len(page.shown))
    return entries


def _mistakes(page: Page, rows: list[int]) -> dict[str, Any]:
    """Return the most confident mistakes, with the maps of both classes and their difference if available."""
    rows = [row for row in rows if row in page.shown_maps]
    mistakes = [(row, _maps_of_mistake(page, row)) for row in rows]
    return {"mistakes": mistakes, "incomplete": sum(len(maps) == 1 for _, maps in mistakes)}


def _maps_of_mistake(page: Page, row: int) -> list[dict[str, Any]]:
    """Return the maps of a mistake, which are drawn up to `limit` (None: their own largest value).

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
    return [
        {
            "name": name,
            "map": page.add_map(values),
            "limit": None if k == 2 else limit,
            "signed": k == 2,
            "low": float(values.min()),
            "high": float(values.max()),
        }
        for k, (name, values) in enumerate(found.items())
    ]


def _clusters(page: Page) -> dict[str, Any]:
    """Return the clusters by class: classes with a shortcut and with several clusters first."""
    by_class: dict[str, list[Cluster]] = {}
    for cluster in page.clusters:
        by_class.setdefault(cluster.name, []).append(cluster)
    marked = {each.name for each in page.shortcuts}
    several = sorted(name for name, group in by_class.items() if len(group) > 1)
    several.sort(key=lambda name: (name not in marked, -len(by_class[name])))
    return {
        "groups": [(name, by_class[name], name in marked) for name in several[:GROUPS]],
        "clustered": len(by_class),
        "several": len(several),
        "single": sorted(by_class.keys() - several),
    }
