"""The parts of saving."""

from __future__ import annotations

from saliscope.page.elements import Part

BUNDLE = Part("share/bundle", "hl-bundle")
