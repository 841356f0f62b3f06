"""The sentences and the cells of the report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.report.analysis import shortcuts, summary

if TYPE_CHECKING:
    from dataset.report.analysis.maps import Floats, Maps
    from dataset.shards import Finished

BORDER, BOX, MASK = "border", "box", "mask"
WHERE = {BORDER: "at the border", BOX: "in the box", MASK: "on the mask"}
SHORT = {BORDER: "At border", BOX: "In box", MASK: "On mask"}
TITLES = {
    BORDER: "At the border: the outer 10% of each side",
    BOX: "In the given box",
    MASK: "On the given mask",
}
PAIRS = 200
"""Confusions in the table."""
PATHS = 20
"""Paths of unreadable pictures that are listed for a reason."""


def percent(share: float | None) -> str:
    """With one digit below ten."""
    if share is None or share != share:
        return ""
    return f"{100 * share:.0f}%" if share >= 0.0995 or share == 0 else f"{100 * share:.1f}%"


def number(value: float | None) -> str:
    """Three digits."""
    return "" if value is None or value != value else f"{value:.3g}".replace("-", "−")


def plural(count: int, noun: str) -> str:
    """Such as "1 picture", "1,200 pictures"."""
    if count == 1:
        return f"1 {noun}"
    return (
        f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"
    )


def _method(name: str) -> Any:
    import explainers  # torch takes seconds to start

    return explainers.METHODS.get(name)


def by_size(name: str) -> bool:
    """Whether maps of a method are drawn by magnitude."""
    method = _method(name)
    return method is not None and method.by_size


def title(name: str) -> str:
    """A method's title."""
    method = _method(name)
    return method.title if method is not None else name


def unit(name: str) -> str:
    """What the values of a method's maps are measured in."""
    method = _method(name)
    return method.unit if method is not None else ""


def classes(rows: list[summary.ClassRow], regions: list[str]) -> list[dict[str, Any]]:
    """The table of classes, the least accurate first."""
    ordered = sorted(rows, key=lambda row: (row.rate.value if row.rate else 2.0, row.name))
    return [_class(row, regions) for row in ordered]


def _class(row: summary.ClassRow, regions: list[str]) -> dict[str, Any]:
    interval = row.rate.interval if row.rate else None
    return {
        "name": row.name,
        "pictures": row.pictures,
        "accuracy": percent(row.rate.value) if row.rate else "",
        "accuracy_value": row.rate.value if row.rate else "",
        "interval": interval,
        "interval_text": f"{100 * interval[0]:.0f}–{100 * interval[1]:.0f}%" if interval else "",
        "probability": percent(row.probability),
        "probability_value": row.probability,
        "confused": row.confused[0] if row.confused else "",
        "confused_count": row.confused[1] if row.confused else 0,
        "shares": [{"value": _blank(row.shares[name]), "text": percent(row.shares[name])} for name in regions],
    }


def _blank(value: float) -> float | str:
    return "" if value != value else value


def classes_note(rows: list[summary.ClassRow]) -> str:
    """What the intervals mean."""
    if not any(row.rate for row in rows):
        return "Without labels, classes are those that the maps explain."
    return (
        "Intervals are Wilson's at 95%; the last columns are shares of the relevance. Click a class to see its "
        "pictures, a heading to sort."
    )


def regions(regions: Mapping[str, Floats], maps: Maps, rows: list[summary.ClassRow]) -> list[dict[str, Any]]:
    """The table of regions."""
    return [_region(name, region, maps, rows) for name, region in regions.items()]


def _region(name: str, region: Floats, maps: Maps, rows: list[summary.ClassRow]) -> dict[str, Any]:
    shares = maps.share(region)
    even = float(np.nanmean(region))
    known = sorted((row.shares[name], row.name) for row in rows if row.shares[name] == row.shares[name])
    return {
        "where": WHERE[name],
        "short": SHORT[name],
        "title": TITLES[name],
        "mean": summary.mean(shares),
        "mean_text": percent(summary.mean(shares)),
        "even": even,
        "even_text": percent(even),
        "count": int(np.isfinite(shares).sum()),
        "partly": bool(np.isnan(region).any()),
        "high": f"{known[-1][1]}, {percent(known[-1][0])}" if known else "",
        "high_value": known[-1][0] if known else "",
        "low": f"{known[0][1]}, {percent(known[0][0])}" if known else "",
        "low_value": known[0][0] if known else "",
    }


def relevance_note(method: str) -> str:
    """What relevance is here."""
    what = "the magnitude of each value" if by_size(method) else "the positive part of each map"
    return (
        f"Relevance is {what}, in shares that sum to 1 for each picture; a class's is the mean over its pictures. Much "
        "at the border, or off the object, is a reason to look at the pictures."
    )


def confusions(pairs: list[summary.Pair]) -> list[dict[str, Any]]:
    """The table of confusions."""
    return [
        {**vars(pair), "share_text": percent(pair.share), "probability_text": percent(pair.probability)}
        for pair in pairs[:PAIRS]
    ]


def confusions_note(pairs: list[summary.Pair]) -> str:
    """How many there are."""
    whole = sum(pair.count for pair in pairs)
    shown = f"; the first {PAIRS} are shown" if len(pairs) > PAIRS else ""
    return f"{plural(whole, 'mistake')} in {plural(len(pairs), 'pair')} of label and prediction{shown}."


def findings(rows: list[summary.FindingRow]) -> list[dict[str, Any]]:
    """The table of findings."""
    return [{**vars(row), "share_text": percent(row.share)} for row in rows]


def means_note(labelled: bool, only_wrong: bool) -> str:
    """What is averaged."""
    which = "of pictures with this label" if labelled else "that explain this class"
    which += " and were predicted wrong" if only_wrong else ""
    return (
        f"The mean over all maps {which}, in the method's own unit, each drawn in its own range. Places far from where "
        "the object stands in most pictures are worth a look."
    )


def clusters_note(classes: int, several: int, shown: int) -> str:
    """How they were found."""
    if not classes:
        return "No class has the 10 maps that clusters need."
    cut = f" The {shown} with the most are shown." if shown < several else ""
    return (
        "Spectral clustering of the pooled, normalised maps that explain a class (SpRAy: Lapuschkin et al. 2019); the "
        f"largest gap of eigenvalues gives the number of clusters. {several} of {plural(classes, 'class')} with at "
        f"least 10 maps {'has' if several == 1 else 'have'} more than one.{cut} The pictures are the most typical ones."
    )


def group(name: str, found: list[Any], named: bool) -> dict[str, Any]:
    """The heading of a class's clusters."""
    note = f"{plural(found[0].of, 'map')} in {plural(len(found), 'cluster')}"
    return {"name": name, "note": note + ("; possible shortcut, see above" if named else ""), "named": named}


def single(names: list[str]) -> str:
    """Classes whose maps form one cluster."""
    if not names:
        return ""
    listed = ", ".join(sorted(names)[:40]) + (" …" if len(names) > 40 else "")
    return f"One cluster only: {listed}."


def shortcut(place: shortcuts.Place, labelled: tuple[int, int] | None) -> dict[str, Any]:
    """A cluster that may be a shortcut, with its class, place and share of the pictures.

    `labelled` are the pictures with it among those of this label, and all of these; None in a run without labels.
    """
    where, name = shortcuts.words(place.box), place.name
    share = percent(len(place.members) / place.of)
    many = f"{len(place.members):,} of {plural(place.of, 'picture')} explained as {name} ({share})"
    if labelled is not None:
        share = percent(labelled[0] / labelled[1])
        many = f"{labelled[0]:,} of {plural(labelled[1], 'picture')} labelled {name} ({share}), and {many}"
    left, top, right, bottom = (100 * side for side in place.box)
    return {
        "name": name,
        "place": where,
        "share": share,
        "sentence": (
            f"In {many}, the photographs show the same thing in the {where}, and {percent(place.relevance)} of the "
            f"relevance lies there. In pictures of other classes it is {percent(place.elsewhere)}, and "
            f"{percent(place.others_alike) or '0%'} of them show it. A mark, a text or a frame may stand for {name}."
        ),
        "advice": f"To find out, cover the {where} in some of them and see whether {name} is still predicted.",
        "style": f"--l:{left:.1f}%;--t:{top:.1f}%;--w:{right - left:.1f}%;--h:{bottom - top:.1f}%",
    }


def mistakes_note(count: int, why: str, method: str) -> str:
    """What the four pictures are."""
    if not count:
        return "There is none."
    measured = f" ({unit(method)})" if unit(method) else ""
    return why or (
        "Each with the photograph, the maps of the predicted and of the expected class on one scale, and their "
        f"difference{measured}: red where the predicted class has more, blue where the expected class has."
    )


def no_expected(model: bool, asked: int, got: int) -> str:
    """Why maps of the expected class are missing; empty where none is."""
    if not asked or got == asked:
        return ""
    if not model:
        return "The maps of the expected class are missing: the network was not at hand when the report was written."
    return f"The maps of the expected class are missing for {asked - got} of {asked}: the photographs are gone."


def drawn(caption: str, drawing: int, limit: float | None, values: Floats, signed: bool = False) -> dict[str, Any]:
    """A map of a mistake, by its number on the page, with its range below."""
    low, high = float(values.min()), float(values.max())
    span = f"{number(low)} to {number(high)}" if signed or low < 0 else f"up to {number(high)}"
    label, caption = f"Map: {caption}", f"{caption}: {span}"
    return {"label": label, "caption": caption, "map": drawing, "limit": limit, "signed": signed}


def unreadable(reasons: list[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    """The table of pictures that could not be read."""
    return [
        {
            "reason": reason,
            "count": len(paths),
            "paths": ", ".join(paths[:PATHS]) + (" …" if len(paths) > PATHS else ""),
        }
        for reason, paths in reasons
    ]


def pictures_note(shown: int, readable: int, link: str | None, folder: Path) -> str:
    """Which pictures are on the page, and what the link does."""
    text = (
        f"All {plural(shown, 'picture')}."
        if shown == readable
        else (
            f"{shown:,} of {readable:,} pictures: the most confident mistakes, typical pictures of clusters, and an "
            "even sample of the rest. The numbers above are over all."
        )
    )
    if link:
        text += (
            " A picture's link opens it in the app at the same settings; the app has to be started with this run: "
            f"hooklens serve --run {shlex.quote(str(folder))}."
        )
    return text + " Click a picture to see it large; arrow keys go on, Esc closes."


def facts(finished: Finished, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings and versions."""
    manifest = finished.manifest
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    shown = ("model", "method", "layer", "target", "where", "options", "precision", "seed")
    listed = [
        (name.capitalize(), _value(settings.get(name))) for name in shown if settings.get(name) not in (None, "", {})
    ]
    seconds = manifest.get("seconds")
    return [
        *listed,
        ("Weights", f"SHA-256 {manifest['weights_sha256']}" if manifest.get("weights_sha256") else "unknown"),
        ("Versions", versions or "unknown"),
        ("Source", str(manifest.get("source", "unknown"))),
        ("Finished", f"{manifest.get('finished', 'unknown')}" + (f", after {seconds:.0f} s" if seconds else "")),
        ("Pictures are", "the region that the network saw, made smaller; maps are averaged to at most 56 cells a side"),
    ]


def _value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def evaluation(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("metrics") else {}


def metrics(folder: Path) -> dict[str, Any]:
    """The table of metrics, where the run was evaluated."""
    found = evaluation(folder)
    rows = [
        {
            "title": one.get("title", name),
            "sentence": one.get("sentence", ""),
            "mean": one.get("mean"),
            "mean_text": number(one.get("mean")),
            "error": one.get("error"),
            "error_text": f"± {number(one.get('error'))}" if one.get("error") is not None else "",
            "better": ", ".join(one.get("better_than", [])),
            "level": ", ".join(one.get("level_with", [])),
            "worse": ", ".join(one.get("worse_than", [])),
        }
        for name, one in found.get("metrics", {}).items()
    ]
    note = (
        f"Over {plural(int(found.get('pictures') or 0), 'picture')}; controls are maps that know nothing of the class."
    )
    return {"metrics": rows, "metrics_note": note}
