"""Every sentence of the ranking, those of its script included."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ui import limits
from ui import words as page_words

if TYPE_CHECKING:
    from explainers.metrics.recommendation import Recommendation, Tried

RANKING = "Ranking"
CONTROLS = {"random": "random maps", "edge": "edges", "centre": "the centre blob"}
"""The controls in a sentence; as rows of the table they begin with a capital."""
ALL = "all three controls"
STOPPED = "Stopped before the first map."
TOO_SHORT = "The time was over before the first map was compared with the controls. Give more seconds."
FEW = "Too few maps to say whether deletion and insertion agree about their order."
NONE_BEATS = (
    "No map is better than every control by both metrics: on this picture, trust none of them on these figures alone."
)
UNKNOWN = "Internal error; the server's log has details. Press Rank methods to try again."

TERMS: dict[str, Any] = {
    "title": "Which method for this picture?",
    "text": "Every method that fits explains what the page explains. Deletion blurs the most important pixels "
    "first and shows how fast the probability falls (lower is better); insertion brings them back first (higher is "
    "better). Grey rows are controls, which know nothing of the network: a map that is not better tells no more than "
    "they do.",
    "seconds": "Seconds",
    "layers": "Layers",
    "stages": "All stages",
    "here": "The layer on the page",
    "start": "Rank methods",
    "stop": "Stop",
    "csv": "Save CSV",
    "four": "Compare the best four",
    "best": "best",
    "control": "control",
    "cut": "cut short",
    "short": "≈ from a curve of {steps} steps; the best maps get {full}",
    "old": "The page shows another picture, class or network by now. Press Rank methods to rank for that.",
    "empty": "Nothing ranked yet.",
    "asked": "Waiting for the network …",
    "wrong": f"Give a number from {limits.RANKING[0]:g} to {limits.RANKING[1]:g}.",
    "refused": "Not ranked, and why ({count})",
    "show": "Show {name} over the picture",
    "sort": "Sort by {column}",
    "columns": {
        "order": ["#", "Mean of the places by deletion and by insertion, best first"],
        "map": ["Map", "Method and layer"],
        "insertion": ["Insertion", "Area under the insertion curve: higher is better"],
        "deletion": ["Deletion", "Area under the deletion curve: lower is better"],
        "difference": ["Difference", "Insertion less deletion: higher is better"],
        "margin": ["Beside the controls", "By deletion and insertion, in spreads of random maps"],
        "seconds": ["Seconds", "For the map itself, on this machine now"],
    },
}
"""What the script says; {…} are filled in there."""


def wrong_seconds(given: Any) -> str:
    """For what is no time."""
    low, high = limits.RANKING
    return f"The time {page_words.short(repr(given), 20)} is not possible. Give {low:g} to {high:g} seconds."


def begun(whom: str) -> list[str | dict[str, Any]]:
    """Before the first map."""
    return ["Ranking methods for ", page_words.strong(whom), " …"]


def going(found: Recommendation, whom: str, left: float) -> list[str | dict[str, Any]]:
    """While it runs: how many of how many, or that the best get full curves, and the time that is left."""
    reached = len(found.rows) + len(found.refused)
    rest = f"about {math.ceil(left)} s left" if left > 0 else "finishing the last map"
    again = len({row.steps for row in found.rows}) > 1
    state = f"The best of {len(found.rows)} maps measured again" if again else f"{reached} of {found.total} tried"
    return [f"{state} for ", page_words.strong(whom), f", {rest}"]


def over(found: Recommendation, whom: str, best: str, stopped: bool) -> list[str | dict[str, Any]]:
    """The best, and of how many."""
    reached = len(found.rows) + len(found.refused)
    tried = f"all {found.total} were tried" if reached >= found.total else f"{reached} of {found.total} were tried"
    end = f"{tried}, {found.seconds:.0f} s" + (", stopped" if stopped else "")
    maps = f"{len(found.rows)} map{'s' * (len(found.rows) != 1)}"
    return [page_words.strong(best), f" is the best of {maps} for ", page_words.strong(whom), f" ({end})"]


def title(name: str, layer: str | None) -> str:
    """A map: "Grad-CAM at head"."""
    return f"{name} at {layer}" if layer else name


def beside(row: Tried) -> str:
    """The place among the controls by all metrics at once: "better than random maps; level with edges"."""
    by: dict[str, list[str]] = {}
    for control, name in CONTROLS.items():
        verdicts = {each[control].verdict for each in row.evaluation.places.values() if control in each}
        if verdicts:
            by.setdefault(verdicts.pop() if len(verdicts) == 1 else _mixed(verdicts), []).append(name)
    parts = [
        f"{say} {ALL if len(by[verdict]) == len(CONTROLS) else _and(by[verdict])}"
        for verdict, say in SAID.items()
        if verdict in by
    ]
    return "; ".join(parts)


SAID = {
    "better": "better than",
    "partly": "better by one metric alone than",
    "level": "level with",
    "divided": "metrics divided on",
    "lower": "by one metric worse than",
    "worse": "worse than",
    "unknown": "not compared with",
}


def _mixed(verdicts: set[str]) -> str:
    if verdicts == {"better", "level"}:
        return "partly"
    if verdicts == {"better", "worse"}:
        return "divided"
    return "lower" if verdicts == {"level", "worse"} else "unknown"


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def agreement(a: str, b: str, rho: float, winners: tuple[str, str]) -> str:
    """Whether two metrics agree about the order, and who wins each."""
    from explainers.metrics.recommendation import AGREE, DISAGREE  # torch takes seconds to start

    if math.isnan(rho):
        return FEW
    same = winners[0] == winners[1]
    wins = f"Both are won by {winners[0]}." if same else f"{a} is won by {winners[0]}, {b.lower()} by {winners[1]}."
    number = f"{rho:.2f}".replace("-", "−")
    word = "agree" if rho > AGREE else "disagree" if rho < DISAGREE else "agree in part"
    return f"{a} and {b.lower()} {word} about the order (rank correlation {number}). {wins}"


def same_map(name: str) -> str:
    """For a map that equals an earlier one."""
    return f"the same map as {name}"
