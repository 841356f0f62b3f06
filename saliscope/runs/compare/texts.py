"""The sentences of a comparison, for its page and for the terminal."""

from __future__ import annotations

import json
import math
from typing import Any

from saliscope.runs.compare import statistics
from saliscope.runs.compare.agreement import Alignment
from saliscope.runs.compare.comparing import Comparison
from saliscope.runs.formats import p_value, percent, plural
from saliscope.runs.report.analysis.summary import Rate

LEVEL = 0.05


def number_of(value: float) -> str:
    """Format a value with two decimals."""
    return f"{value:.2f}".replace("-", "−")


def points(difference: float) -> str:
    """Return a difference of shares in percentage points, with one decimal and its sign."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def mcnemar_text(gained: int, lost: int) -> str:
    """Return the verdict and the p-value of McNemar's test, or how many images it needs."""
    if gained + lost < statistics.CHANGED:
        return f"not tested: McNemar's exact test needs {statistics.CHANGED} gained or lost images"
    p = statistics.mcnemar(gained, lost)
    return f"{'significant' if p < LEVEL else 'not significant'} (McNemar's exact test, p {p_value(p, '= ')})"


def interval_text(mean: statistics.Mean, scale: float = 1, unit: str = "") -> str:
    """Return the interval of a mean, or how many images it needs."""
    if math.isnan(mean.low):
        return f"no interval: fewer than {statistics.FEWEST} images"
    low, high = ((f"{scale * each:.1f}" if unit else number_of(each)) for each in (mean.low, mean.high))
    return f"95% interval {low} to {high}{unit}"


def accuracy_lines(result: Comparison) -> list[str]:
    """Return the accuracies of both runs over the same images, their difference, and the test."""
    labeled, gained, lost = (result.total(name) for name in ("labeled", "gained", "lost"))
    lines = []
    if result.compared:
        same = percent(result.agree / result.compared)
        lines.append(f"Same prediction for {same} of {plural(result.compared, 'image')}.")
    if not labeled:
        none = f"none of {plural(result.compared, 'image')} has" if result.compared else "no readable image has"
        return [*lines, f"Accuracies were not compared: {none} a label that is a class of both networks."]
    texts = []
    for letter in "ab":
        rate = Rate(result.total(f"correct_{letter}"), labeled)
        low, high = rate.interval
        texts.append(f"{100 * rate.value:.1f}% in {letter.upper()} ({100 * low:.1f} to {100 * high:.1f}%)")
    bounds = [points(each) for each in statistics.paired_difference(gained, lost, labeled)]
    change = f"{bounds[0]} points, 95% interval {bounds[1]} to {bounds[2]}; {gained:,} gained, {lost:,} lost"
    lines.append(f"Accuracy over the same {plural(labeled, 'image')}: {texts[0]} and {texts[1]}.")
    lines.append(f"B − A: {change}; {mcnemar_text(gained, lost)}.")
    return lines


def map_lines(result: Comparison, alignment: Alignment) -> list[str]:
    """Return the agreement of the maps and how they were compared."""
    mean, overlap = result.correlation.mean(), result.overlap.mean()
    lines = []
    if mean is not None and overlap is not None:
        lines.append(
            f"Maps of {plural(mean.count, 'image')} with the same prediction: mean rank correlation "
            f"{number_of(mean.value)} ({interval_text(mean)}), {percent(overlap.value)} of the highest 10% of cells in "
            f"common ({interval_text(overlap, 100, '%')}; unrelated maps: about 10%)."
        )
    if not result.agree:
        none = (
            f"none of {plural(result.compared, 'image')} has"
            if result.compared
            else "no image was read by both runs, so none has"
        )
        lines.append(f"Maps were not compared: {none} the same prediction in both runs.")
    else:
        lines.append(alignment.note)
    lines += [_sizes(result)] if _sizes(result) else []
    lines += [
        f"{plural(count, 'image')} with the same prediction: maps not compared ({note})."
        for note, count in sorted(result.map_notes.items())
    ]
    if result.other_targets:
        lines.append(
            f"{plural(result.other_targets, 'image')} with the same prediction: maps not compared, because the runs "
            "explain different classes."
        )
    return lines


def _sizes(result: Comparison) -> str:
    """Return how maps of different sizes were compared."""
    different = sorted({sizes for sizes in result.map_sizes if sizes[0] != sizes[1]})
    if not different:
        return ""
    shown = ", ".join(f"{a[0]} × {a[1]} and {b[0]} × {b[1]}" for a, b in different[:3])
    more = " …" if len(different) > 3 else ""
    return f"Maps of different sizes ({shown}{more}) were averaged to the coarser grid before the comparison."


def setting(value: Any) -> str:
    """Return the value of a setting as text; empty if it is not set."""
    if value in (None, "", {}, []):
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def sentences(result: Comparison, alignment: Alignment) -> list[str]:
    """Return the summary."""
    pairing = result.pairing
    alone = f"{result.changes['only_a']:,} only in A, {result.changes['only_b']:,} only in B"
    first = f"{plural(pairing.paired, 'image')} in both runs; {alone}."
    return [first, *accuracy_lines(result), *map_lines(result, alignment)]
