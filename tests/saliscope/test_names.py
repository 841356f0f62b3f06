"""Suggestions for misspelled names."""

from __future__ import annotations

import explainers
from saliscope.compute import engine, model_cache
from saliscope.compute.request import Request
from saliscope.names import nearest

METHODS = list(explainers.METHODS)
CLASSES = ["sandal", "pajama", "banana", "lesser panda", "giant panda", "German shepherd"]


SUGGESTIONS: list[tuple[str, list[str], list[str]]] = [
    ("grad_camm", METHODS, ["grad_cam"]),
    ("gradcam++", METHODS, ["grad_cam_pp"]),
    ("Grad-CAM", METHODS, ["grad_cam"]),
    ("integratd", METHODS, ["integrated_gradients"]),
    ("pandaa", CLASSES, ["lesser panda", "giant panda"]),
    ("german_sheperd", CLASSES, ["German shepherd"]),
    ("quark", CLASSES, []),
    ("!!", CLASSES, []),
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
