"""The parts of planes of a map, and small maps of classes."""

from __future__ import annotations

from saliscope.page.components.list_columns import HEADS
from saliscope.page.elements import COMBOBOX, Part
from saliscope.page.maps.messages import BARS as BARS_TEXT

PLANES = Part("maps/planes", "hl-planes")
BARS = Part("maps/classes", "hl-bars", terms=BARS_TEXT | {"list": COMBOBOX, "heads": HEADS["target"]})
