"""Suggestions for misspelled names."""

from __future__ import annotations

import pytest

import explainers
from saliscope.names import nearest
from saliscope.session import engine, model_cache
from saliscope.session.request import Request

METHODS = list(explainers.METHODS)
CLASSES = ["sandal", "pajama", "banana", "lesser panda", "giant panda", "German shepherd"]


@pytest.mark.parametrize(
    "typed, known, found",
    [
        ("grad_camm", METHODS, ["grad_cam"]),
        ("gradcam++", METHODS, ["grad_cam_pp"]),
        ("Grad-CAM", METHODS, ["grad_cam"]),
        ("integratd", METHODS, ["integrated_gradients"]),
        ("smoothgrad", METHODS, ["smooth_grad"]),
        ("pandaa", CLASSES, ["lesser panda", "giant panda"]),
        ("german_sheperd", CLASSES, ["German shepherd"]),
        ("quark", CLASSES, []),
        ("!!", CLASSES, []),
    ],
)
def test_the_most_similar_names_are_suggested(typed: str, known: list[str], found: list[str]) -> None:
    """Also by one word of a name, and only those that are about as similar as the best one."""
    assert nearest(typed, known)[: len(found) or None] == found


@pytest.mark.parametrize(
    "names, note",
    [
        ({"method": "channel_effects"}, "Channel effects has no map. It returns a number for each channel"),
        ({"layer": "layer9"}, "Unknown layer “layer9”. Available: stages.0, stages.1, "),
        ({"layer": "stage.4"}, "Unknown layer “stage.4”. Did you mean stages.4? Using the default instead: head."),
    ],
)
def test_the_note_of_an_unknown_name_helps(names: dict[str, str], note: str) -> None:
    model_cache.start()
    model_cache.ready.wait()
    (found,) = engine.resolve(Request(**names)).notes
    assert found.startswith(note), found
