"""The parts of the comparison of two models."""

from __future__ import annotations

from saliscope.compute.models import messages as models_messages
from saliscope.page.components.list_columns import HEADS
from saliscope.page.elements import COMBOBOX, Part

MODELS = Part(
    "models/models", "hl-models", terms=models_messages.TERMS, combobox={"list": COMBOBOX, "heads": HEADS["model"]}
)
