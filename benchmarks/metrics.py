"""`python -m benchmarks.metrics --photos FOLDER`: metrics of some methods and of the controls.

Prints mean ± standard error over the images, for every metric without a region. A star means: better than each of the
three controls (or higher or lower than each, if neither is better) in a sign-flip test, adjusted for the number of
comparisons in the table.

python -m benchmarks.metrics --photos assets/examples --only grad_cam saliency
python -m benchmarks.metrics --photos assets/examples --only rise --limit 3 --runs 2    two runs for robustness
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import explainers
from benchmarks.faithfulness.photos import Photo, paths, photographs
from explainers import METRICS
from explainers.metrics.comparison import mean_and_error
from explainers.metrics.run import evaluator
from explainers.metrics.settings import EvaluationSettings
from explainers.metrics.significance import LEVEL, holm, sign_flip_test
from saliscope.zoo import load_model

NAMES = [name for name, each in METRICS.items() if not each.region]
METHODS = "grad_cam gradient_shap guided_backprop integrated_gradients saliency".split()
CONTROLS = ("random", "edge", "center")
Numbers = dict[str, dict[str, dict[str, float]]]
"""A number for each method or control, metric and image."""


def measure(
    model: Any,
    photos: Iterable[Photo],
    methods: Sequence[str],
    metrics: Sequence[str],
    runs: int,
    known: Numbers | None = None,
    done: Callable[[Numbers], Any] = lambda numbers: None,
) -> Numbers:
    """Return the metrics of all methods and controls; `known` ones are kept, `done` receives all results so far."""
    numbers: Numbers = {} if known is None else known
    options = {
        name: {"samples": runs} for name in metrics if "samples" in METRICS[name].options and METRICS[name].reruns
    }
    for photo in photos:
        missing = [name for name in methods if photo.name not in numbers.get(name, {}).get(metrics[0], {})]
        # The precision is fixed, because "auto" may choose another one in the next run.
        settings = EvaluationSettings(metrics=metrics, target=photo.target, options=options, precision="float32")
        with evaluator(model.network, photo.image, settings) as judge:
            for method in missing:
                found = judge(method)
                for metric in metrics:
                    values = {method: found.values[metric], **found.controls.get(metric, {})}
                    for name, value in values.items():
                        numbers.setdefault(name, {}).setdefault(metric, {})[photo.name] = float(value[0])
                done(numbers)
                print(photo.name, method, f"{found.seconds:.0f} s", flush=True)
    return numbers


def table(numbers: Numbers, names: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """Return a row for each method and control, with a column for each metric."""
    lines = [f"| | {' | '.join(METRICS[name].title for name in metrics)} |", "|---" * (len(metrics) + 1) + "|"]
    starred = stars(numbers, names, metrics)
    for name in (*names, *CONTROLS):
        title = f"**{name}**" if name in CONTROLS else f"`{name}`"
        cells = [cell(numbers, name, metric) + " *" * ((name, metric) in starred) for metric in metrics]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def cell(numbers: Numbers, name: str, metric: str) -> str:
    """Return mean ± standard error over the images with a finite number."""
    values = torch.tensor(list(numbers[name].get(metric, {}).values()), dtype=torch.float64)
    if not bool(values.isfinite().any()):
        return ""
    mean, error = mean_and_error(values[values.isfinite()])
    return f"{mean:.3g} ± {error:.1g}"


def stars(numbers: Numbers, names: Sequence[str], metrics: Sequence[str]) -> set[tuple[str, str]]:
    """Return the methods and metrics with values that are better than those of each control."""
    cells = [(name, metric) for name in names for metric in metrics]
    differences = [differences_of(numbers, *each, control) for each in cells for control in CONTROLS]
    adjusted = holm([sign_flip_test(each) for each in differences])
    found, size = set(), len(CONTROLS)
    for k, (name, metric) in enumerate(cells):
        higher = METRICS[metric].higher
        own = slice(k * size, (k + 1) * size)
        sure = all(p < LEVEL for p in adjusted[own])
        signs = {float(each.mean().sign()) for each in differences[own]}
        if sure and (len(signs) == 1 if higher is None else signs == {1.0 if higher else -1.0}):
            found.add((name, metric))
    return found


def differences_of(numbers: Numbers, name: str, metric: str, control: str) -> Tensor:
    """Return the differences to a control over the images for which both have a finite number."""
    own, other = numbers[name].get(metric, {}), numbers.get(control, {}).get(metric, {})
    found = torch.tensor([value - other.get(photo, math.nan) for photo, value in own.items()], dtype=torch.float64)
    return found[found.isfinite()]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.metrics", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", type=Path, required=True, help="a folder of images, with subfolders")
    parser.add_argument("--only", nargs="+", choices=list(explainers.METHODS), default=METHODS, metavar="NAME")
    parser.add_argument("--metrics", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--limit", type=int, help="number of images, evenly spaced")
    parser.add_argument(
        "--runs", type=int, default=10, help="number of changed images for metrics that run the method again"
    )
    parser.add_argument("--cache", type=Path, help="file that stores results; a run resumes from it")
    parser.add_argument("--model", default="auto", help="name of a model (default: the built-in one)")
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    photos = photographs(model, paths(arguments.photos, arguments.limit))
    file: Path | None = arguments.cache
    known = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else None

    def done(numbers: Numbers) -> None:
        if file:
            file.write_text(json.dumps(numbers), encoding="utf-8")

    numbers = measure(model, photos, arguments.only, arguments.metrics, arguments.runs, known, done)
    print("\n".join(table(numbers, arguments.only, arguments.metrics)))


if __name__ == "__main__":
    main()
