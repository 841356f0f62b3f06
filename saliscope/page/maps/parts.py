"""The parts of planes of a map, and small maps of classes."""

from __future__ import annotations

from saliscope.page.components.list_columns import HEADS
from saliscope.page.elements import COMBOBOX, Part

TERMS = {
    "title": "Predictions",
    "group": "Predicted classes",
    "explain": "Explain {name}",
    "more": "Show {count}",
    "less": "Show {count}",
    "true": "True class",
    "unknown": "not set",
    "clear": "Not set",
    "rank": "{name} has rank {rank} of {count}: {score}.",
    "correct": "{name} has rank 1 of {count}: {score}. The prediction is correct.",
    "show": "Explain it",
}
"""Labels used by maps/classes.js."""
PLANES = Part("maps/planes", "hl-planes")
BARS = Part("maps/classes", "hl-bars", terms=TERMS | {"list": COMBOBOX, "heads": HEADS["target"]})
