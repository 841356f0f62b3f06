"""The table of all networks, in Markdown: a row each, refusals as notes below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.zoo.runner import Row

HEAD = """# Networks

What the methods do on {count} architectures: of timm, transformers, segmentation_models_pytorch and torchvision, and
some written by hand. `{command}` makes the networks without downloads, draws random weights, biases and statistics of
batch norms, runs each method and compares with an oracle that does not use the library; it wrote this page.

{summary}

Pictures have 224 × 160 pixels; the first three columns also meet a square one. *Fixed* networks take one size only.

| mark | meaning |
|---|---|
| ✓ | equal to the oracle |
| refused *n* | refused in the words of note *n*, which say what to write instead |
| **wrong** *n*, **crash** *n* | the oracle says otherwise; an error that is not the library's own |
| slow | over its time limit |

| column | oracle |
|---|---|
| default layer | on every path to the score, with a gradient at its patches; no later layer with a grid of 4 × 4 is |
| layout | which axes turn with the picture, and where lit patches appear: default layer, stages, a sample of others |
| Grad-CAM | a hook and autograd in float64, for batches of 1 and 2; that gradient by central differences |
| IG | integrated gradients at three points by autograd |
| DeepLIFT | the sum is the score less that of a black picture |
| LRP | the epsilon rule conserves the score of a copy without additive constants |
| rollout | by hand, from all attentions that ran |
| effects, Ablation-CAM | three channels set to zero by a hook; the activations weighted by the effects |
| RISE | by hand, from the masked pictures that the network was given; batches of 1 and 4 |

"""
TITLES = {
    "default_layer": "default layer",
    "layout": "layout",
    "grad_cam": "Grad-CAM",
    "integrated_gradients": "IG",
    "deep_lift": "DeepLIFT",
    "lrp": "LRP",
    "attention_rollout": "rollout",
    "channel_effects": "effects",
    "ablation_cam": "Ablation-CAM",
    "rise": "RISE",
}
WORST = ("crash", "wrong", "slow", "refused", "right")


def summary(rows: Iterable[Row]) -> str:
    """How many cells have which verdict."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(WORST)) + "."


def table(rows: Sequence[Row], command: str, versions: str) -> str:
    """The page: what was done, one row a network, the notes."""
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
    said = [f"{number}. {sentence}" for sentence, number in notes.items()]
    head = HEAD.format(count=len(names), command=command, summary=f"Cells: {summary(rows)} {versions}.")
    return head + "\n".join(lines) + "\n\n## Notes\n\n" + "\n".join(said) + "\n"


def _cell(rows: list[Row], notes: dict[str, int]) -> str:
    """The worst verdict of a check over the sizes."""
    if not rows:
        return ""
    worst = min(rows, key=lambda row: WORST.index(row.verdict))
    if worst.verdict == "right":
        return "✓"
    if worst.verdict == "slow":
        return "slow"
    sentence = " ".join(worst.words.split()).replace("|", "\\|")
    number = notes.setdefault(sentence, len(notes) + 1)
    return f"refused {number}" if worst.verdict == "refused" else f"**{worst.verdict}** {number}"
