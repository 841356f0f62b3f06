"""The parts of the API view."""

from __future__ import annotations

from saliscope.page.elements import Part
from saliscope.page.shared.messages import SNIPPETS

SNIPPET_LIST = Part("panel/snippets", "hl-api", value={"items": []}, terms=SNIPPETS)
