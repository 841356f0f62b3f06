"""The parts of the left column: the image and the settings."""

from __future__ import annotations

from saliscope.compute import messages, text_messages
from saliscope.page.components.list_columns import HEADS, METHOD_TIME
from saliscope.page.elements import Part, choice, example_items
from saliscope.page.panel import messages as panel_messages

IMAGE = Part("panel/image", "hl-image", terms=panel_messages.IMAGE)
CROP = Part("panel/crop", "hl-crop", terms=panel_messages.CROP)
BANDS = Part("panel/bands", "hl-bands", terms=panel_messages.BANDS)
EXAMPLES = Part("panel/examples", "hl-examples", items=example_items(), terms=panel_messages.EXAMPLES)
MODEL = choice("hl-model", messages.MODEL_LABEL, "model", HEADS["model"], loading=messages.LOADING)
NOTICE = Part("panel/findings", "hl-notice")
PREPROCESSING = Part("preprocessing/preprocessing", "hl-preprocessing", terms=panel_messages.PREPROCESSING)
LAYER = choice("hl-layer", messages.LAYER_LABEL, "layer", HEADS["layer"])
TARGET = choice(
    "hl-class",
    messages.CLASS_LABEL,
    "target",
    HEADS["target"],
    "text/target",
    fields=text_messages.FIELD,
    sentences=False,
    top=messages.TOP_CHOICE,
)
PIN = Part("panel/pin", "hl-pin", value=False, text=messages.PIN, lost=messages.PIN_LOST)
METHOD = choice("hl-method", messages.METHOD_LABEL, "method", HEADS["method"], note="", aside=METHOD_TIME)
OPTIONS = Part("panel/options", "hl-options", value={}, terms=panel_messages.OPTIONS)
ACTIONS = Part("panel/actions", "hl-actions", terms=panel_messages.ACTIONS | messages.LINK)
CHOICES = {"model": MODEL, "layer": LAYER, "target": TARGET, "method": METHOD}
"""The selections of names, by setting."""
