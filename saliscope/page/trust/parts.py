"""The parts of the checks of a map."""

from __future__ import annotations

from saliscope.compute.trust import messages as trust_messages
from saliscope.page.elements import Part

TRUST = Part("trust/trust", "hl-trust", terms=trust_messages.TERMS, of="hl-overlay")
