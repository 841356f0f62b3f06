"""The table of all networks in docs/networks.md: one row per network, errors as notes below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.zoo.attributions import CHECKS
from benchmarks.zoo.checks import TITLES
from benchmarks.zoo.runner import Row

PACKAGES = ("torch", "torchvision", "timm", "transformers", "segmentation-models-pytorch")
BEGIN, END = "<!-- networks -->\n", "<!-- /networks -->\n"
WORST = ("crash", "wrong", "slow", "refused", "right")
SHOWN = {"refused": "unsupported", "right": "correct"}
"""Verdicts with another name on the page."""


def summary(rows: Iterable[Row]) -> str:
    """Return the number of cells by verdict."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {SHOWN.get(verdict, verdict)}" for verdict in reversed(WORST)) + "."


def write(rows: Sequence[Row], page: Path) -> None:
    """Replace the table of the page: the oracles, one row per network, the notes."""
    text = page.read_text(encoding="utf-8") if page.exists() else BEGIN + END
    checks = [check for check in CHECKS if any(row.check == check for row in rows)]
    names, notes = list(dict.fromkeys(row.network for row in rows)), dict[str, int]()
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in PACKAGES)
    lines = [f"{len(names)} networks. Cells: {summary(rows)} {versions}.", "", "| column | oracle |", "|---|---|"]
    lines += [f"| {TITLES[check]} | {(CHECKS[check].__doc__ or '').splitlines()[0]} |" for check in checks]
    lines += ["", "| network | default layer | " + " | ".join(TITLES[check] for check in checks) + " |"]
    lines.append("|---|---|" + "---|" * len(checks))
    for name in names:
        own = [row for row in rows if row.network == name]
        fixed = " *(fixed: {} × {})*".format(*own[0].size) if len({row.size for row in own}) == 1 else ""
        first = next((row for row in own if row.check == "default_layer" and row.verdict == "right"), None)
        layer = "`{}` {}".format(*first.words.split(" ", 1)) if first else ""
        cells = [_cell([row for row in own if row.check == check], notes) for check in checks]
        lines.append(f"| {name}{fixed} | {layer} | " + " | ".join(cells) + " |")
    lines += ["", "## Notes", "", *(f"{number}. {note}" for note, number in notes.items())]
    head, _, rest = text.partition(BEGIN)
    page.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2], encoding="utf-8")


def _cell(rows: list[Row], notes: dict[str, int]) -> str:
    """Return the worst verdict of a check over the sizes."""
    if not rows:
        return ""
    worst = min(rows, key=lambda row: WORST.index(row.verdict))
    if worst.verdict in ("right", "slow"):
        return "✓" if worst.verdict == "right" else "slow"
    note = " ".join(worst.words.split()).replace("|", "\\|")
    number = notes.setdefault(note, len(notes) + 1)
    return f"unsupported {number}" if worst.verdict == "refused" else f"**{worst.verdict}** {number}"
