"""The texts and the table cells of the report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from saliscope import percentages
from saliscope.datasets.report.analysis import shortcuts, summary
from saliscope.datasets.report.analysis.clusters import LEAST
from saliscope.datasets.stores import open_store

if TYPE_CHECKING:
    from saliscope.datasets.report.analysis.map_pass import Region
    from saliscope.datasets.report.analysis.maps import Floats
    from saliscope.datasets.run_data import RunData

BORDER, BOX, MASK = "border", "box", "mask"
WHERE = {BORDER: "at the border", BOX: "in the box", MASK: "in the mask"}
SHORT = {BORDER: "At border", BOX: "In box", MASK: "In mask"}
TITLES = {
    BORDER: "At the border (the outer 10% of each side)",
    BOX: "In the given box",
    MASK: "In the given mask",
}
PROBABILITIES = {
    "sigmoid": "sigmoid of each score, so the probabilities of an image do not sum to 1",
    "identity": "as returned by the network",
    "log": "as returned by the network, as logarithms",
    "logit": "none: the scores of the network are not probabilities",
}
"""How scores became probabilities, unless by a softmax."""
PAIRS = 200
"""Maximum number of confusions in the table."""
PATHS = 20
"""Maximum number of paths of unreadable images that are listed per error."""


def percent(share: float | None) -> str:
    """Return a share as a percentage, or an empty string if it is unknown."""
    return "" if share is None or share != share else percentages.percent(share)


def number(value: float | None) -> str:
    """Format a value with three digits."""
    return "" if value is None or value != value else f"{value:.3g}".replace("-", "−")


def plural(count: int, noun: str) -> str:
    """Return the number with the noun, such as "1 image" or "1,200 images"."""
    if count == 1:
        return f"1 {noun}"
    return (
        f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"
    )


def _method(name: str) -> Any:
    import explainers  # torch takes seconds to start

    return explainers.METHODS.get(name)


def by_size(name: str) -> bool:
    """Return whether maps of a method show magnitudes."""
    method = _method(name)
    return method is not None and method.returns == "pixels"  # means of signed pixels would cancel


def title(name: str) -> str:
    """Return the title of a method."""
    method = _method(name)
    return method.title if method is not None else name


def unit(name: str, score: str = "") -> str:
    """Return the unit of the values of a method's maps; `score` says how scores become probabilities."""
    from explainers import score_unit  # torch takes seconds to start

    method = _method(name)
    return method.unit.replace("logit", score_unit(score)) if method is not None else ""


def classes(rows: list[summary.ClassRow], regions: list[str]) -> list[dict[str, Any]]:
    """Return the table of classes, the least accurate first."""
    ordered = sorted(rows, key=lambda row: (row.rate.value if row.rate else 2.0, row.name))
    return [_class(row, regions) for row in ordered]


def _class(row: summary.ClassRow, regions: list[str]) -> dict[str, Any]:
    interval = row.rate.interval if row.rate else None
    return {
        "name": row.name,
        "images": row.images,
        "accuracy": percent(row.rate.value) if row.rate else "",
        "accuracy_value": row.rate.value if row.rate else "",
        "interval": interval,
        "interval_text": f"{100 * interval[0]:.0f}–{100 * interval[1]:.0f}%" if interval else "",
        "probability": percent(row.probability),
        "probability_value": _blank(row.probability),
        "confused": row.confused[0] if row.confused else "",
        "confused_count": row.confused[1] if row.confused else 0,
        "shares": [{"value": _blank(row.shares[name]), "text": percent(row.shares[name])} for name in regions],
    }


def _blank(value: float) -> float | str:
    return "" if value != value else value


def classes_note(rows: list[summary.ClassRow], has_labels: bool) -> str:
    """Explain the intervals and the last columns."""
    if not any(row.rate for row in rows):
        if has_labels:
            return "Images are grouped by label. No label is a class of the network, so accuracies were not measured."
        return "Without labels, images are grouped by the explained class."
    return (
        "The intervals are 95% Wilson intervals; the last columns are shares of the relevance. Click a class to see "
        "its images, or a heading to sort the table."
    )


def regions(regions: Mapping[str, Region], rows: list[summary.ClassRow]) -> list[dict[str, Any]]:
    """Return the table of regions."""
    return [_region(name, region, rows) for name, region in regions.items()]


def _region(name: str, region: Region, rows: list[summary.ClassRow]) -> dict[str, Any]:
    mean = summary.mean(region.shares)
    known = sorted((row.shares[name], row.name) for row in rows if row.shares[name] == row.shares[name])
    return {
        "where": WHERE[name],
        "short": SHORT[name],
        "title": TITLES[name],
        "mean": mean,
        "mean_text": percent(mean),
        "even": region.even,
        "even_text": percent(region.even),
        "count": int(np.isfinite(region.shares).sum()),
        "partly": region.partly,
        "high": f"{known[-1][1]}, {percent(known[-1][0])}" if known else "",
        "high_value": known[-1][0] if known else "",
        "low": f"{known[0][1]}, {percent(known[0][0])}" if known else "",
        "low_value": known[0][0] if known else "",
    }


def relevance_note(method: str) -> str:
    """Explain how relevance is defined."""
    definition = "the magnitude of each value" if by_size(method) else "the positive part of each map"
    return (
        f"Relevance is {definition}, normalized to a sum of 1 per image; the relevance of a class is the mean over its "
        "images. If much of it is at the border or off the object, inspect these images."
    )


def confusions(pairs: list[summary.Pair]) -> list[dict[str, Any]]:
    """Return the table of confusions."""
    return [
        {
            **vars(pair),
            "probability": _blank(pair.probability),
            "share_text": percent(pair.share),
            "probability_text": percent(pair.probability),
        }
        for pair in pairs[:PAIRS]
    ]


def confusions_note(found: summary.Confusions) -> str:
    """Return the note of the table of confusions."""
    shown = f"; the first {PAIRS} are shown" if found.different > PAIRS else ""
    return f"{plural(found.images, 'mistake')} in {plural(found.different, 'pair')} of label and prediction{shown}."


def findings(rows: list[summary.FindingRow]) -> list[dict[str, Any]]:
    """Return the table of findings."""
    return [{**vars(row), "share_text": percent(row.share)} for row in rows]


def means_note(labeled: bool, only_wrong: bool) -> str:
    """Explain which maps are averaged."""
    selection = "of images with this label" if labeled else "that explain this class"
    selection += " and a wrong prediction" if only_wrong else ""
    return (
        f"The mean over all maps {selection}, in the unit of the method. Each mean is drawn in its own range. High "
        "values far from the usual position of the object may indicate a shortcut."
    )


def clusters_note(classes: int, several: int, shown: int, sampled: bool, most: int, largest: int) -> str:
    """Explain how the clusters were computed; `largest` is the number of maps of the largest class."""
    if not classes:
        return (
            f"Not tested: clustering needs at least {LEAST} maps with relevance that explain a class, and no class has "
            f"more than {largest}."
        )
    sample = " Not all maps were clustered, but an even sample of each class." if sampled else ""
    sample += f" Only the {classes} classes with the most maps were clustered." if classes == most else ""
    cut = f" The {shown} classes with the most clusters are shown." if shown < several else ""
    return (
        "Spectral clustering of the pooled, normalized maps that explain a class (SpRAy: Lapuschkin et al. 2019); the "
        f"largest eigengap determines the number of clusters. {several} of {plural(classes, 'class')} with at least "
        f"{LEAST} maps {'has' if several == 1 else 'have'} more than one cluster.{cut}{sample} The most "
        "typical images are shown."
    )


def group(name: str, clusters: list[Any], is_shortcut: bool) -> dict[str, Any]:
    """Return the heading of the clusters of a class."""
    note = f"{plural(clusters[0].of, 'map')} in {plural(len(clusters), 'cluster')}"
    note += "; possible shortcut, see above" if is_shortcut else ""
    return {"name": name, "note": note, "named": is_shortcut}


def single(names: list[str]) -> str:
    """Return the message about classes whose maps form one cluster."""
    if not names:
        return ""
    listed = ", ".join(sorted(names)[:40]) + (" …" if len(names) > 40 else "")
    return f"One cluster only: {listed}."


def shortcut(candidate: shortcuts.Candidate, labeled: tuple[int, int] | None) -> dict[str, Any]:
    """Describe a possible shortcut: its class, its position, and its share of the images.

    `labeled` is the number of images with the pattern among those with this label, and the number of the latter; None
    in a run without labels.
    """
    where, name = shortcuts.describe(candidate.box), candidate.name
    share = percent(len(candidate.members) / candidate.of)
    counts = f"{len(candidate.members):,} of {plural(candidate.of, 'image')} explained as {name} ({share})"
    if labeled is not None:
        share = percent(labeled[0] / labeled[1])
        counts = f"{labeled[0]:,} of {plural(labeled[1], 'image')} labeled {name} ({share}), and {counts}"
    left, top, right, bottom = (100 * side for side in candidate.box)
    return {
        "name": name,
        "position": where,
        "share": share,
        "message": (
            f"In {counts}, the images contain the same pattern in the {where}, and {percent(candidate.relevance)} of "
            f"the relevance is there. In images of other classes it is {percent(candidate.elsewhere)}, and "
            f"{round(candidate.others_alike * candidate.others)} of {candidate.others} compared images contain the "
            f"pattern. The network may have learned a mark, a text or a frame as evidence for {name}."
        ),
        "advice": f"To check this, cover the {where} in some of these images, and see if {name} is still predicted.",
        "style": f"--l:{left:.1f}%;--t:{top:.1f}%;--w:{right - left:.1f}%;--h:{bottom - top:.1f}%",
    }


def no_shortcut(tested: shortcuts.Tested) -> str:
    """Return what was tested for shortcuts if none was found."""
    needs = (
        f"at least {LEAST} maps with relevance that explain a class, and {shortcuts.MANY} that explain other classes"
    )
    gone = "the images are not available anymore"
    if not tested.tested:
        if tested.unread:
            return f"Shortcuts were not tested, because {gone}."
        most = f"the largest class has {tested.largest} of {plural(tested.maps, 'map')}"
        return f"Shortcuts were not tested: this needs {needs}; {most}."
    text = f"Shortcuts: none found in the maps of {tested.tested} of {plural(tested.classes, 'class')}."
    few = tested.classes - tested.tested - tested.unread
    text += f" {plural(tested.unread, 'class')}: not tested, because {gone}." if tested.unread else ""
    return text + (f" {plural(few, 'class')}: not tested, because this needs {needs}." if few else "")


def no_findings(readable: int) -> str:
    """Return what was checked if there are no findings."""
    return f"No findings: {plural(readable, 'map')} checked for the problems that the method reports."


def all_correct(labeled: int) -> str:
    """Return how many predictions are correct if none is wrong."""
    return f"All predictions of {plural(labeled, 'image')} with a known label are correct."


def mistakes_note(count: int, wrong: int, labeled: int, why: str, measure: str) -> str:
    """Explain the four images of a mistake; `measure` is the unit of the maps."""
    if not wrong:
        return all_correct(labeled)
    if not count:
        return (
            f"{plural(wrong, 'prediction')} of {plural(labeled, 'image')} with a known label: wrong, but without a map."
        )
    measured = f" ({measure})" if measure else ""
    return why or (
        "Each row shows the image, the maps of the predicted and of the expected class on the same scale, and their "
        f"difference{measured}: red where the predicted class is larger, blue where the expected class is larger."
    )


def no_expected(model: bool, requested: int, computed: int) -> str:
    """Return why maps of the expected class are missing; empty if none is missing."""
    if not requested or computed == requested:
        return ""
    if not model:
        return "The maps of the expected class are missing, because the network was not available for the report."
    missing = requested - computed
    return f"The maps of the expected class are missing for {missing} of {requested}: the images are not available."


def map_entry(caption: str, index: int, limit: float | None, values: Floats, signed: bool = False) -> dict[str, Any]:
    """Return the caption and settings of a map of a mistake, which is referred to by its index on the page."""
    low, high = float(values.min()), float(values.max())
    span = f"{number(low)} to {number(high)}" if signed or low < 0 else f"up to {number(high)}"
    label, caption = f"Map: {caption}", f"{caption}: {span}"
    return {"label": label, "caption": caption, "map": index, "limit": limit, "signed": signed}


def unreadable(reasons: list[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    """Return the table of images that could not be read."""
    return [
        {
            "reason": reason,
            "count": len(paths),
            "paths": ", ".join(paths[:PATHS]) + (" …" if len(paths) > PATHS else ""),
        }
        for reason, paths in reasons
    ]


def images_note(shown: int, readable: int, link: str | None, folder: Path | str) -> str:
    """Explain which images are on the page, and what the link does."""
    text = (
        f"All {plural(shown, 'image')}."
        if shown == readable
        else (
            f"{shown:,} of {readable:,} images: the most confident mistakes, typical images of clusters, and an even "
            "sample of the rest. The numbers above are for all images."
        )
    )
    if link:
        text += (
            " The link of an image opens it in the app with the same settings. The app must be started with this run: "
            f"saliscope serve --run {shlex.quote(str(folder))}."
        )
    return text + " Click an image to enlarge it; use the arrow keys to see the next one, and Esc to close."


def facts(data: RunData, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings and versions."""
    manifest = data.manifest
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    shown = ("model", "method", "layer", "target", "where", "options", "precision", "seed")
    listed = [
        (name.capitalize(), _value(settings.get(name))) for name in shown if settings.get(name) not in (None, "", {})
    ]
    seconds = manifest.get("seconds")
    return [
        *listed,
        ("Weights", f"SHA-256 {manifest['weights_sha256']}" if manifest.get("weights_sha256") else "unknown"),
        *([("Device", ", ".join(used))] if (used := _devices(data)) else []),
        ("Versions", versions or "unknown"),
        *([("Probabilities", PROBABILITIES[score])] if (score := manifest.get("score")) in PROBABILITIES else []),
        ("Source", str(manifest.get("source", "unknown"))),
        ("Finished", f"{manifest.get('finished', 'unknown')}" + (f", after {seconds:.0f} s" if seconds else "")),
        ("Images", "the region that the network received, reduced; maps are averaged to at most 56 cells per side"),
    ]


def _devices(data: RunData) -> list[str]:
    """Return the devices that computed the rows."""
    return sorted(name for name in data.columns(["device"])["device"].unique().to_pylist() if name)


def _value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def evaluation(folder: Path | str) -> dict[str, Any]:
    """Return the content of evaluation.json, or an empty dictionary if the run was not evaluated."""
    try:
        content = json.loads(open_store(folder).read("evaluation.json") or b"{}")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("metrics") else {}


def metrics(folder: Path | str) -> dict[str, Any]:
    """Return the table of metrics, if the run was evaluated."""
    content = evaluation(folder)
    rows = [
        {
            "title": result.get("title", name),
            "sentence": result.get("sentence", ""),
            "mean": result.get("mean"),
            "mean_text": number(result.get("mean")),
            "error": result.get("error"),
            "error_text": f"± {number(result.get('error'))}" if result.get("error") is not None else "",
            "better": ", ".join(result.get("better_than", [])),
            "level": ", ".join(result.get("level_with", [])),
            "worse": ", ".join(result.get("worse_than", [])),
            "few": ", ".join(result.get("too_few_for", [])),
        }
        for name, result in content.get("metrics", {}).items()
    ]
    count = plural(int(content.get("images") or 0), "image")
    verdict = f"{content['verdict']} " if content.get("verdict") else ""
    note = (
        f"{verdict}Computed over {count}; control maps do not depend on the class. Better and worse: p < 0.05 in a "
        "sign-flip test, adjusted for the number of comparisons (Holm). Not tested: so few images cannot give p < 0.05."
    )
    return {"metrics": rows, "metrics_note": note}
