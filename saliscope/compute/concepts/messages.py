"""Labels and messages of the view "Concepts"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saliscope.compute.interventions.messages import CHANGE
from saliscope.percentages import number, percent

if TYPE_CHECKING:
    from saliscope.compute.concepts.answers import Measured

TITLE = "Concepts"
COUNTS = (4, 8, 16)
"""How many concepts can be chosen."""
COUNT = 8
"""The default."""
INVALID = "The number or the concept is not valid. Reload the page and try again."
ONLY_CLASSIFIERS = (
    "{title} returns objects or regions instead of scores of classes, so effects of concepts are not measured. Choose "
    "a model that classifies images."
)
NO_METHOD = "No quick method explains this model, so there are no maps to compare. Choose another model."
THIS_IMAGE = "Image of the page"
STOPPED = "Stopped before the result was complete. Press Find concepts to start again."
FINDING = "Finding concepts of {layer} in {images} …"
MEASURING = "Removing one concept after another …"

TERMS = {
    "title": TITLE,
    "about": (
        "Concepts are directions in the channels of the layer: parts of which the features of several images are sums "
        "(non-negative factors). Each one has a map on this image. Its importance is how far the score of the class "
        "falls if the concept is removed."
    ),
    "count": "Concepts",
    "counts": list(COUNTS),
    "default": COUNT,
    "source": "Images",
    "sources": [["examples", "This image and the examples"], ["batch", "This image and those of Batch ({count})"]],
    "find": "Find concepts",
    "stop": "Stop",
    "waiting": "Computing …",
    "start": "Press Find concepts.",
    "old": "Outdated: the image, model, layer or class has changed. Press Find concepts.",
    "name": "Concept {index}",
    "map": "Concept {index} on this image",
    "tile": "Concept {index}, effect {effect}",
    "strongest": "Where it is strongest",
    "absent": "It is active in no image.",
    "factor": "Strength",
    "factors": {"0": "removed", "1": "unchanged", "2": "doubled"},
    "times": "times {factor}",
    "change": {name: CHANGE[name] for name in ("columns", "before", "after", "maps_waiting", "clicked", "old")},
}
"""Labels used by page/concepts/concepts.js."""


def count(images: int) -> str:
    """Return a number of images in words."""
    return f"{images} image{'s' * (images != 1)}"


def effect(value: float) -> str:
    """Return an effect with its sign, in at most four decimals."""
    rounded = round(value, 4) or 0.0
    return number(rounded, "+.3g" if rounded > 0 else ".3g")


def summary(step: Measured) -> str:
    """Return from what the concepts come, how much they explain, and what their importance is."""
    concepts = step.found.concepts
    return (
        f"{len(concepts)} concepts of {concepts.layer} explain {percent(1 - concepts.error)} of the variance of its "
        f"features in {count(concepts.images)}. Numbers: how far the {step.settings.measure} of "
        f"{step.subject} falls without the concept."
    )


def title(index: int, factor: float) -> str:
    """Return what was changed, in one sentence."""
    known = {0.0: "removed", 1.0: "unchanged", 2.0: "doubled"}
    return f"Concept {index} {known.get(factor) or f'multiplied by {factor:g}'}."
