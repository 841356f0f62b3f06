"""Everything that the page says and shows, gathered from a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.errors import Refused
from dataset.report import headlines, links, pictures, say
from dataset.report.analysis import shortcuts, summary
from dataset.report.analysis.clusters import Cluster, clusters
from dataset.report.analysis.maps import Maps, border_region, box_region, mask_region, packed, read_maps
from dataset.report.pictures import Read
from dataset.settings import WRONG

if TYPE_CHECKING:
    from PIL import Image

    from dataset.report.analysis.maps import Floats
    from dataset.shards import Finished
    from models import Model

NAMED = ("path", "label", "prediction", "probability", "correct", "target")
SHOWN = 1000
"""Pictures on the page."""
MISTAKES = 24
TYPICAL = 6
"""Typical pictures of a cluster."""
GROUPS = 60
"""Classes whose clusters are shown."""


@dataclass
class Report:
    """What a report is made with, as `page.write` takes it."""

    read: Read
    model: Model | None = None
    box: Sequence[float] | None = None
    mask: Image.Image | Callable[[str], Image.Image | None] | None = None
    link: str | None = None
    progress: Callable[[int, int], None] | None = None


@dataclass
class _Gathered:
    """What the parts of the page share."""

    finished: Finished
    report: Report
    columns: summary.Columns
    maps: Maps
    drawn: list[dict[str, Any]] = field(default_factory=list)
    """Maps of the page, packed; everything else names them by their number."""
    shown: dict[int, int] = field(default_factory=dict)
    """The number on the page of a row's picture."""
    asked: int = 0
    there: int = 0
    """Photographs that were looked for, and those that were found."""

    def __post_init__(self) -> None:
        self.number = {int(row): k for k, row in enumerate(self.maps.rows)}
        self.classes = [str(self.columns.target[int(row)]) for row in self.maps.rows]

    @property
    def settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.finished.manifest.get("settings", {})
        return settings

    @property
    def only_wrong(self) -> bool:
        """Whether the run kept mistakes alone."""
        return self.settings.get("where") == WRONG

    def keep(self, values: Floats) -> int:
        """The number of a map on the page."""
        self.drawn.append(packed(values))
        return len(self.drawn) - 1

    def class_name(self, one: Mapping[str, Any]) -> str:
        """Of one of the likeliest classes of a row."""
        names, index = self.names, one["index"]
        return names[index] if index < len(names) else str(one["class"])

    @cached_property
    def names(self) -> list[str]:
        """The names of all classes."""
        return summary.distinct(self.finished.manifest.get("classes", []))

    def crop(self, number: int) -> Image.Image | None:
        """What the network saw of the picture of a map."""
        photo = self.report.read(self.columns.path[int(self.maps.rows[number])])
        self.asked, self.there = self.asked + 1, self.there + (photo is not None)
        return None if photo is None else pictures.crop(photo, self.report.model)


def gather(finished: Finished, report: Report) -> dict[str, Any]:
    """What the template and the script of the page take.

    Errors   Refused for a run without a readable picture
    """
    manifest = finished.manifest
    columns = summary.Columns.of(finished.table, manifest.get("classes", []), manifest.get("labelled"))
    method = manifest.get("settings", {}).get("method", "")
    g = _Gathered(finished, report, columns, read_maps(finished.table, by_size=say.by_size(method)))
    if not columns.readable:
        none = "could be read" if any(columns.error) or not g.only_wrong else "was predicted wrong"
        raise Refused(f"No picture of {str(finished.folder)!r} {none}, so there is nothing to report on.")
    regions = _regions(g)
    found = clusters(g.maps, g.classes)
    places = shortcuts.places(g.maps, found, g.classes, g.crop)
    compared = g.there > 0 or not g.asked
    mistakes = summary.most_confident_mistakes(columns, MISTAKES)
    _choose(g, mistakes, found, places)
    rows = summary.class_rows(columns, g.maps, {name: g.maps.share(region) for name, region in regions.items()})
    pairs = summary.confusions(columns)
    findings = summary.finding_rows(columns)
    content: dict[str, Any] = {
        **headlines.head(g.finished, columns, g.settings, rows),
        "only_wrong": g.only_wrong,
        "classes": say.classes(rows, list(regions)),
        "classes_note": say.classes_note(rows),
        "regions": say.regions(regions, g.maps, rows),
        "relevance_note": say.relevance_note(method),
        "confusions": say.confusions(pairs),
        "confusions_note": say.confusions_note(pairs),
        "findings": say.findings(findings),
        "means": [
            {"name": row.name, "count": row.maps, "map": g.keep(row.mean)} for row in rows if row.mean is not None
        ],
        "means_note": say.means_note(bool(columns.labelled), g.only_wrong),
        **_clusters(g, found, places),
        **_mistakes(g, mistakes),
        **say.metrics(finished.folder),
        "unreadable": say.unreadable(summary.unreadable(columns)),
        "facts": say.facts(g.finished, g.settings),
    }
    content["standout"] = headlines.standout(rows, pairs, findings, content, compared)
    content["pictures_note"] = say.pictures_note(len(g.shown), len(columns.readable), report.link, finished.folder)
    border = g.maps.share(regions[say.BORDER])
    content["data"] = {
        "pictures": _pictures(g, border, found),
        "maps": g.drawn,
        "findings": {row.code: row.title for row in findings},
        "unit": say.unit(method),
    }
    return content


def _regions(g: _Gathered) -> dict[str, Floats]:
    """The regions whose share of relevance is told, by name."""
    size = g.maps.size
    regions = {say.BORDER: border_region(size)}
    if g.report.box is not None:
        regions[say.BOX] = box_region(size, g.report.box)
    if (mask := g.report.mask) is not None:
        if callable(mask):
            each = [mask(g.columns.path[int(row)]) for row in g.maps.rows]
            nothing = np.full(size, np.nan)  # a picture without a mask has no share
            regions[say.MASK] = np.stack([nothing if one is None else mask_region(size, one) for one in each])
        else:
            regions[say.MASK] = mask_region(size, mask)
    return regions


def _choose(g: _Gathered, mistakes: list[int], found: list[Cluster], places: list[shortcuts.Place]) -> None:
    """The pictures of the page: what is shown elsewhere, other mistakes, and an even sample of the rest."""
    numbers = [number for place in places if place.is_shortcut for number in place.members[:TYPICAL]]
    numbers += [number for cluster in found for number in cluster.members[:TYPICAL]]
    first = [*mistakes, *(int(g.maps.rows[number]) for number in numbers)]
    first += summary.most_confident_mistakes(g.columns, SHOWN // 4)
    chosen = list(dict.fromkeys(first))[:SHOWN]
    taken = set(chosen)
    rest = [row for row in g.columns.readable if row not in taken]
    room = min(len(rest), SHOWN - len(chosen))
    chosen += [rest[k] for k in np.linspace(0, len(rest) - 1, room).round().astype(int)] if room else []
    g.shown = {row: k for k, row in enumerate(sorted(chosen))}


def _pictures(g: _Gathered, border: Floats, found: list[Cluster]) -> list[dict[str, Any]]:
    """The pictures of the page, as report.js takes them."""
    budget = pictures.budget(len(g.shown))
    classes = g.finished.manifest.get("classes", ())
    address = links.Links(g.report.link, g.settings, classes) if g.report.link else None
    inside = {int(number): k for k, cluster in enumerate(found) for number in cluster.members}
    table = g.finished.table
    made = []
    for done, row in enumerate(g.shown):
        record = table.slice(row, 1).to_pylist()[0]
        number = g.number.get(row)
        picture = None if number is None else g.crop(number)
        image, width, height = pictures.small(picture, budget) if picture is not None else (None, 1, 1)
        entry = {name: getattr(g.columns, name)[row] for name in NAMED}
        entry |= {"findings": record["findings"] or [], "texts": record["finding_texts"] or [], "image": image}
        top = [[g.class_name(one), summary.as_numbers(one["probability"])] for one in record["top5"] or []]
        entry |= {"top": top, "w": width, "h": height}
        entry |= {name: summary.as_numbers(record[name]) for name in ("label_probability", "score")}
        if number is not None:
            entry |= {"map": g.keep(g.maps.values[number]), "border": summary.as_numbers(float(border[number]))}
            entry["cluster"] = inside.get(number)
        if address is not None:
            entry["link"], entry["known"] = address.of(record)
        made.append(entry)
        if g.report.progress is not None:
            g.report.progress(done + 1, len(g.shown))
    return made


def _mistakes(g: _Gathered, rows: list[int]) -> dict[str, Any]:
    """The most confident mistakes, with both maps and their difference where they can be had."""
    table = g.finished.table
    records = [{**table.slice(row, 1).to_pylist()[0], "row": row} for row in rows]
    records = [record for record in records if record["row"] in g.number]
    both = {}
    if g.report.model is not None and records:
        both = dict(pictures.both_maps(records, g.maps, g.number, g.report.read, g.report.model, g.settings))
    made = [_mistake(g, record, both.get(k)) for k, record in enumerate(records)]
    why = say.no_expected(g.report.model is not None, len(records), len(both))
    return {"mistakes": made, "mistakes_note": say.mistakes_note(len(records), why, g.settings.get("method", ""))}


def _mistake(g: _Gathered, record: Mapping[str, Any], both: pictures.Both | None) -> dict[str, Any]:
    if both is None:
        shown = g.maps.values[g.number[record["row"]]]
        drawn = [say.drawn(f"map of {g.columns.target[record['row']]}", g.keep(shown), None, shown)]
    else:
        limit = float(max(both.predicted.max(), both.expected.max())) or None
        low, named = min(both.predicted.min(), both.expected.min()), g.columns.prediction[record["row"]]
        limit = float(max(abs(low), limit or 0)) if low < 0 else limit
        drawn = [
            say.drawn(f"{named} (predicted)", g.keep(both.predicted), limit, both.predicted),
            say.drawn(f"{g.columns.label[record['row']]} (expected)", g.keep(both.expected), limit, both.expected),
            say.drawn("predicted − expected", g.keep(both.difference), None, both.difference, signed=True),
        ]
    return {
        "picture": g.shown[record["row"]],
        "path": record["path"],
        "label": g.columns.label[record["row"]],
        "prediction": g.columns.prediction[record["row"]],
        "probability": say.percent(record["probability"]),
        "label_probability": say.percent(record["label_probability"]),
        "maps": drawn,
    }


def _clusters(g: _Gathered, found: list[Cluster], places: list[shortcuts.Place]) -> dict[str, Any]:
    """The clusters by class, those with several first, and the shortcuts that are named."""
    by_class: dict[str, list[Cluster]] = {}
    for cluster in found:
        by_class.setdefault(cluster.name, []).append(cluster)
    several = {name: group for name, group in by_class.items() if len(group) > 1}
    named = {place.name for place in places if place.is_shortcut}
    order = sorted(several, key=lambda name: (name not in named, -len(several[name]), name))[:GROUPS]
    return {
        "groups": [
            {**say.group(name, several[name], name in named), "clusters": [_cluster(g, c) for c in several[name]]}
            for name in order
        ],
        "clusters_note": say.clusters_note(len(by_class), len(several), len(order)),
        "single": say.single([name for name, group in by_class.items() if len(group) == 1]),
        "shortcuts": [_shortcut(g, place) for place in places if place.is_shortcut],
    }


def _cluster(g: _Gathered, cluster: Cluster) -> dict[str, Any]:
    rows = [int(row) for row in g.maps.rows[cluster.members]]
    known = [] if g.only_wrong else [one for row in rows if (one := g.columns.correct[row]) is not None]
    return {
        "count": len(rows),
        "share": say.percent(len(rows) / cluster.of),
        "accuracy": say.percent(float(np.mean(known))) if known else "",
        "place": "",
        "mean": g.keep(cluster.mean),
        "pictures": [g.shown[row] for row in rows[:TYPICAL] if row in g.shown],
    }


def _labelled(g: _Gathered, rows: list[int]) -> tuple[int, int] | None:
    """How many of these pictures have the explained class as label, and how many pictures have; None without labels."""
    index = g.columns.target_index[rows[0]]
    labels = g.columns.label_index
    whole = sum(labels[row] == index for row in g.columns.readable)
    return (sum(labels[row] == index for row in rows), whole) if whole else None


def _shortcut(g: _Gathered, place: shortcuts.Place) -> dict[str, Any]:
    rows = [int(row) for row in g.maps.rows[place.members]]
    return {
        **say.shortcut(place, _labelled(g, rows)),
        "thing": pictures.data_address(place.thing),
        "mean": g.keep(g.maps.values[place.members].mean(0)),
        "pictures": [g.shown[row] for row in rows[:TYPICAL] if row in g.shown],
    }
