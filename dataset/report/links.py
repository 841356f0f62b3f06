"""Addresses that open the app with a picture at the settings of the run."""

from __future__ import annotations

import hashlib
import json
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dataset.report.analysis.summary import distinct
from dataset.settings import Settings

ASSETS = Path(__file__).resolve().parents[2] / "assets"
"""The app's examples."""


class Links:
    """Links of the pictures of a run into an app at `address`, by an example's name or by the picture's SHA-256."""

    def __init__(self, address: str, settings: Mapping[str, Any], classes: Sequence[str] = ()) -> None:
        self.address, self.settings = address.rstrip("/"), settings
        self.shared = set(classes) - set(distinct(classes))
        self.options = _options(settings)
        self.examples = _examples()

    def of(self, row: Mapping[str, Any]) -> tuple[str, bool]:
        """The address of a row, and whether every app knows its picture.

        A link never holds a photograph: that of a picture which is no example opens in an app that was started with the
        run; others open with the settings, and say what to do.
        """
        digest = row.get("sha256") or ""
        example = self.examples.get(digest)
        target = row.get("target_index") if row.get("target") in self.shared else row.get("target")
        asked = {
            "model": self.settings.get("model"),
            "layer": self.settings.get("layer"),
            "class": target,
            "method": self.settings.get("method"),
            "options": json.dumps(self.options) if self.options else "",
            "example": example or digest or "none",
        }
        said = urllib.parse.urlencode({name: value for name, value in asked.items() if value not in (None, "")})
        return f"{self.address}/?{said}", example is not None


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the method that are not its defaults, with the seed and the precision of the run."""
    from explainers import METHODS  # torch takes seconds to start

    known = {name: settings[name] for name in ("method", "options", "precision", "seed") if name in settings}
    asked = Settings(**known)
    options = METHODS[asked.method].options
    return {name: value for name, value in asked.method_options().items() if value != options[name].default}


def _examples() -> dict[str, str]:
    """The app's examples by SHA-256; none where they are not beside this room."""
    try:
        listed = json.loads((ASSETS / "examples.json").read_text(encoding="utf-8"))
        return {hashlib.sha256((ASSETS / one["file"]).read_bytes()).hexdigest(): one["id"] for one in listed}
    except (OSError, ValueError, KeyError):
        return {}
