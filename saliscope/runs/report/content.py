"""The content of the page, collected from a run. The template `report.html` has its texts."""

from __future__ import annotations

import json
import shlex
from typing import Any

import numpy as np

from saliscope.errors import Refused
from saliscope.runs import formats
from saliscope.runs.report import answers, images, links, metadata
from saliscope.runs.report.analysis import calibration, embedding, hierarchy, label_errors, shortcuts, slices, summary
from saliscope.runs.report.analysis.clusters import LEAST, MOST_CLASSES, Cluster, find_clusters
from saliscope.runs.report.analysis.columns import Columns
from saliscope.runs.report.analysis.embedding import Features
from saliscope.runs.report.analysis.map_pass import MAPS, Coverage, Region, displayed, grid_size, read_all
from saliscope.runs.report.analysis.maps import border_region, box_region, mask_region
from saliscope.runs.report.context import Context, Report
from saliscope.runs.rows import SCHEMA, Floats, Integers
from saliscope.runs.run_data import RunData
from saliscope.runs.settings import WRONG

SHOWN = 1000
"""Maximum number of images on the page."""
MISTAKES = 24
TYPICAL = 6
"""Typical images shown for a cluster."""
GROUPS = 60
"""Maximum number of classes whose clusters are shown."""
PAIRS = 200
"""Maximum number of confusions in the table."""
LIMITS = {
    "clusters": LEAST,
    "classes": MOST_CLASSES,
    "shortcuts": shortcuts.MANY,
    "slices": slices.LEAST,
    "errors": label_errors.LEAST,
    "features": embedding.LEAST,
    "bins": calibration.BINS,
    "simulations": calibration.SIMULATIONS,
    "level": slices.LEVEL,
    "error_cards": 48,
    "ancestors": 30,
    "paths": 20,
}
"""Numbers that the template names. The last three are the most entries that are shown."""


def analyze(data: RunData, report: Report) -> answers.Results:
    """Return the results of a run.

    Errors   Refused for a run without a readable image
    """
    manifest, columns = data.manifest, Columns(data)
    only_wrong = data.settings.get("where") == WRONG
    if not columns.readable.any():
        reason = "could be read" if len(columns) or not only_wrong else "was predicted wrong"
        raise Refused(f"No image of {str(data.folder)!r} {reason}, so there is nothing to report.")
    codes = np.where(columns.readable, columns.groups.codes, -1)
    by_size = formats.by_size(data.settings.get("method", ""))
    maps = read_all(data, columns, codes, by_size, _regions(report, columns))
    page = Context(data, report, columns, maps, features=Features(report.model) if report.model else None)
    clusters = find_clusters(page.maps, page.classes)
    candidates = shortcuts.find_candidates(page.maps, clusters, page.classes, page.crop)
    errors = None
    if not only_wrong and manifest.get("score") not in ("sigmoid", "logit"):
        errors = label_errors.find_label_errors(data, columns)
    confusions = summary.confusions(columns, PAIRS)
    calibrated = None if only_wrong else calibration.calibrate(columns.probability, columns.correct)
    return answers.Results(page, clusters, candidates, errors, confusions, calibrated, *_slices(page))


def gather(data: RunData, report: Report) -> dict[str, Any]:
    """Return the variables of the template and the data of the script of the page.

    Errors   Refused for a run without a readable image
    """
    found = analyze(data, report)
    page, columns, manifest = found.page, found.page.columns, data.manifest
    method = data.settings.get("method", "")
    by_size, unit = formats.by_size(method), formats.unit(method, manifest.get("score", ""))
    mistakes = summary.most_confident_mistakes(columns, MISTAKES)
    errors = found.errors
    error_rows = errors.rows[: LIMITS["error_cards"]].tolist() if errors and errors.tested else []
    _choose(page, [*found.answers.rows, *mistakes, *error_rows], found.clusters, found.candidates, by_size)
    rows, findings = summary.class_rows(columns, page.all_maps), summary.finding_rows(columns)
    ancestors = hierarchy.by_ancestor(columns, manifest.get("classes") or [])
    content: dict[str, Any] = {
        "page": page,
        "results": found,
        "by_size": by_size,
        "limits": LIMITS,
        "accuracy": summary.accuracy(columns),
        "classes": sorted(rows, key=lambda row: (row["rate"].value if row["rate"] else 2.0, row["name"])),
        "answers": [(each, _images_of(page, each.rows)) for each in found.answers.all[: answers.SHOWN]],
        "more_answers": found.answers.all[answers.SHOWN :],
        "regions": [_region(name, region, rows) for name, region in page.all_maps.regions.items()],
        "findings": findings,
        "means": [(row, page.add_map(row["mean"])) for row in rows if row["mean"] is not None],
        "tested": shortcuts.count_tested(page.maps, found.clusters, page.classes, found.candidates),
        **_clusters(page, found.clusters, found.candidates),
        **_mistakes(page, mistakes),
        "evaluation": _evaluation(data),
        "ancestors": ancestors,
        "median_size": hierarchy.median_size(ancestors or []),
        "error_rows": [row for row in error_rows if row in page.shown],
        "unreadable": summary.unreadable(columns),
        "devices": sorted(
            {name for table in data.tables(["device"]) for name in table["device"].unique().to_pylist() if name}
        ),
        "folder": shlex.quote(str(data.folder)),
    }
    images_data = _images(page, page.all_maps.regions["border"].shares, found.clusters)
    places = page.features.places() if page.features else []
    titles = {row["code"]: row["title"] for row in findings}
    content["data"] = {
        "images": images_data, "places": places, "maps": page.packed_maps, "findings": titles, "unit": unit
    }  # fmt: skip
    return content | {"has_places": bool(places), "unit": unit}


def _region(name: str, region: Region, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row of the table of regions; `high` and `low` are share and name of the extreme classes, or None."""
    known = sorted((share, row["name"]) for row in rows if (share := row["shares"][name]) is not None)
    return {
        "name": name,
        "mean": summary.mean(region.shares),
        "even": region.even,
        "count": int(np.isfinite(region.shares).sum()),
        "high": known[-1] if known else None,
        "low": known[0] if known else None,
    }


def _slices(page: Context) -> tuple[slices.Slices | None, slices.Slices | None]:
    """Return the slices of folders and metadata, by accuracy and by the share of readable images.

    The first is None if nothing can be compared, the second if all images were read.
    """
    given, columns = page.report.metadata, page.columns
    if given is None:
        given = metadata.of_source(page.report.source or str(page.data.manifest.get("source", "")), columns.paths)
    folders = slices.folders(columns.paths)
    every = {**folders, **given}
    bad = None if columns.readable.all() else slices.find_slices(every, columns.readable.astype(np.int8))
    if not every or page.only_wrong or not columns.labeled:
        return None, bad
    found = slices.find_slices(every, columns.correct, columns.label_index)
    found.skipped = {name: why for name, why in found.skipped.items() if name in given}
    return (found if given or found.tested else None), bad


def _evaluation(data: RunData) -> dict[str, Any]:
    """Return the content of evaluation.json, or an empty dictionary if the run was not evaluated."""
    try:
        content = json.loads(data.store.read("evaluation.json") or b"{}")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("metrics") else {}


def _regions(report: Report, columns: Columns) -> dict[str, Coverage]:
    """Return the coverage of the regions whose share of the relevance is reported."""
    size = grid_size(columns)
    regions: dict[str, Coverage] = {"border": border_region(size)}
    if report.box is not None:
        regions["box"] = box_region(size, report.box)
    mask = report.mask
    if mask is not None and not callable(mask):
        regions["mask"] = mask_region(size, mask)
    if callable(mask):
        find, nothing = mask, np.full(size, np.nan)  # an image without a mask has no share

        def cover(rows: Integers) -> Floats:
            found = [find(path) for path in columns.paths.take(rows).to_pylist()]
            return np.stack([nothing if each is None else mask_region(size, each) for each in found])

        regions["mask"] = cover
    return regions


def _choose(
    page: Context,
    mistakes: list[int],
    clusters: list[Cluster],
    candidates: list[shortcuts.Candidate],
    by_size: bool,
) -> None:
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
    page.shown_maps = displayed(page.data, rows, by_size, page.maps.size)


def _images(page: Context, border: Floats, clusters: list[Cluster]) -> list[dict[str, Any]]:
    """Return the data of the images on the page for report.js."""
    budget = images.budget(len(page.shown))
    classes = page.data.manifest.get("classes", ())
    address = links.Links(page.report.link, page.data.settings, classes) if page.report.link else None
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
        entry = {"path": record["path"], "probability": formats.as_numbers(record["probability"])}
        entry |= {name: getattr(columns, name)[row] for name in ("label", "prediction", "target")}
        entry |= {"correct": None if correct < 0 else bool(correct)}
        entry |= {"findings": record["findings"] or [], "texts": record["finding_texts"] or [], "image": image}
        top = [[page.class_name(entry_), formats.as_numbers(entry_["probability"])] for entry_ in record["top5"] or []]
        entry |= {"top": top, "w": width, "h": height}
        entry |= {name: formats.as_numbers(record[name]) for name in ("label_probability", "score")}
        if values is not None:
            entry |= {"map": page.add_map(values), "border": formats.as_numbers(float(border[row]))}
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
    pairs: dict[int, tuple[Floats, Floats]] = {}
    if page.report.model is not None and records:
        inputs = records, page.shown_maps, page.report.read, page.report.model
        pairs = dict(images.map_pairs(*inputs, page.data.settings))
    mistakes = [(row, _maps_of_mistake(page, row, pairs.get(k))) for k, row in enumerate(rows)]
    return {"mistakes": mistakes, "incomplete": len(rows) - len(pairs)}


def _maps_of_mistake(page: Context, row: int, pair: tuple[Floats, Floats] | None) -> list[dict[str, Any]]:
    if pair is None:
        return [_figure(page, f"map of {page.columns.target[row]}", page.shown_maps[row])]
    predicted, expected = pair
    limit = max(float(each) for values in pair for each in (values.max(), -values.min(), 0)) or None
    return [
        _figure(page, f"{page.columns.prediction[row]} (predicted)", predicted, limit),
        _figure(page, f"{page.columns.label[row]} (expected)", expected, limit),
        _figure(page, "predicted − expected", predicted - expected) | {"signed": True},
    ]


def _figure(page: Context, name: str, values: Floats, limit: float | None = None) -> dict[str, Any]:
    """Return a map of a mistake, which is drawn up to `limit` (None: its own largest value)."""
    span = {"low": float(values.min()), "high": float(values.max())}
    return {"name": name, "map": page.add_map(values), "limit": limit, "signed": False, **span}


def _clusters(page: Context, clusters: list[Cluster], candidates: list[shortcuts.Candidate]) -> dict[str, Any]:
    """Return the clusters by class, classes with several clusters first, and the shortcuts."""
    by_class: dict[str, list[Cluster]] = {}
    for cluster in clusters:
        by_class.setdefault(cluster.name, []).append(cluster)
    several = {name: group for name, group in by_class.items() if len(group) > 1}
    found = [candidate for candidate in candidates if candidate.is_shortcut]
    names = {candidate.name for candidate in found}
    order = sorted(several, key=lambda name: (name not in names, -len(several[name]), name))[:GROUPS]
    return {
        "groups": [
            {
                "name": name,
                "of": several[name][0].of,
                "is_shortcut": name in names,
                "clusters": [_cluster(page, cluster) for cluster in several[name]],
            }
            for name in order
        ],
        "clustered": len(by_class),
        "several": len(several),
        "single": sorted(name for name, group in by_class.items() if len(group) == 1),
        "sampled": page.all_maps.sampled,
        "shortcuts": [_shortcut(page, candidate) for candidate in found],
    }


def _images_of(page: Context, rows: list[int]) -> list[int]:
    """Return the indices of images on the page."""
    return [page.shown[row] for row in rows if row in page.shown]


def _typical(page: Context, members: Integers) -> list[int]:
    """Return the first of some maps, as indices of their images on the page."""
    return _images_of(page, page.maps.rows[members[:TYPICAL]].tolist())


def _cluster(page: Context, cluster: Cluster) -> dict[str, Any]:
    correct = page.columns.correct[page.maps.rows[cluster.members]]
    known = correct[correct >= 0] if not page.only_wrong else correct[:0]
    return {
        "count": len(cluster.members),
        "share": len(cluster.members) / cluster.of,
        "accuracy": float(known.mean()) if len(known) else None,
        "mean": page.add_map(cluster.mean),
        "images": _typical(page, cluster.members),
    }


def _shortcut(page: Context, candidate: shortcuts.Candidate) -> dict[str, Any]:
    """Return a shortcut. `labeled` is the number of images with the pattern of those labeled as the explained class,
    and the number of the latter; None for a run without such labels.
    """
    rows = page.maps.rows[candidate.members]
    of_class = page.columns.label_index == page.columns.target_index[rows[0]]
    with_pattern, whole = int(of_class[rows].sum()), int((of_class & page.columns.readable).sum())
    return {
        "candidate": candidate,
        "name": candidate.name,
        "position": shortcuts.describe(candidate.box),
        "labeled": (with_pattern, whole) if whole else None,
        "share": with_pattern / whole if whole else len(rows) / candidate.of,
        "pattern": images.data_address(candidate.pattern),
        "mean": page.add_map(page.maps.values[candidate.members].mean(0)),
        "images": _typical(page, candidate.members),
    }
