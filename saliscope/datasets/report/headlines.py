"""The header of the report, and its highlights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saliscope.datasets.report import text
from saliscope.datasets.report.analysis import shortcuts, summary
from saliscope.datasets.report.text import percent, plural, title
from saliscope.datasets.settings import WRONG

if TYPE_CHECKING:
    from saliscope.datasets.report.analysis.columns import Columns
    from saliscope.datasets.run_data import RunData

FEW = 10
"""Minimum number of images of a class to be reported as the class with the lowest accuracy."""


def head(data: RunData, columns: Columns, settings: Mapping[str, Any], rows: list[summary.ClassRow]) -> dict[str, Any]:
    """Return the title, subtitle, tiles and sections."""
    manifest, rate = data.manifest, summary.accuracy(columns)
    method, layer = title(settings.get("method", "")), settings.get("layer")
    images = plural(len(columns), "image")
    heading = f"{method} on {settings.get('model', 'the network')}: {images}"
    where = f"at layer {layer}" if layer else "at the network's default layer"
    source = manifest.get("source") or "unknown"
    tiles = [{"name": "Images", "value": f"{len(columns):,}", "note": plural(len(rows), "class")}]
    if settings.get("where") == WRONG:
        labeled = sum(columns.labeled.values())
        tiles[0]["note"] = f"only wrong predictions, of {plural(labeled, 'image')} with a known label"
    if rate is not None:
        low, high = rate.interval
        note = f"{rate.correct:,} of {rate.count:,}; 95% interval {100 * low:.1f} to {100 * high:.1f}%"
        tiles.append({"name": "Accuracy", "value": f"{100 * rate.value:.1f}%", "note": note})
    else:
        has_labels = bool((columns.label.codes >= 0).any())
        note = "no label is a class of the network" if has_labels else "no image has a label"
        tiles.append({"name": "Accuracy", "value": "–", "note": f"not measured: {note}"})
    broken = int((~columns.readable).sum())
    tiles.append(
        {
            "name": "Unreadable",
            "value": f"{broken:,}",
            "note": f"of {images}{', listed at the end of the page' * bool(broken)}",
        }
    )
    tiles.append({"name": "Explained", "value": _target(settings), "note": f"{method} {where}"})
    subtitle = f"Source {source}. Finished {str(manifest.get('finished', ''))[:16].replace('T', ' ')}."
    return {
        "title": f"{heading} – Saliscope",
        "heading": heading,
        "subtitle": subtitle,
        "tiles": tiles,
        "labeled": rate is not None,
    }


def _target(settings: Mapping[str, Any]) -> str:
    target = settings.get("target", "predicted")
    return {"predicted": "Predicted class", "label": "Labeled class"}.get(target, str(target))


def highlights(
    rows: list[summary.ClassRow],
    pairs: list[summary.Pair],
    findings: list[summary.FindingRow],
    content: Mapping[str, Any],
    tested: shortcuts.Tested,
) -> list[dict[str, Any]]:
    """Return the first lines of the report: shortcuts, lowest accuracy, top confusion and finding, and regions.

    `tested` says how many classes were tested for shortcuts.
    """
    lines = [
        _line(f"Possible shortcut: {entry['name']}, {entry['position']}, in {entry['share']} of its images.", True)
        for entry in content["shortcuts"]
    ] or [_line(text.no_shortcut(tested))]
    if worst := [(row.rate.value, row) for row in rows if row.rate and row.rate.count >= FEW and row.rate.value < 1]:
        share, low = min(worst, key=lambda pair: pair[0])
        confused = f", most often predicted as {low.confused[0]} ({low.confused[1]})" if low.confused else ""
        lines.append(
            _line(f"Lowest accuracy: {low.name}, {percent(share)} of {plural(low.images, 'image')}{confused}.")
        )
    for pair in pairs[:1]:
        detail = f"{plural(pair.count, 'image')}, {percent(pair.share)} of that label"
        lines.append(_line(f"Most frequent confusion: {pair.label} predicted as {pair.prediction} ({detail})."))
    for region in content["regions"]:
        if not region["count"]:
            lines.append(_line(f"Relevance {region['where']} was not measured: no map has any relevance."))
            continue
        mean, even, count = percent(region["mean"]), region["even_text"], region["count"]
        partly = f", over {plural(count, 'image')} with one" if region["partly"] else ""
        where = f"{region['where']}{partly}"
        lines.append(_line(f"{mean} of the relevance is {where}; for a uniform map it would be {even}."))
    for row in findings[:1]:
        lines.append(_line(f"Most frequent finding: {row.title}, {plural(row.count, 'image')} ({percent(row.share)})."))
    return lines


def _line(text: str, strong: bool = False) -> dict[str, Any]:
    return {"text": text, "strong": strong}


def sections(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the ids and titles of the sections of the page."""
    labeled = content["labeled"]
    listed = [("summary", "Highlights", True), ("classes", "Classes", True)]
    listed += [("confusions", "Confusions", labeled), ("hierarchy", "Hierarchy", bool(content["ancestors"]))]
    listed += [("mistakes", "Mistakes", labeled), ("calibration", "Calibration", labeled)]
    listed += [("slices", "Slices", content["slices"] is not None), ("label-errors", "Label errors", labeled)]
    listed += [("means", "Mean maps", True), ("relevance", "Relevance", True), ("findings", "Findings", True)]
    listed += [("clusters", "Clusters", True), ("metrics", "Metrics", bool(content.get("metrics")))]
    listed += [("embedding", "Features", True), ("images", "Images", True), ("about", "Details", True)]
    return [(id, title) for id, title, shown in listed if shown]
