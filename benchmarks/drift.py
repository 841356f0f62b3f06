"""Accuracy of approximations: bfloat16 against float32, and default runs against several times longer ones.

python -m benchmarks.drift                     bf16 against float32, for every method with the option
python -m benchmarks.drift --defaults          default runs against long ones (hours for all; --only selects)
python -m benchmarks.drift --only rise occlusion --photos coffee cat

Rank is Spearman's rank correlation over all cells, distance ||short - long|| / ||long||; both of the worst image,
and also the mean rank. precision="auto" is offered to methods with a rank above 0.999.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import explainers
from benchmarks import options
from benchmarks.gallery import open_image
from explainers.maps.resize import rank_correlation
from saliscope.zoo import load_model

AUTO_RANK = 0.999
"""Rank above which precision="auto" is offered."""
OPTIONS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text("ascii"))
"""`fewer` for shorter runs, in which both precisions take the same points and masks, and `long` for the long runs."""


def runs(network: Any, defaults: bool) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Yield methods, what is compared, and the options of the approximation and of the reference."""
    for name, method in explainers.METHODS.items():
        if defaults and name in OPTIONS["long"]:
            long = OPTIONS["long"][name]
            for layer in (None, "stages.6", "stages.5") if "channels" in long else (None,):
                shared = {"layer": layer} if layer else {}
                yield name, f"{layer or 'default'}, {long}", shared, shared | long
        elif not defaults and "precision" in method.options and not method.applies(network):
            options = OPTIONS["fewer"].get(name, {})
            offered = "auto" if "auto" in method.options["precision"].choices else "no auto"
            yield name, offered, {**options, "precision": "bf16"}, options


def compare(network: Any, image: Any, name: str, short: dict[str, Any], long: dict[str, Any]) -> tuple[float, float]:
    """Return rank correlation and relative distance of two runs; pixel maps are summed over the channels."""
    maps = [explainers.METHODS[name](network, image, **options) for options in (short, long)]
    approximate, reference = (values.sum(1) if values.ndim == 4 else values for values in maps)
    distance = float((approximate - reference).norm() / reference.norm())
    return float(rank_correlation(approximate, reference)), distance


def main() -> None:
    """Print the table."""
    photos = ["coffee", "goldfish", "cat"]
    given = options(__doc__, photos=photos, only=tuple(explainers.METHODS), defaults=False)
    model = load_model()
    images = [model.prepare(open_image(name)) for name in given.photos]
    print("| method | run | mean rank | worst rank | worst distance |\n|---|---|---|---|---|")
    for name, what, short, long in runs(model.network, given.defaults):
        if name in given.only:
            rows = [compare(model.network, image, name, short, long) for image in images]
            ranks = [rank for rank, _ in rows]
            wrong = " (!)" if not given.defaults and (what == "auto") != (min(ranks) > AUTO_RANK) else ""
            numbers = f"{sum(ranks) / len(ranks):.4f} | {min(ranks):.4f} | {max(far for _, far in rows):.2%}"
            print(f"| {name} | {what}{wrong} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
