"""The table of all networks in Markdown: one row per network, errors as notes below."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.zoo.runner import Row

PACKAGES = ("torch", "torchvision", "timm", "transformers", "segmentation-models-pytorch")
COMMAND = "python -m benchmarks.zoo"
HEAD = """# Networks

After this page you know which methods work on your architecture, and what the others report.

The table has {count} architectures from timm, transformers, segmentation_models_pytorch, torchvision and our tests.
`{command}` builds the networks without downloads and randomizes weights, biases and batch norm statistics.
It runs each method, compares it with an oracle that does not use the library, and writes this page.

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
| default layer | on every path to the score, with a gradient at its patches; no later layer with a grid of 4 × 4 is |
| layout | axes that swap with the image, and positions of changed patches: default layer, stages, a sample of others |
| Grad-CAM | a hook and autograd in float64, for batches of 1 and 2; that gradient by central differences |
| positions | feature maps of the default layer and of stages change at the changed patches, to a cell |
| steady | gradients are the same in two calls, one image at a time and in training mode; the model does not change |
| IG | integrated gradients at three points by autograd |
| DeepLIFT | the sum is the score minus that of a black image |
| LRP | the epsilon rule conserves the score of a copy without additive constants |
| rollout | computed from all attentions that ran |
| effects, Ablation-CAM | three channels set to zero by a hook; the activations weighted by the effects |
| RISE | computed from the masked images that the network received; batches of 1 and 4 |

"""
TITLES = {
    "default_layer": "default layer",
    "layout": "layout",
    "grad_cam": "Grad-CAM",
    "positions": "positions",
    "steady": "steady",
    "integrated_gradients": "IG",
    "deep_lift": "DeepLIFT",
    "lrp": "LRP",
    "attention_rollout": "rollout",
    "channel_effects": "effects",
    "ablation_cam": "Ablation-CAM",
    "rise": "RISE",
}
WORST = ("crash", "wrong", "slow", "refused", "right")
SHOWN = {"refused": "unsupported", "right": "correct"}
"""Verdicts with another name on the page."""


def summary(rows: Iterable[Row]) -> str:
    """Return the number of cells by verdict."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {SHOWN.get(verdict, verdict)}" for verdict in reversed(WORST)) + "."


def merged(files: list[Path], order: dict[str, int]) -> list[Row]:
    """Return the rows in these files, without networks that no longer exist."""
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    read = [Row(**{**fields, "size": tuple(fields["size"])}) for part in parts for fields in part]
    cells = {(row.network, row.size, row.check): row for row in read if row.network in order}
    return sorted(cells.values(), key=lambda row: order[row.network])


def write(rows: list[Row], page: Path) -> None:
    """Write the page with the table."""
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in PACKAGES)
    page.write_text(table(rows, versions), encoding="utf-8")


def table(rows: Sequence[Row], versions: str) -> str:
    """Return the page: the introduction, one row per network, the notes."""
    names = list(dict.fromkeys(row.network for row in rows))
    checks = [check for check in TITLES if any(row.check == check for row in rows)]
    notes: dict[str, int] = {}
    lines = ["| network | default layer | " + " | ".join(TITLES[check] for check in checks) + " |"]
    lines.append("|---|---|" + "---|" * len(checks))
    for name in names:
        own = [row for row in rows if row.network == name]
        sizes = list(dict.fromkeys(row.size for row in own))
        fixed = f" *(fixed: {sizes[0][0]} × {sizes[0][1]})*" if len(sizes) == 1 else ""
        first = next((row for row in own if row.check == "default_layer" and row.verdict == "right"), None)
        cells = [_cell([row for row in own if row.check == check], notes) for check in checks]
        layer = f"`{first.words.partition(' ')[0]}`{first.words[first.words.index(' ') :]}" if first else ""
        lines.append(f"| {name}{fixed} | {layer} | " + " | ".join(cells) + " |")
    numbered = [f"{number}. {note}" for note, number in notes.items()]
    head = HEAD.format(count=len(names), command=COMMAND, summary=f"Cells: {summary(rows)} {versions}.")
    return head + "\n".join(lines) + "\n\n## Notes\n\n" + "\n".join(numbered) + "\n"


def _cell(rows: list[Row], notes: dict[str, int]) -> str:
    """Return the worst verdict of a check over the sizes."""
    if not rows:
        return ""
    worst = min(rows, key=lambda row: WORST.index(row.verdict))
    if worst.verdict == "right":
        return "✓"
    if worst.verdict == "slow":
        return "slow"
    note = " ".join(worst.words.split()).replace("|", "\\|")
    number = notes.setdefault(note, len(notes) + 1)
    return f"unsupported {number}" if worst.verdict == "refused" else f"**{worst.verdict}** {number}"
