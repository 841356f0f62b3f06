"""The parts of the network diagram."""

from __future__ import annotations

from saliscope.compute.rail import messages as rail_messages
from saliscope.page.elements import Part

RAIL = Part("rail/rail", "hl-strip", terms=rail_messages.TERMS)
