"""The table of all networks in Markdown: one row per network, errors as notes below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.zoo.runner import Row

PACKAGES = ("torch", "torchvision", "timm", "transformers", "segmentation-models-pytorch")
HEAD = """# Networks

After this page you know which methods work on your architecture, and what the others report.

The table has {count} architectures from timm, transformers, segmentation_models_pytorch, torchvision and our tests.
`python -m benchmarks.zoo` builds the networks without downloads and randomizes weights, biases and batch norm
statistics. It runs each method, compares it with an oracle that does not use the library, and writes this page.

{summary}

Images have 224 × 160 pixels; the first four columns also use a square image. *Fixed* networks accept only one size.

| mark | meaning |
|---|---|
| ✓ | equal to the oracle |
| unsupported *n* | raises the error in note *n*, which says what to use instead |
| **wrong** *n*, **crash** *n* | differs from the oracle; an error that the library did not raise |
| slow | exceeds its time limit |

| column | oracle |
|---|---|
"""
COLUMNS = {
    "default_layer": (
        "default layer",
        "on every path to the score, with a gradient at its patches; no later layer with a grid of 4 × 4 is",
    ),
    "layout": (
        "layout",
        "axes that swap with the image, and positions of changed patches: default layer, stages, a sample of others",
    ),
    "grad_cam": (
        "Grad-CAM",
        "a hook and autograd in float64, for batches of 1 and 2; that gradient by central differences",
    ),
    "positions": (
        "positions",
        "feature maps of the default layer and of stages change at the changed patches, to a cell",
    ),
    "steady": (
        "steady",
        "gradients are the same in two calls, one image at a time and in training mode; the model does not change",
    ),
    "integrated_gradients": ("IG", "integrated gradients at three points by autograd"),
    "deep_lift": ("DeepLIFT", "the sum is the score minus that of a black image"),
    "lrp": ("LRP", "the epsilon rule conserves the score of a copy without additive constants"),
    "attention_rollout": ("rollout", "computed from all attentions that ran"),
    "channel_effects": ("effects", "three channels set to zero by a hook"),
    "ablation_cam": ("Ablation-CAM", "the activations weighted by the effects"),
    "rise": ("RISE", "computed from the masked images that the network received; batches of 1 and 4"),
}
"""The title and the oracle of each check."""
WORST = ("crash", "wrong", "slow", "refused", "right")
SHOWN = {"refused": "unsupported", "right": "correct"}
"""Verdicts with another name on the page."""


def summary(rows: Iterable[Row]) -> str:
    """Return the number of cells by verdict."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {SHOWN.get(verdict, verdict)}" for verdict in reversed(WORST)) + "."


def write(rows: Sequence[Row], page: Path) -> None:
    """Write the page: the introduction, one row per network, the notes."""
    checks = [check for check in COLUMNS if any(row.check == check for row in rows)]
    notes: dict[str, int] = {}
    lines = ["| network | default layer | " + " | ".join(COLUMNS[check][0] for check in checks) + " |"]
    lines.append("|---|---|" + "---|" * len(checks))
    names = list(dict.fromkeys(row.network for row in rows))
    for name in names:
        own = [row for row in rows if row.network == name]
        fixed = " *(fixed: {} × {})*".format(*own[0].size) if len({row.size for row in own}) == 1 else ""
        first = next((row for row in own if row.check == "default_layer" and row.verdict == "right"), None)
        layer = "`{}` {}".format(*first.words.split(" ", 1)) if first else ""
        cells = [_cell([row for row in own if row.check == check], notes) for check in checks]
        lines.append(f"| {name}{fixed} | {layer} | " + " | ".join(cells) + " |")
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in PACKAGES)
    head = HEAD.format(count=len(names), summary=f"Cells: {summary(rows)} {versions}.")
    oracles = "\n".join(f"| {title} | {oracle} |" for title, oracle in COLUMNS.values())
    numbered = "\n".join(f"{number}. {note}" for note, number in notes.items())
    page.write_text(f"{head}{oracles}\n\n" + "\n".join(lines) + f"\n\n## Notes\n\n{numbered}\n", encoding="utf-8")


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
