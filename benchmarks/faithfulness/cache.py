"""Measured results in a JSON file outside the repository, so that a run resumes where another stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Cache:
    """`results[method][photo]`, `controls[photo]`, `randomization[method][photo]` and `reasons[method]`.

    All results are of one network and one number of steps; a file with other settings raises an error.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if known and known["settings"] != settings:
            raise SystemExit(f"{path} has results for {known['settings']}, not for {settings}. Use another --cache.")
        self.settings = settings
        self.results: dict[str, dict[str, Any]] = known.get("results", {})
        self.controls: dict[str, Any] = known.get("controls", {})
        self.randomization: dict[str, dict[str, Any]] = known.get("randomization", {})
        self.reasons: dict[str, str] = known.get("reasons", {})

    def save(self) -> None:
        """Write the file atomically."""
        parts = {name: getattr(self, name) for name in ("settings", "results", "controls", "reasons")}
        text = json.dumps(parts | {"randomization": self.randomization})
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.path)
