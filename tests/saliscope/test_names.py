"""Suggestions for misspelled names, and shares and their changes as text."""

from __future__ import annotations

import math

import explainers
from saliscope.compute import engine, model_cache
from saliscope.compute.request import Request
from saliscope.names import nearest
from saliscope.percentages import percent, points

METHODS = list(explainers.METHODS)
CLASSES = ["sandal", "pajama", "banana", "lesser panda", "giant panda", "German shepherd"]


SUGGESTIONS: list[tuple[str, list[str], list[str]]] = [
    ("grad_camm", METHODS, ["grad_cam"]),
    ("gradcam++", METHODS, ["grad_cam_pp"]),
    ("integratd", METHODS, ["integrated_gradients"]),
    ("pandaa", CLASSES, ["lesser panda", "giant panda"]),
    ("german_sheperd", CLASSES, ["German shepherd"]),
    ("quark", CLASSES, []),
]


def test_the_most_similar_names_are_suggested() -> None:
    """Also by one word of a name, and only those that are about as similar as the best one."""
    for typed, known, found in SUGGESTIONS:
        assert nearest(typed, known)[: len(found) or None] == found, typed


def test_the_note_of_an_unknown_name_helps() -> None:
    model_cache.start()
    model_cache.ready.wait()
    for names, words in (
        ({"method": "channel_effects"}, "Channel effects has no map."),
        ({"layer": "layer9"}, "Unknown layer “layer9”. Available: stages.0, stages.1, "),
        ({"layer": "stage.4"}, "Did you mean stages.4? Using the default instead: head."),
    ):
        (found,) = engine.resolve(Request(**names)).notes
        assert words in found


SHARES = {
    0.0: "0%", 0.00099: "<0.1%", 0.001: "0.1%", 0.0994: "9.9%", 0.0995: "10%", 0.125: "13%", 1.0: "100%",
    1.234: "123%", -0.054: "−5.4%", -1e-6: "−<0.1%", math.nan: "NaN",
}  # fmt: skip
DIFFERENCES = {
    0.0: "0 pp", 0.0004: "+<0.1 pp", -0.0004: "−<0.1 pp", 0.0005: "+0.1 pp", -1: "−100.0 pp", math.inf: "NaN",
}  # fmt: skip


def test_shares_and_differences_have_the_digits_that_matter() -> None:
    assert {share: percent(share) for share in SHARES} == SHARES
    assert {difference: points(difference) for difference in DIFFERENCES} == DIFFERENCES
