"""What each method takes at its own defaults, and when its first partial map comes: `python -m benchmarks.defaults`.

One photograph, the model on board, `explain` without the runner-up's map; trust it on a quiet machine only.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import explainers
from models import load_model

from .sheet import photograph

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


def main() -> None:
    """Print the table, the slowest methods first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--photo", default="dog", help="an example's name, or a path")
    given = parser.parse_args()
    model = load_model()
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
