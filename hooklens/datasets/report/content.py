"""The content of the page, collected from a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hooklens.datasets.report import headlines, images, links, text
from hooklens.datasets.report.analysis import shortcuts, summary
from hooklens.datasets.report.analysis.clusters import Cluster, find_clusters
from hooklens.datasets.report.analysis.maps import Maps, border_region, box_region, mask_region, pack, read_maps
from hooklens.datasets.report.images import Read
from hooklens.datasets.settings import WRONG
from hooklens.errors import Refused

if TYPE_CHECKING:
    from PIL import Image

    from hooklens.datasets.report.analysis.maps import Floats
    from hooklens.datasets.run_data import RunData
    from hooklens.zoo import Model

ENTRY_COLUMNS = ("path", "label", "prediction", "probability", "correct", "target")
SHOWN = 1000
"""Maximum number of images on the page."""
MISTAKES = 24
TYPICAL = 6
"""Typical images shown for a cluster."""
GROUPS = 60
"""Maximum number of classes whose clusters are shown."""


@dataclass
class Report:
    """The inputs of a report, see `page.write`."""

    read: Read
    model: Model | None = None
    box: Sequence[float] | None = None
    mask: Image.Image | Callable[[str], Image.Image | None] | None = None
    link: str | None = None
    progress: Callable[[int, int], None] | None = None


@dataclass
class _Context:
    """Data shared by the parts of the page."""

    data: RunData
    report: Report
    columns: summary.Columns
    maps: Maps
    packed_maps: list[dict[str, Any]] = field(default_factory=list)
    """The maps on the page; everything else refers to them by index."""
    shown: dict[int, int] = field(default_factory=dict)
    """The index on the page of the image of a row."""
    requested: int = 0
    available: int = 0
    """The number of images that were requested, and the number of images that were found."""

    def __post_init__(self) -> None:
        self.number = {int(row): k for k, row in enumerate(self.maps.rows)}
        self.classes = [str(self.columns.target[int(row)]) for row in self.maps.rows]

    @property
    def settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.data.manifest.get("settings", {})
        return settings

    @property
    def only_wrong(self) -> bool:
        """Whether the run contains only mistakes."""
        return self.settings.get("where") == WRONG

    def add_map(self, values: Floats) -> int:
        """Add a map to the page, and return its index."""
        self.packed_maps.append(pack(values))
        return len(self.packed_maps) - 1

    def class_name(self, entry: Mapping[str, Any]) -> str:
        """Return the name of one of the top classes of a row."""
        names, index = self.names, entry["index"]
        return names[index] if index < len(names) else str(entry["class"])

    @cached_property
    def names(self) -> list[str]:
        """The names of all classes."""
        return summary.distinct(self.data.manifest.get("classes", []))

    def crop(self, number: int) -> Image.Image | None:
        """Return the part of the image of a map that the network received."""
        image = self.report.read(self.columns.path[int(self.maps.rows[number])])
        self.requested, self.available = self.requested + 1, self.available + (image is not None)
        return None if image is None else images.crop(image, self.report.model)


def gather(data: RunData, report: Report) -> dict[str, Any]:
    """Return the variables of the template and the data of the script of the page.

    Errors   Refused for a run without a readable image
    """
    manifest = data.manifest
    columns = summary.Columns.of(data.table, manifest.get("classes", []), manifest.get("labelled"))
    method = manifest.get("settings", {}).get("method", "")
    page = _Context(data, report, columns, read_maps(data.table, by_size=text.by_size(method)))
    if not columns.readable:
        reason = "could be read" if any(columns.error) or not page.only_wrong else "was predicted wrong"
        raise Refused(f"No image of {str(data.folder)!r} {reason}, so there is nothing to report.")
    regions = _regions(page)
    clusters = find_clusters(page.maps, page.classes)
    candidates = shortcuts.find_candidates(page.maps, clusters, page.classes, page.crop)
    compared = page.available > 0 or not page.requested
    mistakes = summary.most_confident_mistakes(columns, MISTAKES)
    _choose(page, mistakes, clusters, candidates)
    rows = summary.class_rows(columns, page.maps, {name: page.maps.share(region) for name, region in regions.items()})
    pairs = summary.confusions(columns)
    findings = summary.finding_rows(columns)
    content: dict[str, Any] = {
        **headlines.head(page.data, columns, page.settings, rows),
        "only_wrong": page.only_wrong,
        "classes": text.classes(rows, list(regions)),
        "classes_note": text.classes_note(rows),
        "regions": text.regions(regions, page.maps, rows),
        "relevance_note": text.relevance_note(method),
        "confusions": text.confusions(pairs),
        "confusions_note": text.confusions_note(pairs),
        "findings": text.findings(findings),
        "means": [
            {"name": row.name, "count": row.maps, "map": page.add_map(row.mean)} for row in rows if row.mean is not None
        ],
        "means_note": text.means_note(bool(columns.labeled), page.only_wrong),
        **_clusters(page, clusters, candidates),
        **_mistakes(page, mistakes),
        **text.metrics(data.folder),
        "unreadable": text.unreadable(summary.unreadable(columns)),
        "facts": text.facts(page.data, page.settings),
    }
    content["highlights"] = headlines.highlights(rows, pairs, findings, content, compared)
    content["images_note"] = text.images_note(len(page.shown), len(columns.readable), report.link, data.folder)
    border = page.maps.share(regions[text.BORDER])
    content["data"] = {
        "images": _images(page, border, clusters),
        "maps": page.packed_maps,
        "findings": {row.code: row.title for row in findings},
        "unit": text.unit(method, manifest.get("score", "")),
    }
    return content


def _regions(page: _Context) -> dict[str, Floats]:
    """Return the regions whose share of the relevance is reported, by name."""
    size = page.maps.size
    regions = {text.BORDER: border_region(size)}
    if page.report.box is not None:
        regions[text.BOX] = box_region(size, page.report.box)
    if (mask := page.report.mask) is not None:
        if callable(mask):
            masks = [mask(page.columns.path[int(row)]) for row in page.maps.rows]
            nothing = np.full(size, np.nan)  # an image without a mask has no share
            regions[text.MASK] = np.stack(
                [nothing if image_mask is None else mask_region(size, image_mask) for image_mask in masks]
            )
        else:
            regions[text.MASK] = mask_region(size, mask)
    return regions


def _choose(
    page: _Context, mistakes: list[int], clusters: list[Cluster], candidates: list[shortcuts.Candidate]
) -> None:
    """Choose the images of the page: those shown elsewhere on it, more mistakes, and an even sample of the rest."""
    numbers = [number for candidate in candidates if candidate.is_shortcut for number in candidate.members[:TYPICAL]]
    numbers += [number for cluster in clusters for number in cluster.members[:TYPICAL]]
    preferred = [*mistakes, *(int(page.maps.rows[number]) for number in numbers)]
    preferred += summary.most_confident_mistakes(page.columns, SHOWN // 4)
    chosen = list(dict.fromkeys(preferred))[:SHOWN]
    included = set(chosen)
    rest = [row for row in page.columns.readable if row not in included]
    count = min(len(rest), SHOWN - len(chosen))
    chosen += [rest[k] for k in np.linspace(0, len(rest) - 1, count).round().astype(int)] if count else []
    page.shown = {row: k for k, row in enumerate(sorted(chosen))}


def _images(page: _Context, border: Floats, clusters: list[Cluster]) -> list[dict[str, Any]]:
    """Return the data of the images on the page for report.js."""
    budget = images.budget(len(page.shown))
    classes = page.data.manifest.get("classes", ())
    address = links.Links(page.report.link, page.settings, classes) if page.report.link else None
    cluster_of = {int(number): k for k, cluster in enumerate(clusters) for number in cluster.members}
    table = page.data.table
    entries = []
    for done, row in enumerate(page.shown):
        record = table.slice(row, 1).to_pylist()[0]
        number = page.number.get(row)
        crop = None if number is None else page.crop(number)
        image, width, height = images.small(crop, budget) if crop is not None else (None, 1, 1)
        entry = {name: getattr(page.columns, name)[row] for name in ENTRY_COLUMNS}
        entry |= {"findings": record["findings"] or [], "texts": record["finding_texts"] or [], "image": image}
        top = [[page.class_name(entry_), summary.as_numbers(entry_["probability"])] for entry_ in record["top5"] or []]
        entry |= {"top": top, "w": width, "h": height}
        entry |= {name: summary.as_numbers(record[name]) for name in ("label_probability", "score")}
        if number is not None:
            entry |= {
                "map": page.add_map(page.maps.values[number]),
                "border": summary.as_numbers(float(border[number])),
            }
            entry["cluster"] = cluster_of.get(number)
        if address is not None:
            entry["link"], entry["known"] = address.of(record)
        entries.append(entry)
        if page.report.progress is not None:
            page.report.progress(done + 1, len(page.shown))
    return entries


def _mistakes(page: _Context, rows: list[int]) -> dict[str, Any]:
    """Return the most confident mistakes, with the maps of both classes and their difference if available."""
    table = page.data.table
    records = [{**table.slice(row, 1).to_pylist()[0], "row": row} for row in rows]
    records = [record for record in records if record["row"] in page.number]
    map_pairs = {}
    if page.report.model is not None and records:
        map_pairs = dict(
            images.map_pairs(records, page.maps, page.number, page.report.read, page.report.model, page.settings)
        )
    mistakes = [_mistake(page, record, map_pairs.get(k)) for k, record in enumerate(records)]
    why = text.no_expected(page.report.model is not None, len(records), len(map_pairs))
    measure = text.unit(page.settings.get("method", ""), page.data.manifest.get("score", ""))
    return {
        "mistakes": mistakes,
        "mistakes_note": text.mistakes_note(len(records), why, measure),
    }


def _mistake(page: _Context, record: Mapping[str, Any], pair: images.MapPair | None) -> dict[str, Any]:
    if pair is None:
        values = page.maps.values[page.number[record["row"]]]
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


def _clusters(page: _Context, clusters: list[Cluster], candidates: list[shortcuts.Candidate]) -> dict[str, Any]:
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
        "clusters_note": text.clusters_note(len(by_class), len(several), len(order)),
        "single": text.single([name for name, group in by_class.items() if len(group) == 1]),
        "shortcuts": [_shortcut(page, candidate) for candidate in candidates if candidate.is_shortcut],
    }


def _cluster(page: _Context, cluster: Cluster) -> dict[str, Any]:
    rows = [int(row) for row in page.maps.rows[cluster.members]]
    known = [] if page.only_wrong else [correct for row in rows if (correct := page.columns.correct[row]) is not None]
    return {
        "count": len(rows),
        "share": text.percent(len(rows) / cluster.of),
        "accuracy": text.percent(float(np.mean(known))) if known else "",
        "mean": page.add_map(cluster.mean),
        "images": [page.shown[row] for row in rows[:TYPICAL] if row in page.shown],
    }


def _labeled(page: _Context, rows: list[int]) -> tuple[int, int] | None:
    """Return how many of these images are labeled with the explained class, and how many images are in total.

    Returns  None for a run without labels
    """
    index = page.columns.target_index[rows[0]]
    labels = page.columns.label_index
    whole = sum(labels[row] == index for row in page.columns.readable)
    return (sum(labels[row] == index for row in rows), whole) if whole else None


def _shortcut(page: _Context, candidate: shortcuts.Candidate) -> dict[str, Any]:
    rows = [int(row) for row in page.maps.rows[candidate.members]]
    return {
        **text.shortcut(candidate, _labeled(page, rows)),
        "pattern": images.data_address(candidate.pattern),
        "mean": page.add_map(page.maps.values[candidate.members].mean(0)),
        "images": [page.shown[row] for row in rows[:TYPICAL] if row in page.shown],
    }
