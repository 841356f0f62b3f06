"""The parts of the Explain view."""

from __future__ import annotations

from saliscope.compute import messages
from saliscope.compute.bundles.messages import SAVE
from saliscope.compute.objects.messages import HIDE
from saliscope.page.elements import Part
from saliscope.page.shared.messages import MAP

STATUS = Part("shared/status", "hl-status", terms=messages.STATUS)
FOLD = Part("shared/fold", "hl-fold", words=messages.FOLDED)
OVERLAY = Part("overlay/overlay", "hl-overlay", empty=messages.SOON, things=HIDE, terms=MAP, save=SAVE, address=True)
FINDINGS = Part("panel/findings", "hl-findings")
