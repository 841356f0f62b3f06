"""`python -m benchmarks.faithfulness --photos FOLDER`: deletion and insertion curves of every method.

Deletion replaces the pixels of a photograph by blurred ones in the order of the map, highest first; insertion restores
them in the blurred photograph in the same order. Both record the probability of the class predicted for the original
photograph. A method's figure is the area under the insertion curve minus that under the deletion curve (higher is more
faithful), averaged over the folder, beside three controls that do not depend on the network: a method that is not
better than the controls has no evidence of faithfulness.

python -m benchmarks.faithfulness --photos ~/photos                     every method at its default options
python -m benchmarks.faithfulness --photos ~/photos --only lrp xrai     these and the controls
python -m benchmarks.faithfulness --photos ~/photos --budget 10         time budget of a long method in seconds

Maps are ranked by value, as `explain` draws them; signed maps also by magnitude, which counts evidence against the
class as relevant.

Source   Petsiuk et al. 2018, section 4.1, arXiv:1806.07421
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import explainers
from explainers.maps.resize import resize
from explainers.passes.run import open_run
from explainers.perturbation.baselines import baseline_of
from models import Model, load_model

STEPS = 12
PICTURES = (".jpg", ".jpeg", ".png")
CONTROLS = ("random_control", "edge_control", "centre_control")
HEAD = """| method | insertion − deletion | by magnitude | insertion | deletion | minus best control | seconds per map |
|---|---|---|---|---|---|---|"""

Score = Callable[[Tensor], Tensor]
"""Images [B, C, H, W] -> scores [B]."""


def ranks(heat: Tensor, seed: int = 0) -> Tensor:
    """Rank of each pixel [H, W], 0 for the highest; ties are broken at random."""
    # Ties in memory order would delete a constant map from top to bottom, which is a better order than random.
    shuffled = torch.randperm(heat.numel(), generator=torch.Generator().manual_seed(seed)).to(heat.device)
    order = shuffled[heat.flatten()[shuffled].argsort(descending=True, stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank.view_as(heat)


@torch.no_grad()
def curves(score: Score, image: Tensor, baseline: Tensor, heat: Tensor, steps: int = STEPS) -> Tensor:
    """Deletion and insertion curve of one image [C, H, W] for the map `heat` [H, W], highest values first.

    Returns  [2, steps + 1]: scores from the image to the baseline (deletion), and from the baseline to the image
    """
    counts = torch.arange(steps + 1, device=heat.device) * heat.numel() // steps
    selected = (ranks(heat) < counts.view(-1, 1, 1))[:, None]
    deleted = torch.where(selected[1:-1], baseline, image)  # both ends are those of the insertion curve
    scores = score(torch.cat([torch.where(selected, image, baseline), deleted]))
    insertion, inner = scores.split([steps + 1, steps - 1])
    return torch.stack([torch.cat([insertion[-1:], inner, insertion[:1]]), insertion])


def area(curve: Tensor) -> Tensor:
    """The area under curves [..., points] over [0, 1], by the trapezoidal rule."""
    return torch.trapezoid(curve.double(), dx=1 / (curve.shape[-1] - 1))


@dataclass(frozen=True, eq=False)
class Photo:
    """One photograph as the network's input [1, C, H, W], its blurred baseline and the predicted class."""

    name: str
    image: Tensor
    baseline: Tensor
    target: int


def photographs(model: Model, folder: Path, limit: int | None = None) -> list[Photo]:
    """The photographs of a folder and its subfolders in order of their paths; with a limit, evenly spaced ones."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    if limit and limit < len(paths):
        paths = [paths[index * len(paths) // limit] for index in range(limit)]
    photos = []
    for path in paths:
        with Image.open(path) as photo:
            image = model.prepare(photo)
        with torch.no_grad():
            target = int(model.network(image).argmax())
        photos.append(Photo(path.stem, image, baseline_of(image, "blur"), target))
    return photos


@dataclass
class Result:
    """A method's areas (deletion, insertion) for each photograph, or the reason why it has none."""

    method: explainers.Method
    reason: str = ""
    areas: list[tuple[float, float]] = field(default_factory=list)
    by_magnitude: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def gains(self, by_magnitude: bool = False) -> Tensor:
        """Insertion minus deletion of each photograph."""
        areas = self.by_magnitude if by_magnitude else self.areas
        return torch.tensor([insertion - deletion for deletion, insertion in areas])


def measure(
    model: Model, method: explainers.Method, photos: Iterable[Photo], precision: str = "float32", **options: Any
) -> Result:
    """The areas of one method over the photographs, or its error message where it does not apply.

    `precision` is that of the curves' scores, not of the method.
    """
    if method.returns == "channels":
        return Result(method, "one value per channel, not a map")
    if reason := method.applies(model.network):
        return Result(method, reason)
    result = Result(method)
    for photo in photos:
        began = time.perf_counter()
        try:
            explanation = explainers.explain(
                method.name, model.network, photo.image, photo.target, compare=False, **options
            )
        except explainers.ExplainerError as refusal:
            return Result(method, str(refusal))
        result.seconds.append(time.perf_counter() - began)
        if not bool(explanation.map.isfinite().all()):
            return Result(method, f"the map of {photo.name} is not finite")
        heat = resize(explanation.map, (photo.image.shape[-2], photo.image.shape[-1]))[0]
        result.areas.append(areas(model, photo, heat, precision))
        signed = bool((heat < 0).any())
        result.by_magnitude.append(areas(model, photo, heat.abs(), precision) if signed else result.areas[-1])
    return result


def areas(model: Model, photo: Photo, heat: Tensor, precision: str = "float32") -> tuple[float, float]:
    """The areas under the deletion and the insertion curve of one map [H, W]."""
    target = explainers.Probability(photo.target)
    with open_run(model.network, photo.image, target, many=True, precision=precision) as run:
        run.score_inputs()
        both = curves(lambda batch: run.values(batch, [0] * len(batch)), photo.image[0], photo.baseline[0], heat)
    deletion, insertion = area(both).tolist()
    return deletion, insertion


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def table(results: list[Result]) -> list[str]:
    """The rows of the table, best first; methods without areas follow with their reasons."""
    measured = sorted((result for result in results if result.areas), key=lambda result: -float(result.gains().mean()))
    best_control = next(result for result in measured if result.method.name in CONTROLS)
    lines = [HEAD]
    for result in measured:
        method, (gain, error) = result.method, mean_and_error(result.gains())
        size, size_error = mean_and_error(result.gains(by_magnitude=True))
        deletion, insertion = (sum(column) / len(result.areas) for column in zip(*result.areas, strict=True))
        signed = f"{size:.3f} ± {size_error:.3f}" if result.by_magnitude != result.areas else ""
        title = f"**{method.title}**" if method.name in CONTROLS else method.title
        difference, spread = mean_and_error(result.gains() - best_control.gains())
        relative = "" if result is best_control else f"{difference:+.3f} ± {spread:.3f}"
        lines.append(
            f"| {title} (`{method.name}`) | {gain:.3f} ± {error:.3f} | {signed} | {insertion:.3f} | {deletion:.3f} "
            f"| {relative} | {sorted(result.seconds)[len(result.seconds) // 2]:.2f} |"
        )
    refused = [result for result in results if result.reason]
    return lines + [f"| {r.method.title} (`{r.method.name}`) | {r.reason} | | | | | |" for r in refused]


def chosen(only: list[str]) -> list[explainers.Method]:
    """The controls and the named methods, or all."""
    names = [name for name in only or explainers.METHODS if name not in CONTROLS]
    return [explainers.METHODS[name] for name in [*CONTROLS, *names]]


def main() -> None:
    """Measure and print the table; with --out, write it after every method."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faithfulness", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", type=Path, required=True, help="a folder of photographs, with subfolders")
    names = list(explainers.METHODS)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=[], metavar="NAME", help="methods beside the controls"
    )
    parser.add_argument("--limit", type=int, help="at most so many photographs, evenly spaced")
    parser.add_argument("--budget", type=float, help="time budget of a long method in seconds (default: none)")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32", help="of the curves' scores")
    parser.add_argument("--model", default="auto", help="name of a model (default: the one on board)")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    photos = photographs(model, arguments.photos, arguments.limit)
    if not photos:
        parser.error(f"{arguments.photos} contains no image ({', '.join(PICTURES)}).")
    about = (
        f"{model.name}, {len(photos)} photographs, blurred baseline, {STEPS} steps; mean ± standard error. Ranked by "
        f"value as `explain` draws a map, and signed maps by magnitude as well."
        + (f" Time budget of long methods: {arguments.budget:g} s." if arguments.budget else "")
        + (" Scores in bf16." if arguments.precision == "bf16" else "")
    )
    results: list[Result] = []
    for method in chosen(arguments.only):
        options = {"budget": arguments.budget} if method.long and arguments.budget else {}
        results.append(measure(model, method, photos, arguments.precision, **options))
        print(method.name, flush=True)
        if arguments.out and len(results) >= len(CONTROLS):
            arguments.out.write_text("\n".join([about, "", *table(results)]) + "\n", encoding="utf-8")
    print("\n".join([about, "", *table(results)]))


if __name__ == "__main__":
    main()
