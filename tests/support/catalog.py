"""Tests of the list of models: without downloads, registered models and environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from saliscope.zoo import catalog


def isolate_catalog(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Forbid downloads, use an empty cache of weights in `folder`, and forget registered models."""
    for name in ("SALISCOPE_MODEL", "SALISCOPE_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    monkeypatch.setenv("TORCH_HOME", str(folder / "torch"))
    monkeypatch.setattr(catalog, "_ADDED", {})
    monkeypatch.setattr(catalog, "_SETTINGS", {})
