"""Labels and messages of the faithfulness check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saliscope.percentages import number

if TYPE_CHECKING:
    from explainers import Evaluation, Randomization
    from saliscope.compute.answers import Settings
    from saliscope.compute.trust.answers import ClassSimilarity

CONTROL = "This method is one of the controls that other maps are compared with, so it cannot be evaluated."
PLANES = "This method returns several planes. Only methods with a single map for the class can be evaluated."
NO_MAP = "This method does not return a map over the image, so there are no pixels to delete."
UNFINISHED = "The map is incomplete because it was stopped. Press Explain to finish it before the evaluation."
NOT_KNOWN = "The image is no longer on the server. Choose it again."
NOT_FINITE = "The map contains NaN or infinity, so its pixels cannot be ranked."
CONSTANT = "The map is constant, so its pixels cannot be ranked."
FORGOTTEN = "The map is no longer in the cache of the server. Press Explain to recompute it before the evaluation."
STOPPED = "Stopped before the evaluation finished."
OVER = "The evaluation exceeded the time limit. Choose a smaller network or try again."
NO_TEST = "The weights of this network could not be randomized."
UNIT = "Not tested: a channel does not depend on the weights of later layers."
CHANGED = "The settings have changed. Press Explain to compute the map for the current settings."
ALL, LAST = "all weights", "the last layer"
NO_VALUE = "No result: {why}."
UNKNOWN = "Internal error in the evaluation. The map is not affected. Press Compare with controls to try again."

TERMS: dict[str, Any] = {
    "title": "How faithful is this map?",
    "ask": "Compare with controls",
    "stop": "Stop",
    "stop_name": "Stop the check",
    "weights": "Randomize weights",
    "details": "Numbers and curves",
    "band": "range of random maps",
    "working": "Comparing with controls: {percent}",
    "drawing": "Randomizing weights: {percent}",
    "waiting": "The evaluation starts after the map is computed.",
    "offer": "Deletes and inserts pixels in the order of the map, and compares the result with random maps, edge maps "
    "and a centered blob.",
    "rows": {"controls": "Controls", "class": "Class", "weights": "Weights"},
    "titles": {"deletion": "Deletion", "insertion": "Insertion"},
    "area": "area {area}, {better}",
    "axis": "pixels {verb}, highest first",
    "plot": "{title}: {unit} over {axis}",
    "verbs": {"deletion": "deleted", "insertion": "inserted"},
    "better": {"deletion": "lower is better", "insertion": "higher is better"},
    "own": "this map",
    "controls": {"random": "random", "edge": "edges", "center": "center"},
    "read": "{share} of the pixels {verb}: {unit} {own}; random {random}, edges {edge}, center {center}",
    "hint": "Hover, touch or use the arrow keys to see the image at a step.",
    "seen": "{share} of the pixels {verb}",
}
"""Labels used by page/trust/trust.js, which fills in {…}."""


def unit(settings: Settings, evaluation: Evaluation) -> str:
    """Return the unit of the curves."""
    if settings.unit:
        return "channel mean"
    if settings.loaded.model.task == "classification" and evaluation.options.get("score") == "logit":
        if settings.sentences:
            return settings.measure
        return "logit" if settings.loaded.has_probabilities else "output"
    return {"detection": "score", "segmentation": "mean logit"}.get(settings.loaded.model.task, "probability")


def controls(evaluation: Evaluation) -> str:
    """Return the area under each curve and its comparison with the controls, as the library words them."""
    return ". ".join(evaluation.sentence(metric) for metric in evaluation.values) + "."


SENTENCES = {
    "agnostic": ("The method does not use the class.", "Class-agnostic: the method does not use the class."),
    "not_compared": ("The map of the runner-up class was not computed.", "Not compared with another class."),
    "blank": (
        "One of the two maps is constant or not finite.",
        "Not compared: the map of {other} is constant or not finite.",
    ),
    "class_hardly": ("The rank correlation is above 0.99 (`ALIKE`).", "Hardly depends on the class: {result}."),
    "class_partly": ("The rank correlation is above 0.5 (`PARTLY`).", "Partly depends on the class: {result}."),
    "class": ("The rank correlation is lower.", "Depends on the class: {result}."),
    "weights_blank": (
        "The map after the randomization is constant or not finite.",
        "Not compared: the map is constant or not finite after randomizing {part}.",
    ),
    "weights_turn": (
        "The randomization test fails, because only the sign changes.",
        "Hardly depends on the weights: randomizing {part} only flips the sign of the map.",
    ),
    "weights_hardly": ("The randomization test fails.", "Hardly depends on the weights: {result}."),
    "weights": ("The randomization test passes.", "Depends on the weights: {result}."),
    "method_hardly": (
        "Not tested on this image; the method fails the test over the images of the benchmark.",
        "In general, the method hardly depends on the weights: {result}.",
    ),
    "method": (
        "Not tested on this image; the method passes the test over the images of the benchmark.",
        "In general, the method depends on the weights: {result}.",
    ),
}
"""The rows of the check about class and weights: by name, the condition and the sentence."""


def _say(sentence: str, /, **values: str) -> str:
    return SENTENCES[sentence][1].format(**values)


def of_class(reads_class: bool, similarity: ClassSimilarity | None, dependence: str, reason: str = "") -> str:
    """Return whether the map depends on the class (see `Facts.class_dependence`), or why this was not tested."""
    if not reads_class:
        return _say("agnostic")
    if similarity is None:
        return reason or _say("not_compared")
    if similarity.correlation != similarity.correlation:
        return _say("blank", other=similarity.other)
    result = f"rank correlation {number(similarity.shown, '.2f')} with the map of {similarity.other}"
    if similarity.shown != similarity.shown:
        value = number(similarity.correlation, ".2f")
        result = f"rank correlation {value} with the map of {similarity.other}, before negative values are set to zero"
    return _say({"hardly": "class_hardly", "partly": "class_partly"}.get(dependence, "class"), result=result)


def of_weights(test: Randomization | str | None, passes: bool | None) -> str:
    """Return whether the map depends on the weights, or an empty string if that was not tested."""
    if test is None or isinstance(test, str):
        return test or ""
    measure = "rank correlation of magnitudes" if test.by_size else "rank correlation"
    part = ALL if test.order == "cascade" else test.steps[0]
    if passes is None:
        return _say("weights_blank", part=part)
    correlation = test.after_all_layers if test.order == "cascade" else test.after_last_layer
    if test.turns:
        return _say("weights_turn", part=part)
    result = f"{measure} {number(correlation, '.2f')} with the map after randomizing {part}"
    return _say("weights" if passes else "weights_hardly", result=result)


def of_table(passes: bool, correlation: float, part: str, network: str, count: int) -> str:
    """Return whether the method depends on the weights, as measured over the images of the benchmark."""
    result = (
        f"rank correlation {number(correlation, '.2f')} after randomizing {part}, over {count} images with {network}"
    )
    return _say("method" if passes else "method_hardly", result=result)
