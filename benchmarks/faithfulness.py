"""`python -m benchmarks.faithfulness --photos FOLDER`: does what a map points at carry the prediction?

Deletion blurs the pixels of a photograph in the map's order, highest first, and insertion brings them back into the
blurred photograph in the same order. Both follow the probability of the class that the network predicts for the whole
photograph; a good map takes it away soon and brings it back soon. A method's figure is the area under the insertion
curve less that under the deletion curve, over all photographs of the folder, beside the three controls, which know
nothing of the network: a method that is no better than they are has not shown that its map says anything.

python -m benchmarks.faithfulness --photos ~/photos                     every method at its own options
python -m benchmarks.faithfulness --photos ~/photos --only lrp xrai     these alone, beside the controls
python -m benchmarks.faithfulness --photos ~/photos --budget 10         seconds that a long method has for a map

Maps are ranked by value, as `explain` draws them. Signed maps are ranked by size as well, for a second figure: a reader
who sees the size of an attribution alone takes what speaks against the class for a part of the answer.

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
HEAD = """| method | insertion − deletion | by size | insertion | deletion | less the best control | seconds a map |
|---|---|---|---|---|---|---|"""

Score = Callable[[Tensor], Tensor]
"""Pictures [B, C, H, W] -> what is followed, [B]."""


def ranks(heat: Tensor, seed: int = 0) -> Tensor:
    """Each pixel's place in the order, 0 for the highest, [H, W]; equal values in an order drawn from the seed."""
    # In reading order what is on top would come first, and a blank map would be no worse than a good guess.
    drawn = torch.randperm(heat.numel(), generator=torch.Generator().manual_seed(seed)).to(heat.device)
    order = drawn[heat.flatten()[drawn].argsort(descending=True, stable=True)]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return place.view_as(heat)


@torch.no_grad()
def curves(score: Score, image: Tensor, cover: Tensor, heat: Tensor, steps: int = STEPS) -> Tensor:
    """The score while the pixels of one picture [C, H, W] are covered, and while they come back, highest first.

    Returns  [2, steps + 1]: deletion from the whole picture to the covered one, insertion the other way
    """
    counts = torch.arange(steps + 1, device=heat.device) * heat.numel() // steps
    reached = (ranks(heat) < counts.view(-1, 1, 1))[:, None]
    covered = torch.where(reached[1:-1], cover, image)  # its two ends are the other's
    scores = score(torch.cat([torch.where(reached, image, cover), covered]))
    insertion, inner = scores.split([steps + 1, steps - 1])
    return torch.stack([torch.cat([insertion[-1:], inner, insertion[:1]]), insertion])


def area(curve: Tensor) -> Tensor:
    """The area under curves [..., points] over [0, 1], by the trapezoidal rule."""
    return torch.trapezoid(curve.double(), dx=1 / (curve.shape[-1] - 1))


@dataclass(frozen=True, eq=False)
class Photo:
    """One photograph as the network takes it, its blurred self and the class that the network sees in it."""

    name: str
    image: Tensor
    cover: Tensor
    target: int


def photographs(model: Model, folder: Path, limit: int | None = None) -> list[Photo]:
    """The pictures of a folder and the folders in it, by name; with a limit, evenly chosen among them."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    if limit and limit < len(paths):
        paths = [paths[index * len(paths) // limit] for index in range(limit)]
    found = []
    for path in paths:
        with Image.open(path) as photo:
            image = model.prepare(photo)
        with torch.no_grad():
            target = int(model.network(image).argmax())
        found.append(Photo(path.stem, image, baseline_of(image, "blur"), target))
    return found


@dataclass
class Result:
    """One method's areas, a row for each photograph; `reason` where it has none."""

    method: explainers.Method
    reason: str = ""
    areas: list[tuple[float, float]] = field(default_factory=list)
    by_size: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def gains(self, by_size: bool = False) -> Tensor:
        """Insertion less deletion of each photograph."""
        return torch.tensor([high - low for low, high in (self.by_size if by_size else self.areas)])


def measure(
    model: Model, method: explainers.Method, photos: Iterable[Photo], precision: str = "float32", **options: Any
) -> Result:
    """One method's figures over the photographs; its own sentence where it refuses.

    `precision` is that of the curves' scores; the method has its own among its `options`.
    """
    if method.returns == "channels":
        return Result(method, "one value a channel, not a map")
    if reason := method.applies(model.network):
        return Result(method, reason)
    result = Result(method)
    for photo in photos:
        began = time.perf_counter()
        try:
            made = explainers.explain(method.name, model.network, photo.image, photo.target, compare=False, **options)
        except explainers.ExplainerError as refusal:
            return Result(method, str(refusal))
        result.seconds.append(time.perf_counter() - began)
        if not bool(made.map.isfinite().all()):
            return Result(method, f"the map of {photo.name} is not finite")
        heat = resize(made.map, (photo.image.shape[-2], photo.image.shape[-1]))[0]
        result.areas.append(areas(model, photo, heat, precision))
        signed = bool((heat < 0).any())
        result.by_size.append(areas(model, photo, heat.abs(), precision) if signed else result.areas[-1])
    return result


def areas(model: Model, photo: Photo, heat: Tensor, precision: str = "float32") -> tuple[float, float]:
    """The areas under the deletion and the insertion curve of one map [H, W]."""
    target = explainers.Probability(photo.target)
    with open_run(model.network, photo.image, target, many=True, precision=precision) as run:
        run.clean()
        found = curves(lambda batch: run.values(batch, [0] * len(batch)), photo.image[0], photo.cover[0], heat)
    low, high = area(found).tolist()
    return low, high


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def table(results: list[Result]) -> list[str]:
    """The lines of the table, best first; methods that refuse stand below with their reasons."""
    done = sorted((each for each in results if each.areas), key=lambda each: -float(each.gains().mean()))
    best = max((each for each in done if each.method.name in CONTROLS), key=lambda each: float(each.gains().mean()))
    lines = [HEAD]
    for each in done:
        (gain, error), size = mean_and_error(each.gains()), mean_and_error(each.gains(by_size=True))
        low, high = (sum(column) / len(each.areas) for column in zip(*each.areas, strict=True))
        signed = f"{size[0]:.3f} ± {size[1]:.3f}" if each.by_size != each.areas else ""
        title = f"**{each.method.title}**" if each.method.name in CONTROLS else each.method.title
        more, spread = mean_and_error(each.gains() - best.gains())
        beyond = "" if each is best else f"{more:+.3f} ± {spread:.3f}"
        lines.append(
            f"| {title} (`{each.method.name}`) | {gain:.3f} ± {error:.3f} | {signed} | {high:.3f} | {low:.3f} "
            f"| {beyond} | {sorted(each.seconds)[len(each.seconds) // 2]:.2f} |"
        )
    refused = [each for each in results if each.reason]
    return lines + [f"| {each.method.title} (`{each.method.name}`) | {each.reason} | | | | | |" for each in refused]


def chosen(only: list[str]) -> list[explainers.Method]:
    """The controls, and the methods whose name is given; all where none is."""
    names = [name for name in only or explainers.METHODS if name not in CONTROLS]
    return [explainers.METHODS[name] for name in [*CONTROLS, *names]]


def main() -> None:
    """Measure and print the table; what is done so far after each method."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faithfulness", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", type=Path, required=True, help="a folder of photographs, folders in it included")
    names = list(explainers.METHODS)
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="NAME", help="beside the controls")
    parser.add_argument("--limit", type=int, help="at most so many photographs, evenly chosen")
    parser.add_argument("--budget", type=float, help="seconds that a long method has for one map (default: no limit)")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32", help="of the curves' scores")
    parser.add_argument("--model", default="auto", help="a network's name; auto is the one on board")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    model = load_model(given.model)
    photos = photographs(model, given.photos, given.limit)
    if not photos:
        parser.error(f"{given.photos} holds no picture ({', '.join(PICTURES)}).")
    about = (
        f"{model.name}, {len(photos)} photographs, blurred cover, {STEPS} steps; mean ± standard error. Ranked by "
        f"value as `explain` draws a map, and signed maps by size as well."
        + (f" Long methods had {given.budget:g} s a map." if given.budget else "")
        + (" Scores in bf16." if given.precision == "bf16" else "")
    )
    results: list[Result] = []
    for method in chosen(given.only):
        options = {"budget": given.budget} if method.long and given.budget else {}
        results.append(measure(model, method, photos, given.precision, **options))
        print(method.name, flush=True)
        if given.out and len(results) >= len(CONTROLS):
            given.out.write_text("\n".join([about, "", *table(results)]) + "\n", encoding="utf-8")
    print("\n".join([about, "", *table(results)]))


if __name__ == "__main__":
    main()
