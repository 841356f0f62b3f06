"""The head of the report, and the first lines: what stands out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dataset.report.analysis import summary
from dataset.report.say import evaluation, percent, plural, title
from dataset.settings import WRONG

if TYPE_CHECKING:
    from dataset.shards import Finished

FEW = 10
"""Pictures of a class below which the worst one is not picked out."""


def head(
    finished: Finished, columns: summary.Columns, settings: Mapping[str, Any], rows: list[summary.ClassRow]
) -> dict[str, Any]:
    """Title, subtitle and tiles."""
    manifest, rate = finished.manifest, summary.accuracy(columns)
    method, layer = title(settings.get("method", "")), settings.get("layer")
    what = plural(len(columns.path), "picture")
    heading = f"{method} on {settings.get('model', 'the network')}: {what}"
    where = f"at layer {layer}" if layer else "at the network's default layer"
    source = manifest.get("source") or "unknown"
    tiles = [{"name": "Pictures", "value": f"{len(columns.path):,}", "note": plural(len(rows), "class")}]
    if settings.get("where") == WRONG:
        looked_at = manifest.get("counts", {}).get("looked_at", len(columns.path))
        tiles[0]["note"] = f"of {looked_at:,}: those that were predicted wrong"
    if rate is not None:
        low, high = rate.interval
        note = f"{rate.correct:,} of {rate.count:,}; 95% interval {100 * low:.1f} to {100 * high:.1f}%"
        tiles.append({"name": "Accuracy", "value": f"{100 * rate.value:.1f}%", "note": note})
    else:
        tiles.append({"name": "Accuracy", "value": "–", "note": "no label is a class of the network"})
    broken = len(columns.path) - len(columns.readable)
    tiles.append(
        {"name": "Unreadable", "value": f"{broken:,}", "note": "see the end of the page" if broken else "all were read"}
    )
    tiles.append({"name": "Explained", "value": _target(settings), "note": f"{method} {where}"})
    sections = [("summary", "What stands out"), ("classes", "Classes")]
    sections += [("confusions", "Confusions"), ("mistakes", "Mistakes")] if rate is not None else []
    sections += [("means", "Mean maps"), ("relevance", "Relevance"), ("findings", "Findings"), ("clusters", "Clusters")]
    sections += [("metrics", "Metrics")] if evaluation(finished.folder) else []
    sections += [("pictures", "Pictures"), ("about", "How this was made")]
    subtitle = f"Source {source}. Finished {str(manifest.get('finished', ''))[:16].replace('T', ' ')}."
    return {
        "title": f"{heading} – Hooklens",
        "heading": heading,
        "subtitle": subtitle,
        "tiles": tiles,
        "sections": sections,
        "labelled": rate is not None,
    }


def _target(settings: Mapping[str, Any]) -> str:
    target = settings.get("target", "predicted")
    return {"predicted": "Predicted class", "label": "Labelled class"}.get(target, str(target))


def standout(
    rows: list[summary.ClassRow],
    pairs: list[summary.Pair],
    found: list[summary.FindingRow],
    content: Mapping[str, Any],
    compared: bool = True,
) -> list[dict[str, Any]]:
    """The first lines of the report: shortcuts, the worst class, the most frequent confusion and finding, regions.

    `compared` says whether there were photographs to compare.
    """
    none = "No cluster of maps has the marks of a shortcut."
    gone = "Shortcuts were not looked for: the photographs are not there any more."
    lines = [
        _line(f"Possible shortcut: {one['name']}, {one['place']}, in {one['share']} of its pictures.", True)
        for one in content["shortcuts"]
    ] or [_line(none if compared else gone)]
    if worst := [(row.rate.value, row) for row in rows if row.rate and row.rate.count >= FEW and row.rate.value < 1]:
        share, low = min(worst, key=lambda pair: pair[0])
        taken = f", most often taken for {low.confused[0]} ({low.confused[1]})" if low.confused else ""
        lines.append(
            _line(f"Lowest accuracy: {low.name}, {percent(share)} of {plural(low.pictures, 'picture')}{taken}.")
        )
    for pair in pairs[:1]:
        many = f"{plural(pair.count, 'picture')}, {percent(pair.share)} of the label's"
        lines.append(_line(f"Most frequent confusion: {pair.label} taken for {pair.prediction} ({many})."))
    for region in content["regions"]:
        there, even, count = percent(region["mean"]), region["even_text"], region["count"]
        of = f", of {plural(count, 'picture')} with one" if region["partly"] else ""
        where = f"{region['where']}{of}"
        lines.append(_line(f"{there} of the relevance lies {where}; an even map would have {even} there."))
    for row in found[:1]:
        lines.append(
            _line(f"Most frequent finding: {row.title}, {plural(row.count, 'picture')} ({percent(row.share)}).")
        )
    return lines


def _line(text: str, strong: bool = False) -> dict[str, Any]:
    return {"text": text, "strong": strong}
