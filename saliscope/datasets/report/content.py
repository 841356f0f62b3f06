"""The content of the page, collected from a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from saliscope.datasets.report import headlines, images, links, metadata, quality, text
from saliscope.datasets.report.analysis import shortcuts, summary
from saliscope.datasets.report.analysis.clusters import MOST_CLASSES, Cluster, find_clusters
from saliscope.datasets.report.analysis.columns import Columns
from saliscope.datasets.report.analysis.embedding import Features
from saliscope.datasets.report.analysis.map_pass import MAPS, displayed, grid_size, read_all
from saliscope.datasets.report.analysis.maps import border_region, box_region, mask_region
from saliscope.datasets.report.context import Context, Report
from saliscope.datasets.rows import SCHEMA
from saliscope.datasets.settings import WRONG
from saliscope.errors import Refused

if TYPE_CHECKING:
    from saliscope.datasets.report.analysis.map_pass import Coverage
    from saliscope.datasets.report.analysis.maps import Floats, Integers
    from saliscope.datasets.run_data import RunData

SHOWN = 1000
"""Maximum number of images on the page."""
MISTAKES = 24
TYPICAL = 6
"""Typical images shown for a cluster."""
GROUPS = 60
"""Maximum number of classes whose clusters are shown."""


def gather(data: RunData, report: Report) -> dict[str, Any]:
    """Return the variables of the template and the data of the script of the page.

    Errors   Refused for a run without a readable image
    """
    manifest, method = data.manifest, data.manifest.get("settings", {}).get("method", "")
    columns = Columns.of(data)
    if not columns.readable.any():
        only_wrong = manifest.get("settings", {}).get("where") == WRONG
        reason = "could be read" if len(columns) or not only_wrong else "was predicted wrong"
        raise Refused(f"No image of {str(data.folder)!r} {reason}, so there is nothing to report.")
    codes = np.where(columns.readable, summary.groups(columns).codes, -1)
    has_labels = bool((columns.label.codes >= 0).any())
    maps = read_all(data, columns, codes, text.by_size(method), _regions(report, columns))
    page = Context(data, report, columns, maps, features=Features(report.model) if report.model else None)
    clusters = find_clusters(page.maps, page.classes)
    candidates = shortcuts.find_candidates(page.maps, clusters, page.classes, page.crop)
    tested = shortcuts.count_tested(page.maps, clusters, page.classes, candidates)
    mistakes = summary.most_confident_mistakes(columns, MISTAKES)
    errors, error_rows = quality.errors_section(data, columns, page.only_wrong)
    _choose(page, [*mistakes, *error_rows], clusters, candidates)
    rows, pairs, findings = (
        summary.class_rows(columns, maps),
        summary.confusions(columns, text.PAIRS),
        summary.finding_rows(columns),
    )
    content: dict[str, Any] = {
        **headlines.head(page.data, columns, page.settings, rows),
        "only_wrong": page.only_wrong,
        "classes": text.classes(rows, list(maps.regions)),
        "classes_note": text.classes_note(rows, has_labels),
        "regions": text.regions(maps.regions, rows),
        "relevance_note": text.relevance_note(method),
        "confusions": text.confusions(pairs.pairs),
        "confusions_note": text.confusions_note(pairs),
        "findings": text.findings(findings),
        "no_findings": text.no_findings(int(columns.readable.sum())),
        "all_correct": text.all_correct(sum(columns.labeled.values())),
        "means": [
            {"name": row.name, "count": row.maps, "map": page.add_map(row.mean)} for row in rows if row.mean is not None
        ],
        "means_note": text.means_note(has_labels, page.only_wrong),
        **_clusters(page, clusters, candidates, tested.largest),
        **_mistakes(page, mistakes),
        **text.metrics(data.folder),
        **_quality(page),
        **errors,
        "label_errors": _error_cards(page, error_rows),
        "unreadable": text.unreadable(summary.unreadable(columns)),
        "facts": text.facts(page.data, page.settings),
    }
    content["sections"] = headlines.sections(content)
    content["highlights"] = headlines.highlights(rows, pairs.pairs, findings, content, tested)
    content["images_note"] = text.images_note(len(page.shown), int(columns.readable.sum()), report.link, data.folder)
    shown = _images(page, maps.regions[text.BORDER].shares, clusters)
    embedded = quality.embedding_section(page.features, int(columns.readable.sum()))
    content["embedding_note"], content["has_places"] = embedded["embedding_note"], bool(embedded["places"])
    content["data"] = {
        "images": shown,
        "places": embedded["places"],
        "maps": page.packed_maps,
        "findings": {row.code: row.title for row in findings},
        "unit": text.unit(method, manifest.get("score", "")),
    }
    return content


def _quality(page: Context) -> dict[str, Any]:
    """Return the sections about probabilities, metadata and the hierarchy of classes."""
    manifest, columns = page.data.manifest, page.columns
    values = page.report.metadata
    if values is None:
        values = metadata.of_source(page.report.source or str(manifest.get("source", "")), columns.paths)
    return {
        **quality.calibration_section(columns, page.only_wrong, manifest.get("score", "")),
        **quality.slices_section(values, columns, page.only_wrong),
        **quality.hierarchy_section(columns, manifest.get("classes") or []),
    }


def _error_cards(page: Context, rows: list[int]) -> list[dict[str, Any]]:
    columns = page.columns
    return [
        {
            "image": page.shown[row],
            "path": columns.path(row),
            "label": columns.label[row],
            "prediction": columns.prediction[row],
            "label_probability": text.percent(float(columns.label_probability[row])),
            "probability": text.percent(float(columns.probability[row])),
        }
        for row in rows
        if row in page.shown
    ]


def _constant(region: Floats) -> Coverage:
    return lambda rows: region


def _regions(report: Report, columns: Columns) -> dict[str, Coverage]:
    """Return functions of rows that return the coverage of regions whose share of the relevance is reported."""
    size = grid_size(columns)
    fixed = {text.BORDER: border_region(size)}
    if report.box is not None:
        fixed[text.BOX] = box_region(size, report.box)
    mask = report.mask
    if mask is not None and not callable(mask):
        fixed[text.MASK] = mask_region(size, mask)
    regions = {name: _constant(region) for name, region in fixed.items()}
    if callable(mask):
        find, nothing = mask, np.full(size, np.nan)  # an image without a mask has no share

        def cover(rows: Integers) -> Floats:
            found = [find(path) for path in columns.paths.take(rows).to_pylist()]
            return np.stack([nothing if each is None else mask_region(size, each) for each in found])

        regions[text.MASK] = cover
    return regions


def _choose(page: Context, mistakes: list[int], clusters: list[Cluster], candidates: list[shortcuts.Candidate]) -> None:
    """Choose the images of the page: those shown elsewhere on it, more mistakes, and an even sample of the rest."""
    numbers = [number for candidate in candidates if candidate.is_shortcut for number in candidate.members[:TYPICAL]]
    numbers += [number for cluster in clusters for number in cluster.members[:TYPICAL]]
    preferred = [*mistakes, *(int(page.maps.rows[number]) for number in numbers)]
    preferred += summary.most_confident_mistakes(page.columns, SHOWN // 4)
    chosen = list(dict.fromkeys(preferred))[:SHOWN]
    rest = page.columns.readable.copy()
    rest[chosen] = False
    others = np.flatnonzero(rest)
    count = min(len(others), SHOWN - len(chosen))
    chosen += others[np.linspace(0, len(others) - 1, count).round().astype(int)].tolist() if count else []
    page.shown = {row: k for k, row in enumerate(sorted(chosen))}
    rows = np.array(sorted({*chosen, *mistakes}), dtype=np.int64)
    page.shown_maps = displayed(page.data, rows, page.by_size, page.maps.size)


def _images(page: Context, border: Floats, clusters: list[Cluster]) -> list[dict[str, Any]]:
    """Return the data of the images on the page for report.js."""
    budget = images.budget(len(page.shown))
    classes = page.data.manifest.get("classes", ())
    address = links.Links(page.report.link, page.settings, classes) if page.report.link else None
    cluster_of = {int(page.maps.rows[number]): k for k, cluster in enumerate(clusters) for number in cluster.members}
    columns = page.columns
    entries = []
    for done, (row, record) in enumerate(zip(page.shown, _records(page, list(page.shown)), strict=True)):
        values = page.shown_maps.get(row)
        original = None if values is None else page.image(row)
        image, width, height = None, 1, 1
        if original is not None:
            image, width, height = images.small(images.crop(original, page.report.model), budget)
            if page.features is not None:
                page.features.add(done, original)
        correct = int(columns.correct[row])
        entry = {"path": record["path"], "probability": summary.as_numbers(record["probability"])}
        entry |= {name: getattr(columns, name)[row] for name in ("label", "prediction", "target")}
        entry |= {"correct": None if correct < 0 else bool(correct)}
        entry |= {"findings": record["findings"] or [], "texts": record["finding_texts"] or [], "image": image}
        top = [[page.class_name(entry_), summary.as_numbers(entry_["probability"])] for entry_ in record["top5"] or []]
        entry |= {"top": top, "w": width, "h": height}
        entry |= {name: summary.as_numbers(record[name]) for name in ("label_probability", "score")}
        if values is not None:
            entry |= {"map": page.add_map(values), "border": summary.as_numbers(float(border[row]))}
            entry["cluster"] = cluster_of.get(row)
        if address is not None:
            entry["link"], entry["known"] = address.of(record)
        entries.append(entry)
        if page.report.progress is not None:
            page.report.progress(done + 1, len(page.shown))
    return entries


RECORD = [name for name in SCHEMA.names if name not in MAPS]


def _records(page: Context, rows: list[int]) -> list[dict[str, Any]]:
    """Return the rows of images without their maps."""
    return list(page.data.take(rows, RECORD).to_pylist())


def _mistakes(page: Context, rows: list[int]) -> dict[str, Any]:
    """Return the most confident mistakes, with the maps of both classes and their difference if available."""
    rows = [row for row in rows if row in page.shown_maps]
    records = [{**record, "row": row} for row, record in zip(rows, _records(page, rows), strict=True)]
    map_pairs = {}
    if page.report.model is not None and records:
        pairs = images.map_pairs(records, page.shown_maps, page.report.read, page.report.model, page.settings)
        map_pairs = dict(pairs)
    mistakes = [_mistake(page, record, map_pairs.get(k)) for k, record in enumerate(records)]
    why = text.no_expected(page.report.model is not None, len(records), len(map_pairs))
    measure = text.unit(page.settings.get("method", ""), page.data.manifest.get("score", ""))
    return {
        "mistakes": mistakes,
        "mistakes_note": text.mistakes_note(
            len(records), int(page.columns.wrong.sum()), sum(page.columns.labeled.values()), why, measure
        ),
    }


def _mistake(page: Context, record: Mapping[str, Any], pair: images.MapPair | None) -> dict[str, Any]:
    if pair is None:
        values = page.shown_maps[record["row"]]
        maps = [text.map_entry(f"map of {page.columns.target[record['row']]}", page.add_map(values), None, values)]
    else:
        limit = float(max(pair.predicted.max(), pair.expected.max())) or None
        low, prediction = min(pair.predicted.min(), pair.expected.min()), page.columns.prediction[record["row"]]
        limit = float(max(abs(low), limit or 0)) if low < 0 else limit
        label = page.columns.label[record["row"]]
        maps = [
            text.map_entry(f"{prediction} (predicted)", page.add_map(pair.predicted), limit, pair.predicted),
            text.map_entry(f"{label} (expected)", page.add_map(pair.expected), limit, pair.expected),
            text.map_entry("predicted − expected", page.add_map(pair.difference), None, pair.difference, signed=True),
        ]
    return {
        "image": page.shown[record["row"]],
        "path": record["path"],
        "label": page.columns.label[record["row"]],
        "prediction": page.columns.prediction[record["row"]],
        "probability": text.percent(record["probability"]),
        "label_probability": text.percent(record["label_probability"]),
        "maps": maps,
    }


def _clusters(
    page: Context, clusters: list[Cluster], candidates: list[shortcuts.Candidate], largest: int
) -> dict[str, Any]:
    """Return the clusters by class, classes with several clusters first, and the shortcuts."""
    by_class: dict[str, list[Cluster]] = {}
    for cluster in clusters:
        by_class.setdefault(cluster.name, []).append(cluster)
    several = {name: group for name, group in by_class.items() if len(group) > 1}
    shortcut_classes = {candidate.name for candidate in candidates if candidate.is_shortcut}
    order = sorted(several, key=lambda name: (name not in shortcut_classes, -len(several[name]), name))[:GROUPS]
    return {
        "groups": [
            {
                **text.group(name, several[name], name in shortcut_classes),
                "clusters": [_cluster(page, c) for c in several[name]],
            }
            for name in order
        ],
        "clusters_note": text.clusters_note(
            len(by_class), len(several), len(order), page.all_maps.sampled, MOST_CLASSES, largest
        ),
        "single": text.single([name for name, group in by_class.items() if len(group) == 1]),
        "shortcuts": [_shortcut(page, candidate) for candidate in candidates if candidate.is_shortcut],
    }


def _cluster(page: Context, cluster: Cluster) -> dict[str, Any]:
    rows = [int(row) for row in page.maps.rows[cluster.members]]
    correct = page.columns.correct[rows]
    known = correct[correct >= 0] if not page.only_wrong else correct[:0]
    return {
        "count": len(rows),
        "share": text.percent(len(rows) / cluster.of),
        "accuracy": text.percent(float(known.mean())) if len(known) else "",
        "mean": page.add_map(cluster.mean),
        "images": [page.shown[row] for row in rows[:TYPICAL] if row in page.shown],
    }


def _labeled(page: Context, rows: list[int]) -> tuple[int, int] | None:
    """Return how many of these images are labeled with the explained class, and how many images are in total.

    Returns  None for a run without labels
    """
    index = page.columns.target_index[rows[0]]
    labels = page.columns.label_index
    whole = int((labels[page.columns.readable] == index).sum())
    return (int((labels[rows] == index).sum()), whole) if whole else None


def _shortcut(page: Context, candidate: shortcuts.Candidate) -> dict[str, Any]:
    rows = [int(row) for row in page.maps.rows[candidate.members]]
    return {
        **text.shortcut(candidate, _labeled(page, rows)),
        "pattern": images.data_address(candidate.pattern),
        "mean": page.add_map(page.maps.values[candidate.members].mean(0)),
        "images": [page.shown[row] for row in rows[:TYPICAL] if row in page.shown],
    }
