"""The parts of the guide to a method."""

from __future__ import annotations

from saliscope.compute.methods.messages import GUIDE as GUIDE_TITLE
from saliscope.page.elements import Part

GUIDE = Part("methods/guide", "hl-guide", title=GUIDE_TITLE)
