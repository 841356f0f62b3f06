"""Every sentence of the trust strip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explainers.metrics.evaluation import Evaluation
    from explainers.metrics.randomisation_result import Randomisation
    from ui.engine.messages import Settings
    from ui.trust.messages import Alike

CONTROL = "It is one of the controls that other maps are compared with, so it has no place among them."
PLANES = "Each of its planes is a map by itself; a verdict is given on methods that draw one map of the class."
NO_MAP = "It gives no map of the picture, so there are no pixels to delete."
UNFINISHED = "The map was stopped before it was finished. Press Explain to finish it; then it can be compared."
NOT_KNOWN = "The picture is not on the server any more. Choose it again."
NOT_FINITE = "The map holds NaN or infinity, so its pixels have no order."
CONSTANT = "The map has the same value everywhere, so its pixels have no order."
FORGOTTEN = "The server has not kept this map. Press Explain to compute it again; then it can be compared."
STOPPED = "Stopped before there was a verdict."
OVER = "There was no verdict within the time limit."
NO_TEST = "The weights of this network could not be drawn anew."
UNIT = "Not compared: a channel does not depend on the weights of the layers after it."
CHANGED = "The settings have changed since. Press Explain to compare the map that they ask for."
ALL, LAST = "all weights were", "the last layer was"
NO_VALUE = "There is no verdict: {why}."
UNKNOWN = "The comparison failed. The map itself is not affected."

TERMS: dict[str, Any] = {
    "title": "Can I believe this map?",
    "ask": "Compare with controls",
    "stop": "Stop",
    "weights": "Draw the weights anew",
    "curves": "Curves",
    "working": "Comparing with random maps, edges and a centre blob: {percent}",
    "drawing": "Drawing weights anew: {percent}",
    "waiting": "Compared once the map is there.",
    "offer": "Deletes and inserts pixels in the map’s order, as for random maps, edges and a centre blob.",
    "rows": {"controls": "Controls", "class": "Class", "weights": "Weights"},
    "axis": "pixels {verb}, highest first",
    "verbs": {"deletion": "deleted", "insertion": "inserted"},
    "better": {"deletion": "lower is better", "insertion": "higher is better"},
    "own": "this map",
    "controls": {"random": "random", "edge": "edges", "centre": "centre"},
    "read": "{share} of the pixels {verb}: {unit} {own}; random {random}, edges {edge}, centre {centre}",
    "hint": "Hover, touch or use the arrow keys to see the photograph at a step.",
    "seen": "{share} of the pixels {verb}",
}
"""What trust.js says; {…} are filled in there."""


def unit(settings: Settings, evaluation: Evaluation) -> str:
    """What the curves show."""
    if settings.unit:
        return "channel mean"
    if settings.loaded.model.task == "classification" and evaluation.options.get("score") == "logit":
        return "logit"
    return {"detection": "score", "segmentation": "mean logit"}.get(settings.loaded.model.task, "probability")


def controls(evaluation: Evaluation) -> str:
    """The library's sentences: each area and its place among the controls."""
    return ". ".join(evaluation.sentence(metric) for metric in evaluation.values) + "."


def of_class(reads_class: bool, alike: Alike | None, limit: float) -> str:
    """Whether the map depends on the class."""
    if not reads_class:
        return "Does not depend on the class: the method never asks for one."
    if alike is None:
        return "Not compared with another class."
    if alike.correlation != alike.correlation:
        return f"The map of {alike.other} is constant or not finite: not compared."
    found = f"rank correlation {_signed(alike.correlation)} with the map of {alike.other}"
    return f"Hardly depends on the class: {found}." if alike.correlation > limit else f"Depends on the class: {found}."


def of_weights(test: Randomisation | str | None, passes: bool | None) -> str:
    """Whether the map depends on the weights; empty where that was not tried."""
    if test is None or isinstance(test, str):
        return test or ""
    what = "rank correlation of magnitudes" if test.by_size else "rank correlation"
    drawn = ALL if test.order == "cascade" else f"{test.steps[0]} was"
    if passes is None:
        return f"Once {drawn} drawn anew the map is constant or not finite: not compared."
    correlation = test.after_all_layers if test.order == "cascade" else test.after_last_layer
    found = f"{what} {_signed(correlation)} with the map once {drawn} drawn anew"
    if test.turns:
        return f"Hardly depends on the weights: its sign changes once {drawn} drawn anew, the map does not."
    return f"Depends on the weights: {found}." if passes else f"Hardly depends on the weights: {found}."


def of_table(passes: bool, correlation: float, drawn: str, network: str, photographs: int) -> str:
    """The same, of the method and not of this picture."""
    verdict = "depends" if passes else "hardly depends"
    return (
        f"The method {verdict} on the weights: rank correlation {_signed(correlation)} once {drawn} drawn anew, over "
        f"{photographs} photographs with {network}."
    )


def _signed(value: float) -> str:
    """A correlation with a true minus."""
    return f"{value:.2f}".replace("-", "−")
