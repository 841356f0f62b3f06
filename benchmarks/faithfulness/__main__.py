"""`python -m benchmarks.faithfulness --photos FOLDER --cache FILE`: how far each method can be believed.

Deletion and insertion (Petsiuk et al. 2018, arXiv:1806.07421) of every method over photographs, beside three controls
that do not depend on the network, and the randomisation tests (Adebayo et al. 2018, arXiv:1810.03292). A run goes on
where the last one with the same --cache ended: quick methods first on all photographs, then the slow ones.

python -m benchmarks.faithfulness --photos assets/examples ~/photos --limit 100 --cache ~/faithfulness.json --write
python -m benchmarks.faithfulness --photos ~/photos --only lrp xrai     these beside the controls, nothing kept

With --write the table of docs/methods.md and the page's verdicts (ui/methods/verdicts.json) are written anew.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from pathlib import Path

import explainers
from benchmarks.faithfulness.cache import Cache
from benchmarks.faithfulness.measure import CONTROLS, STEPS, measure, randomise
from benchmarks.faithfulness.photos import paths, photographs
from benchmarks.faithfulness.table import about, costs, table, verdicts, write
from models import Model, load_model

TIERS = ((15.0, 6, 1), (200.0, 3, 1), (math.inf, 1, 1))
"""Forward passes, by ui/methods/costs.json, up to which a method is quick, or middling, or slow; photographs, and
networks for each, on which its weights are drawn anew.
"""


def main() -> None:
    """Measure what is missing, then print the table."""
    arguments = parsed()
    model = load_model(arguments.model)
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.cache or Path(folder) / "faithfulness.json"
        cache = Cache(file, {"network": model.name, "steps": STEPS, "precision": arguments.precision})
        if not arguments.no_measure:
            run(arguments, model, cache)
        found = verdicts(cache)
        print("\n".join([about(found), "", *table(found, costs())]))
        if arguments.write:
            write(found)


def run(arguments: argparse.Namespace, model: Model, cache: Cache) -> None:
    """All methods over the photographs: the quick ones on all, the middling ones, then the slow ones on the first."""
    chosen = [each for each in explainers.METHODS.values() if each.name not in CONTROLS]
    chosen = [each for each in chosen if not arguments.only or each.name in arguments.only]
    passes, least, photos = costs(), -1.0, files(arguments)
    for most, pictures, seeds in TIERS:
        methods = [each for each in chosen if least < passes.get(each.name, 0) <= most]
        limit = arguments.slow_limit if most == math.inf else None
        for done, photo in enumerate(photographs(model, photos[:limit])):
            began = time.perf_counter()
            measure(model, photo, methods, cache, arguments.budget, arguments.precision)
            cache.save()
            took = time.perf_counter() - began
            print(f"up to {most:g} passes, photograph {done + 1}, {photo.name}: {took:.0f} s", flush=True)
        for photo in photographs(model, photos[: min(pictures, arguments.randomised)]):
            randomise(model, photo, methods, cache, seeds)
            cache.save()
            print(f"up to {most:g} passes, weights drawn anew, {photo.name}", flush=True)
        least = most


def files(arguments: argparse.Namespace) -> list[Path]:
    """The photographs of all folders, in a random order, so that the first of them stand for all."""
    found = [path for folder in arguments.photos for path in paths(folder, arguments.limit)]
    random.Random(0).shuffle(found)
    return found


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faithfulness", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", type=Path, nargs="+", required=True, help="folders of photographs")
    parser.add_argument("--only", nargs="+", choices=list(explainers.METHODS), default=[], metavar="NAME")
    parser.add_argument("--limit", type=int, help="at most so many photographs of a folder, evenly spaced")
    parser.add_argument("--slow-limit", type=int, help="so many of all photographs for slow methods")
    parser.add_argument("--randomised", type=int, default=6, help="photographs on which weights are drawn anew")
    parser.add_argument("--budget", type=float, help="time budget of a slow method's map in seconds (default: none)")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32", help="of the curves' scores")
    parser.add_argument("--model", default="auto", help="name of a model (default: the one on board)")
    parser.add_argument("--cache", type=Path, help="figures are kept in this file, and a run goes on from it")
    parser.add_argument("--no-measure", action="store_true", help="only the table, of what the cache holds")
    parser.add_argument("--write", action="store_true", help="write docs/methods.md and the page's verdicts")
    return parser.parse_args()


if __name__ == "__main__":
    main()
