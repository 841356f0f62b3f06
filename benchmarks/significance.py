"""`python -m benchmarks.significance`: how often chance maps are judged better or worse than random maps.

Random maps of several forms are evaluated on several small networks and images. Every verdict other than "level" or
"few" against the random maps is a false positive: Holm's correction keeps the share of maps with one or more at 5%.
Noise of single pixels is not of the same kind as the coarse random maps: over several images, some networks respond to
it differently, and the tests find this difference.

python -m benchmarks.significance --maps 1000                one image each
python -m benchmarks.significance --maps 200 --images 10     ten images each

`--steps` is the number of steps of the curves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import options
from explainers.metrics.evaluation import Evaluation
from explainers.metrics.metric import EvaluationSettings
from explainers.metrics.run import evaluator

SIDE = 28
FORMS = {"7 x 7 cells": (7, "nearest"), "7 x 7, smooth": (7, "bilinear"), "pixels": (SIDE, "nearest")}
"""The chance maps: the number of random values per side, and how they are enlarged."""


def networks(seed: int) -> dict[str, nn.Module]:
    """Return untrained networks with flat, steep and saturated probabilities."""
    torch.manual_seed(seed)
    found: dict[str, nn.Module] = {}
    for name, gain in (("flat", 1.0), ("steep", 10.0), ("saturated", 50.0)):
        hidden = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, 32), nn.GELU())
        found[f"linear layers, {name}"] = nn.Sequential(hidden, scaled(nn.Linear(32, 5), gain))
        convolutions = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3))
        body = nn.Sequential(convolutions, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        found[f"convolutions, {name}"] = nn.Sequential(body, scaled(nn.Linear(64, 5), 10 * gain))
    return {name: each.eval().requires_grad_(False) for name, each in found.items()}


def scaled(layer: nn.Linear, gain: float) -> nn.Linear:
    """Multiply the weights of the last layer, so that probabilities are higher."""
    with torch.no_grad():
        layer.weight *= gain
    return layer


def chance_maps(form: str, count: int, generator: torch.Generator) -> Tensor:
    """Return random maps [count, SIDE, SIDE]."""
    cells, mode = FORMS[form]
    values = torch.rand(count, 1, cells, cells, generator=generator)
    return functional.interpolate(values, (SIDE, SIDE), mode=mode)[:, 0]


def evaluations(maps: int, images: int, steps: int) -> Iterator[tuple[str, str, Evaluation]]:
    """Yield evaluations of chance maps, with the network and the form; each image and network is used once a form."""
    generator = torch.Generator().manual_seed(0)
    for k in range(math.ceil(maps / len(FORMS) / len(networks(0)))):
        for name, net in networks(k).items():
            cells = (4, 7, SIDE)[k % 3]
            drawn = torch.randn(images, 3, cells, cells, generator=generator)
            x = functional.interpolate(drawn, (SIDE, SIDE), mode="bicubic")
            settings = EvaluationSettings(steps=steps, precision="float32", seed=k)
            with evaluator(net, x, settings) as judge:
                for form in FORMS:
                    yield name, form, judge(chance_maps(form, images, generator))


def main() -> None:
    """Measure and print the shares of false positives by network and form."""
    arguments = options(__doc__, maps=1000, images=1, steps=10)
    number, false, better = Counter[str](), Counter[str](), Counter[str]()
    for name, form, found in evaluations(arguments.maps, arguments.images, arguments.steps):
        random = {by_control["random"].verdict for by_control in found.comparisons.values()}
        every = [each.verdict for by_control in found.comparisons.values() for each in by_control.values()]
        for group in ("all", name, form):
            number[group] += 1
            false[group] += bool(random & {"better", "worse"})
            better[group] += "better" in every
    for group in number:
        wrong, good = (100 * counts[group] / number[group] for counts in (false, better))
        shares = f"{wrong:5.1f}% better or worse than random maps, {good:5.1f}% better than a control"
        print(f"{group:28} {number[group]:6} maps: {shares}")


if __name__ == "__main__":
    main()
