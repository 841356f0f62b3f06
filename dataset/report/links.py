"""Addresses that open the app with a picture at the settings of the run."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).resolve().parents[2] / "assets"
"""The app's examples."""


class Links:
    """Links of the pictures of a run into an app at `address`, by an example's name or by the picture's SHA-256."""

    def __init__(self, address: str, settings: Mapping[str, Any]) -> None:
        self.address, self.settings = address.rstrip("/"), settings
        self.examples = _examples()

    def of(self, row: Mapping[str, Any]) -> tuple[str, bool]:
        """The address of a row, and whether every app knows its picture.

        A link never holds a photograph: that of a picture which is no example opens in an app that was started with the
        run; others open with the settings, and say what to do.
        """
        digest = row.get("sha256") or ""
        example = self.examples.get(digest)
        options = self.settings.get("options") or {}
        asked = {
            "model": self.settings.get("model"),
            "layer": self.settings.get("layer"),
            "class": row.get("target"),
            "method": self.settings.get("method"),
            "options": json.dumps(dict(options)) if options else "",
            "example": example or digest or "none",
        }
        return f"{self.address}/?{urllib.parse.urlencode({k: v for k, v in asked.items() if v})}", example is not None


def _examples() -> dict[str, str]:
    """The app's examples by SHA-256; none where they are not beside this room."""
    try:
        listed = json.loads((ASSETS / "examples.json").read_text(encoding="utf-8"))
        return {hashlib.sha256((ASSETS / one["file"]).read_bytes()).hexdigest(): one["id"] for one in listed}
    except (OSError, ValueError, KeyError):
        return {}
