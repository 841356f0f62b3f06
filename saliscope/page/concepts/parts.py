"""The part of the view "Concepts"."""

from __future__ import annotations

from saliscope.compute.concepts import messages
from saliscope.page.elements import Part

CONCEPTS = Part("concepts/concepts", "hl-concepts", terms=messages.TERMS)
