"""The sections about labels, probabilities and features of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from saliscope.datasets.report.analysis import calibration, embedding, hierarchy, label_errors, slices
from saliscope.datasets.report.text import percent, plural
from saliscope.percentages import points

if TYPE_CHECKING:
    import pyarrow as pa

    from saliscope.datasets.report.analysis.columns import Columns
    from saliscope.datasets.run_data import RunData

SHOWN_ERRORS = 48
"""Possible label errors on the page."""
ANCESTORS = 30
CHART = (320, 320, 40)
"""Width and height of the plot of the calibration, and its left and lower margin, in pixels."""


def calibration_section(columns: Columns, only_wrong: bool, score: str) -> dict[str, Any]:
    """Return the calibration curve, or a note that says why there is none."""
    if only_wrong:
        return {
            "calibration": None,
            "calibration_note": "The run has only wrong predictions, so calibration was not computed.",
        }
    found = calibration.calibrate(columns.probability, columns.correct)
    if found is None:
        reason = (
            "The scores are not probabilities" if score == "logit" else "No image has a known label and a probability"
        )
        return {"calibration": None, "calibration_note": f"{reason}, so calibration was not computed."}
    images = plural(found.count, "image")
    if found.smallest_p >= slices.LEVEL:
        verdict = (
            f"Whether the network is calibrated was not tested: with {images}, even the largest possible error would "
            "not be significant."
        )
    else:
        more = "more than" if found.p < slices.LEVEL else "not significantly more than"
        verdict = (
            f"That is {more} the {100 * found.expected:.2f}% that a perfectly calibrated network has with so many "
            f"images (p {_p(found.p, equal='= ')}, {calibration.SIMULATIONS:,} simulations)."
        )
    note = (
        f"Expected calibration error (ECE): {100 * found.ece:.2f}%, the mean over {images} of the difference "
        f"between accuracy and mean probability in {calibration.BINS} bins of equal width (Guo et al. 2017). {verdict}"
    )
    return {
        "calibration": {"bins": [_bin(each) for each in found.bins], "width": CHART[0], "height": CHART[1]},
        "calibration_note": note,
    }


def _p(p: float, equal: str = "") -> str:
    """Format a p-value: "< 0.001", or `equal` and three decimals."""
    return "< 0.001" if p < 0.001 else f"{equal}{p:.3f}"


def _bin(each: calibration.Bin) -> dict[str, Any]:
    low, high = each.rate.interval
    width, height, _ = CHART
    return {
        "range": f"{100 * each.low:.1f} to {100 * each.high:.1f}%",
        "count": each.rate.count,
        "confidence": f"{100 * each.confidence:.1f}%",
        "accuracy": f"{100 * each.rate.value:.1f}%",
        "interval": f"{100 * low:.1f} to {100 * high:.1f}%",
        "x": round(each.confidence * width, 1),
        "y": round((1 - each.rate.value) * height, 1),
        "top": round((1 - high) * height, 1),
        "bottom": round((1 - low) * height, 1),
    }


def slices_section(metadata: Mapping[str, pa.Array], columns: Columns, only_wrong: bool) -> dict[str, Any]:
    """Return the table of slices with a lower accuracy, and its notes; no table without metadata."""
    if not metadata or only_wrong or not columns.labeled:
        return {"slices": None, "slices_note": "", "no_slices": ""}
    found = slices.find_slices(metadata, columns.correct)
    rows = [
        {
            "column": each.column,
            "value": each.value,
            "count": each.rate.count,
            "accuracy": percent(each.rate.value),
            "accuracy_value": each.rate.value,
            "rest": percent(each.rest.value),
            "rest_value": each.rest.value,
            "difference": points(each.rate.value - each.rest.value),
            "difference_value": each.rate.value - each.rest.value,
            "p": _p(each.p),
            "p_value": each.p,
        }
        for each in found.worst
    ]
    skipped = "; ".join(f"{name}: {reason}" for name, reason in found.skipped.items())
    note = (
        f"{plural(found.tested, 'slice')} of at least {slices.LEAST} labeled images were compared with all other "
        "images (Fisher's exact test, one-sided, adjusted for the number of slices by Holm). Only slices with a "
        "significantly lower accuracy are listed." + (f" Columns without slices: {skipped}." if skipped else "")
    )
    if not found.tested:
        return {"slices": [], "slices_note": f"Slices were not tested: {skipped}.", "no_slices": ""}
    no_slices = "" if rows else f"None of the {plural(found.tested, 'slice')} has a significantly lower accuracy."
    return {"slices": rows, "slices_note": note, "no_slices": no_slices}


def errors_section(data: RunData, columns: Columns, only_wrong: bool) -> tuple[dict[str, Any], list[int]]:
    """Return the note about possible label errors, and the rows to show."""
    score = data.manifest.get("score")
    if score in ("sigmoid", "logit") or only_wrong:
        reason = "has only wrong predictions" if only_wrong else "has scores that are not probabilities of one label"
        return {"errors_note": f"Label errors were not estimated: the run {reason}."}, []
    found = label_errors.find_label_errors(data, columns)
    if found is None:
        return {"errors_note": "Label errors were not estimated: no image has a known label and a probability."}, []
    if not found.tested:
        sizes = ", ".join(f"{size:,}" for size in found.sizes[:3]) + (", …" if len(found.sizes) > 3 else "")
        return {
            "errors_note": (
                f"Label errors were not tested: an image is compared with classes other than its label that have at "
                f"least {label_errors.LEAST} labeled images. Labeled images by class: {sizes}."
            )
        }, []
    rows = [int(row) for row in found.rows[:SHOWN_ERRORS]]
    shown = f" The first {len(rows)} are shown." if len(found.rows) > len(rows) else ""
    unknown = (
        f" Rows have the probabilities of five classes, so {plural(found.unknown, 'more image')} could not be decided."
        if found.unknown
        else ""
    )
    averages = f"{found.averages:,} of {plural(len(found.sizes), 'class')}"
    note = (
        f"{len(found.rows):,} of {found.tested:,} tested images may have a wrong label, of "
        f"{plural(found.count, 'labeled image')} (confident learning, Northcutt et al. 2021, as in cleanlab): another "
        "class is at least as probable as it is on average for images with that label. Images are compared with the "
        f"{averages} with {label_errors.LEAST} or more labeled images. The images with the least probable labels come "
        f"first. The estimate is only valid for images that the network was not trained on.{unknown}{shown}"
    )
    return {"errors_note": note, "errors_count": len(found.rows)}, rows


def hierarchy_section(columns: Columns, classes: Sequence[str]) -> dict[str, Any]:
    """Return the table of common ancestors of mistakes; None for networks without the ImageNet classes."""
    found = hierarchy.by_ancestor(columns, classes)
    if not found:
        return {"ancestors": None, "ancestors_note": ""}
    total = sum(each.count for each in found)
    rows = [
        {"name": each.name, "classes": each.classes, "count": each.count, "pairs": each.pairs}
        | {"share": percent(each.count / total), "share_value": each.count / total}
        for each in found[:ANCESTORS]
    ]
    cut = f" The first {ANCESTORS} of {len(found)} are shown." if len(found) > ANCESTORS else ""
    note = (
        "The closest common ancestor of label and prediction in WordNet 3.0. Half of the mistakes are between classes "
        f"of a group of at most {plural(hierarchy.median_size(found), 'class')}; small groups are similar classes, and "
        f"entity is the root of all 1,000.{cut}"
    )
    return {"ancestors": rows, "ancestors_note": note}


def embedding_section(features: embedding.Features | None, readable: int) -> dict[str, Any]:
    """Return the positions of images by their index on the page, and the note below the view."""
    if features is None:
        return {
            "places": [],
            "embedding_note": "Features are not shown, because the network is not available.",
        }
    values = features.values()
    places = embedding.project(values)
    if features.failed:
        note = "Features are not shown, because the network has no layer with height and width."
    elif places is None:
        note = (
            f"Features are not shown: t-SNE needs {embedding.LEAST} images with different features, and "
            f"{len(values)} are available."
        )
    else:
        part = f" of {readable:,}" if readable > len(values) else ""
        note = (
            f"t-SNE of the features of {len(values):,}{part} images: the activations of the network's default layer, "
            "averaged over positions. Near images have similar features; distances between groups have no meaning. "
            "Drag a rectangle to list its images below. Filters below gray out the other images."
        )
    if places is None:
        return {"places": [], "embedding_note": note}
    listed = [[key, round(float(x), 4), round(float(y), 4)] for key, (x, y) in zip(features.keys, places, strict=True)]
    return {"places": listed, "embedding_note": note}
