"""Measure the embedded network: `python -m models.embedded.evaluate --data FOLDER`.

FOLDER is the one that train.py takes. Prints how often the first guess and one of the first five are right on its
validation pictures, for each class and over all, and what is said to the example photographs; writes the same into
CARD.md (between its markers) and the sum into figures.json.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from models.embedded import FIGURES, HERE
from models.embedded.train import BATCH, classes, normalise, pictures
from models.model import Model
from models.zoo import load_model

CARD = HERE / "CARD.md"
EXAMPLES = HERE.parents[1] / "assets" / "examples.json"


@dataclass(frozen=True)
class Row:
    """One class on the validation pictures."""

    name: str
    pictures: int
    first: float
    fifth: float
    taken_for: str
    """The name that was most often given wrongly."""


@torch.inference_mode()
def rows(model: Model, data: Tensor, truth: Tensor) -> list[Row]:
    """A row for each class, in the order of the labels."""
    best = torch.cat([model.network(normalise(part)).topk(5).indices for part in data.split(BATCH)])
    hit = best == truth[:, None]
    found = []
    for index, name in enumerate(model.labels):
        mine = truth == index
        wrong = Counter(model.labels[guess] for guess in best[mine, 0].tolist() if guess != index)
        taken = wrong.most_common(1)[0][0] if wrong else ""
        found.append(Row(name, int(mine.sum()), share(hit[mine, 0]), share(hit[mine].any(1)), taken))
    return found


def share(hits: Tensor) -> float:
    """Per cent of hits."""
    return 100 * hits.float().mean().item()


def table(found: list[Row]) -> list[str]:
    """The classes as a Markdown table, the surest first."""
    lines = ["| class | first guess | first five | most often taken for |", "|---|---:|---:|---|"]
    ordered = sorted(found, key=lambda row: (-row.first, row.name))
    return lines + [f"| {row.name} | {row.first:.0f}% | {row.fifth:.0f}% | {row.taken_for} |" for row in ordered]


@torch.inference_mode()
def examples(model: Model) -> list[str]:
    """The first three guesses for each example photograph as a Markdown table."""
    lines = ["| photograph | says | right |", "|---|---|---|"]
    for example in json.loads(EXAMPLES.read_text(encoding="utf-8")):
        scores = model.network(model.prepare(Image.open(EXAMPLES.parent / example["file"])))
        best = scores.softmax(1)[0].topk(3)
        said = [(model.labels[index], value) for value, index in zip(*(t.tolist() for t in best), strict=True)]
        right = "yes" if said[0][0] in example["names"] else "no" if example["names"] else "no such class"
        lines.append(f"| {example['id']} | {', '.join(f'{name} {value:.2f}' for name, value in said)} | {right} |")
    return lines


def rewrite(card: Path, part: str, lines: list[str]) -> None:
    """Put the lines between `<!-- part -->` and `<!-- /part -->`.

    Errors   ValueError where the card has no such place
    """
    before, _, rest = card.read_text(encoding="utf-8").partition(f"<!-- {part} -->\n")
    _, mark, after = rest.partition(f"<!-- /{part} -->\n")
    if not mark:
        raise ValueError(f"{card.name} has no place between <!-- {part} --> and <!-- /{part} -->.")
    card.write_text("\n".join([f"{before}<!-- {part} -->", *lines, f"<!-- /{part} -->\n{after}"]), encoding="utf-8")


def main() -> None:
    """Print the figures and write them down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with val/ and classes.tsv")
    folder = parser.parse_args().data

    model = load_model("embedded")
    kept = classes(folder)
    if [name for _, name in kept] != model.labels:
        raise SystemExit("labels.tsv and the data disagree on the classes or their order.")
    data, truth = pictures(folder / "val", [wnid for wnid, _ in kept])
    found = rows(model, data, truth)
    first, fifth = (sum(getattr(row, key) * row.pictures for row in found) / len(data) for key in ("first", "fifth"))
    summary = f"{len(data):,} validation pictures of {len(found)} classes: **{first:.1f}%** of first guesses right, "
    summary += f"**{fifth:.1f}%** within the first five."

    FIGURES.write_text(json.dumps({"top1": round(first, 2), "top5": round(fifth, 2)}) + "\n", encoding="utf-8")
    for part, lines in {"summary": [summary], "classes": table(found), "examples": examples(model)}.items():
        rewrite(CARD, part, lines)
        print("\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()
