"""Run time of every method at its defaults, and time to its first partial map: `python -m benchmarks.defaults`.

One image, the built-in model, `explain` without the runner-up's map; reliable only on an idle machine. With `--gaps`:
the completeness gap of integrated gradients and its number of points, for all examples.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import explainers
from benchmarks import options
from benchmarks.gallery import ROOT, open_image
from saliscope.zoo import load_model


def timed(method: explainers.Method, network: Any, images: Any) -> tuple[float, str]:
    """Return the seconds of one default run, and the seconds to the first partial map of a long method."""
    start, first = time.perf_counter(), list[str]()

    def progress(partial: explainers.Partial) -> None:
        if not first and partial.map is not None:
            first.append(f"{time.perf_counter() - start:.2f}")

    options: dict[str, Any] = {"progress": progress} if method.long else {}
    explainers.explain(method.name, network, images, compare=False, **options)
    return time.perf_counter() - start, "".join(first)


def gap(network: Any, images: Any) -> tuple[float, int]:
    """Return the completeness gap |Σ map − (f(x) − f(0))| / |f(x) − f(0)|, and the number of points."""
    points: list[int] = []
    progress = lambda partial: points.append(partial.done)  # noqa: E731
    found = explainers.explain("integrated_gradients", network, images, compare=False, progress=progress)
    with torch.no_grad():
        scores = network(torch.cat([images, torch.zeros_like(images)]))[:, found.target[0]]
    difference = float(scores[0] - scores[1])
    return abs(float(found.raw.sum()) - difference) / abs(difference), points[-1]


def main() -> None:
    """Print the table, the slowest methods first."""
    arguments, model = options(__doc__, gaps=False), load_model()
    if arguments.gaps:
        print("| example | gap | points |\n|---|---|---|")
        for path in sorted((ROOT / "assets" / "examples").glob("*.jpg")):
            error, points = gap(model.network, model.prepare(open_image(path.stem)))
            print(f"| {path.stem} | {error:.2%} | {points} |", flush=True)
        return
    images = model.prepare(open_image("dog"))
    explainers.explain("grad_cam", model.network, images)
    methods = [method for method in explainers.METHODS.values() if method.applies(model.network) is None]
    rows = [(*timed(method, model.network, images), method) for method in methods]
    print("| method | seconds | first map, seconds |\n|---|---|---|")
    for seconds, first, method in sorted(rows, key=lambda row: -row[0]):
        print(f"| {method.title} (`{method.name}`) | {seconds:.2f} | {first} |")


if __name__ == "__main__":
    main()
