"""The parts of the Erase view."""

from __future__ import annotations

from saliscope.compute.bundles.messages import SAVE
from saliscope.compute.erase import messages as erase_messages
from saliscope.compute.erase.edit import IN_ADDRESS, RANGES
from saliscope.page.elements import Part, example_items
from saliscope.page.shared.messages import DRAWING, READING, SECOND_IMAGE

ERASE = Part(
    "erase/erase",
    "hl-erase",
    terms={**DRAWING, **erase_messages.TERMS, "second": SECOND_IMAGE | {"accept": erase_messages.ACCEPTED}},
    map=READING,
    save=SAVE,
    examples=example_items(),
    ranges=RANGES,
    longest=IN_ADDRESS,
)
