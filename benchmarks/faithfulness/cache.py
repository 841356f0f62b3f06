"""What has been measured, in a JSON file outside the repository: a run goes on where another ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Cache:
    """`results[method][photo]`, `controls[photo]`, `randomisation[method][photo]` and `reasons[method]`.

    All of one network and one number of steps: a file of others is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if known and known["settings"] != settings:
            raise SystemExit(f"{path} holds figures of {known['settings']}, not of {settings}. Give another --cache.")
        self.settings = settings
        self.results: dict[str, dict[str, Any]] = known.get("results", {})
        self.controls: dict[str, Any] = known.get("controls", {})
        self.randomisation: dict[str, dict[str, Any]] = known.get("randomisation", {})
        self.reasons: dict[str, str] = known.get("reasons", {})

    def save(self) -> None:
        """Write the file, in one move."""
        parts = ("settings", "results", "controls", "randomisation", "reasons")
        text = json.dumps({name: getattr(self, name) for name in parts})
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.path)
