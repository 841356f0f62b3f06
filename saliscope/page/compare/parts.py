"""The parts of the comparison of maps."""

from __future__ import annotations

from saliscope import limits
from saliscope.compute.bundles.messages import SAVE
from saliscope.compute.compare import messages as compare_messages
from saliscope.page.components.list_columns import HEADS
from saliscope.page.elements import COMBOBOX, Part
from saliscope.page.shared.messages import DRAWING, READING

COMPARE = Part(
    "compare/compare",
    "hl-compare",
    terms={**DRAWING, **compare_messages.TERMS},
    map=READING,
    combobox={"list": COMBOBOX, "heads": HEADS},
    save=SAVE,
    slots=limits.PANELS,
    at_once=limits.RUNNING,
)
