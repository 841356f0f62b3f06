"""Labels and messages of the ranking."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from saliscope import limits
from saliscope.compute import messages as page_messages
from saliscope.percentages import number

if TYPE_CHECKING:
    from explainers import Recommendation

RANKING = "Ranking"
CONTROLS = {"random": "random maps", "edge": "edge maps", "center": "a centered blob"}
"""Names of the controls, as in verdicts (explainers/verdict/)."""
STOPPED = "Stopped before the first map."
TOO_SHORT = "The time limit was reached before the first map was compared with the controls. Increase Seconds."
FEW = "Too few maps to compare the rankings by deletion and by insertion."
DIGITS = 3
"""Digits of a displayed difference; equal ones share a rank."""
UNKNOWN = "Internal error. See the server log for details. Press Rank methods to try again."

TERMS: dict[str, Any] = {
    "title": "Rank methods for this image",
    "text": "Compares all supported methods for the current image and class. Deletion blurs the most important pixels "
    "first and measures how fast the probability falls (lower is better). Insertion restores them first (higher is "
    "better). Gray rows are controls that do not use the network. A map that is not better than the controls is not "
    "informative.",
    "seconds": "Seconds",
    "layers": "Layers",
    "stages": "All stages",
    "here": "Current layer",
    "start": "Rank methods",
    "stop": "Stop",
    "stop_name": "Stop the ranking",
    "csv": "Save CSV",
    "four": "Compare top four",
    "best": "best",
    "same": "same map: {names}",
    "control": "control",
    "cut": "incomplete",
    "short": "≈ from a curve with {steps} steps; the best maps use {full}",
    "old": "The image, class or network has changed. Press Rank methods to update the ranking.",
    "empty": "No ranking yet.",
    "asked": "Waiting for the network …",
    "progress": "Progress",
    "wrong": f"Enter a number from {limits.RANKING[0]:g} to {limits.RANKING[1]:g}.",
    "refused": "Not ranked ({count})",
    "show": "Show {name} over the image",
    "columns": {
        "order": ["#", "Rank by difference, among the maps with full curves; equal differences share a rank"],
        "map": ["Map", "Method and layer"],
        "insertion": ["Insertion", "Area under the insertion curve: higher is better"],
        "deletion": ["Deletion", "Area under the deletion curve: lower is better"],
        "difference": ["Difference", "Insertion minus deletion: higher is better"],
        "margin": ["Margin over controls", "In standard deviations of random maps, and the verdict on this map"],
        "seconds": ["Seconds", "Time to compute the map on this machine"],
    },
}
"""Labels used by page/ranking/ranking.js, which fills in {…}."""


def wrong_seconds(value: Any) -> str:
    """Return the message for an invalid time limit."""
    low, high = limits.RANKING
    return f"Invalid time limit {page_messages.short(repr(value), 20)}. Choose {low:g} to {high:g} seconds."


def started(target: str) -> list[str | dict[str, Any]]:
    """Return the status before the first map."""
    return ["Ranking methods for ", page_messages.strong(target), " …"]


def progress(result: Recommendation, target: str, left: float) -> list[str | dict[str, Any]]:
    """Return the status of a running ranking: maps done, or that the best get full curves, and the time left."""
    reached = len(result.rows) + len(result.refused)
    rest = f"about {math.ceil(left)} s left" if left > 0 else "finishing the last map"
    again = len({row.steps for row in result.rows}) > 1
    state = f"Refining the best of {len(result.rows)} maps" if again else f"{reached} of {result.total} maps tested"
    return [f"{state} for ", page_messages.strong(target), f", {rest}"]


def finished(
    result: Recommendation, target: str, best: str, better: str, hardly_depends: bool, stopped: bool
) -> list[str | dict[str, Any]]:
    """Return the conclusion of a finished ranking, and the number of maps.

    `best` is the map with the largest difference, `better` the first one that is better than all controls (may be
    empty), and `hardly_depends` whether the latter hardly depends on the weights.
    """
    reached = len(result.rows) + len(result.refused)
    tried = f"all {result.total} tested" if reached >= result.total else f"{reached} of {result.total} tested"
    end = f" ({tried}, {result.seconds:.0f} s" + (", stopped)" if stopped else ")")
    count = len(result.rows)
    subject = page_messages.strong(target)
    warning = ", but it hardly depends on the weights" if hardly_depends else ""
    name = "none" if not better else "best" if better == best else "other"
    corrected = ", corrected for their number" if count > 1 else ""
    words = {"count": f"{count} map{'s' * (count != 1)}", "warning": warning, "corrected": corrected}
    parts = {"target": subject, "first": page_messages.strong(best), "better": page_messages.strong(better)}
    pieces = re.split(r"\{(target|first|better)\}", CONCLUSIONS[name][1])
    return [*(parts[each] if k % 2 else each.format(**words) for k, each in enumerate(pieces) if each), end]


CONCLUSIONS: dict[str, tuple[str, str]] = {
    "none": (
        "No map is better than every control by both metrics, corrected for the number of maps (Holm).",
        "None of {count} for {target} is significantly better than all controls by both metrics{corrected}",
    ),
    "best": (
        "The map with the largest difference is better than every control by both metrics, with the same correction.",
        "{first} is the best of {count} for {target}, better than all controls{warning}",
    ),
    "other": (
        "Another map than the one with the largest difference is the first that is better than every control.",
        "{first} has the largest difference of {count} for {target}, but is not better than all controls; "
        "{better} is{warning}",
    ),
}
"""The conclusions of a ranking: by name, the condition and the sentence. Each row has the verdict on its map."""


def title(name: str, layer: str | None) -> str:
    """Return the title of a map, such as "Grad-CAM at head"."""
    return f"{name} at {layer}" if layer else name


def agreement(a: str, b: str, rho: float) -> str:
    """Return whether two metrics agree on the ranking."""
    from explainers import Recommendation  # texts are imported before torch

    if math.isnan(rho):
        return FEW
    verb = Recommendation.describe_agreement(rho)
    return f"{a} and {b.lower()} {verb} on the order of the maps (rank correlation {number(rho, '.2f')})."
