"""Truths of the attention methods."""

from __future__ import annotations

from .oracle import Oracle

ORACLES: dict[str, Oracle] = {}
