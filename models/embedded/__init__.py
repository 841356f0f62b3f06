"""The network that ships with the project: nothing to download, ready at once. What it is and is not: CARD.md."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
WEIGHTS = HERE / "weights.pt"
LABELS = HERE / "labels.tsv"
FIGURES = HERE / "figures.json"


def labels() -> list[str]:
    """The classes' names in the order of the network's outputs."""
    return [line.split("\t")[1] for line in LABELS.read_text(encoding="utf-8").splitlines()]


def top1() -> float | None:
    """Accuracy of the first guess on the validation pictures in per cent, as evaluate.py measured it."""
    return float(json.loads(FIGURES.read_text(encoding="utf-8"))["top1"]) if FIGURES.exists() else None
