"""What each method takes at its own defaults, and when its first partial map comes: `python -m benchmarks.defaults`.

One photograph, the model on board, `explain` without the runner-up's map; trust it on a quiet machine only. With
`--gaps`, over all examples instead: how much of the score a path method leaves unaccounted, and at how many points.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

import explainers
from benchmarks.sheet import ROOT, photograph
from models import load_model

HEAD = "| method | seconds | first map, seconds |\n|---|---|---|"


def timed(method: explainers.Method, network: Any, images: Any) -> tuple[float, float | None]:
    """Seconds of one default run, and of its first partial map where it is a long method."""
    first: list[float] = []
    began = time.perf_counter()

    def progress(partial: explainers.Partial) -> None:
        if not first and partial.map is not None:
            first.append(time.perf_counter() - began)

    more: dict[str, Any] = {"progress": progress} if method.long else {}
    explainers.explain(method.name, network, images, compare=False, **more)
    return time.perf_counter() - began, first[0] if first else None


def gap(method: str, network: Any, images: Any) -> tuple[float, int]:
    """Share of the difference of scores that the map does not sum to, and the points that it took; baseline zero."""
    points: list[int] = []
    found = explainers.explain(method, network, images, compare=False, progress=lambda p: points.append(p.done))
    with torch.no_grad():
        scores = network(torch.cat([images, torch.zeros_like(images)]))
    (target,) = found.target
    whole = float(scores[0, target] - scores[1, target])
    return abs(float(found.raw.sum()) - whole) / abs(whole), points[-1]


def gaps(model: Any) -> None:
    """A line for each example."""
    print("| example | gap | points |\n|---|---|---|")
    for path in sorted((ROOT / "assets" / "examples").glob("*.jpg")):
        share, points = gap("integrated_gradients", model.network, model.prepare(photograph(path.stem)))
        print(f"| {path.stem} | {share:.2%} | {points} |", flush=True)


def main() -> None:
    """Print the table, the slowest methods first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--photo", default="dog", help="an example's name, or a path")
    parser.add_argument("--gaps", action="store_true", help="integrated gradients: gap and points on every example")
    given = parser.parse_args()
    model = load_model()
    if given.gaps:
        gaps(model)
        return
    images = model.prepare(photograph(given.photo))
    explainers.explain("grad_cam", model.network, images)
    methods = [each for each in explainers.METHODS.values() if each.applies(model.network) is None]
    rows = [(timed(each, model.network, images), each) for each in methods]
    print(HEAD)
    for (seconds, first), method in sorted(rows, key=lambda row: -row[0][0]):
        shown = "" if first is None else f"{first:.2f}"
        print(f"| {method.title} (`{method.name}`) | {seconds:.2f} | {shown} |")


if __name__ == "__main__":
    main()
