"""`python -m benchmarks.faithfulness --photos FOLDER --cache FILE`: measure the faithfulness of each method.

Computes deletion and insertion (Petsiuk et al. 2018, arXiv:1806.07421) of every method over many images, compared with
three controls that do not depend on the network, and the randomization tests (Adebayo et al. 2018, arXiv:1810.03292).
A run resumes where the last one with the same --cache stopped: quick methods first on all images, then the slow ones.

python -m benchmarks.faithfulness --photos assets/examples ~/photos --limit 100 --cache ~/faithfulness.json --write
python -m benchmarks.faithfulness --photos ~/photos --only lrp xrai     compare these with the controls, save nothing

--limit is the number of images of each folder, evenly spaced, and --precision bf16 that of the curves.
--write replaces the table of docs/faithfulness.md and the page's results (saliscope/compute/methods/verdicts.json).
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from pathlib import Path

import explainers
from benchmarks import options
from benchmarks.faithfulness import measure
from benchmarks.faithfulness.measure import CONTROLS, STEPS, Cache, paths, photographs, randomize
from saliscope.compute.methods.costs import table as costs_table
from saliscope.zoo import Model, load_model

TIERS = ((15.0, 6), (200.0, 3), (math.inf, 1))
"""Limits of quick, medium and slow methods: forward passes (saliscope/compute/methods/costs.json), and the number of
images in the randomization test.
"""


def main() -> None:
    """Measure the missing results, then print the table."""
    files = {"photos": [measure.ROOT / "assets" / "examples"], "cache": Path, "write": False}
    arguments = options(__doc__, only=tuple(explainers.METHODS), limit=int, precision="float32", **files)
    model = load_model()
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.cache or Path(folder) / "faithfulness.json"
        cache = Cache(file, {"network": model.name, "steps": STEPS, "precision": arguments.precision})
        run(arguments, model, cache)
        found = measure.verdicts(cache)
        print("\n".join([measure.about(found), "", *measure.table(found)]))
        if arguments.write:
            measure.write(found)


def run(arguments: argparse.Namespace, model: Model, cache: Cache) -> None:
    """Measure quick methods on all images, then medium and slow ones, in a random order: the first represent all."""
    passes, least = costs_table()["passes"], -1.0
    photos = [path for folder in arguments.photos for path in paths(folder, arguments.limit)]
    random.Random(0).shuffle(photos)
    chosen = [explainers.METHODS[name] for name in arguments.only if name not in CONTROLS]
    for most, count in TIERS:
        methods = [each for each in chosen if least < passes.get(each.name, 0) <= most]
        for done, photo in enumerate(photographs(model, photos)):
            start = time.perf_counter()
            measure.measure(model, photo, methods, cache, arguments.precision)
            if done < count:
                randomize(model, photo, methods, cache)
            cache.save()
            seconds = time.perf_counter() - start
            print(f"up to {most:g} passes, image {done + 1}, {photo.name}: {seconds:.0f} s", flush=True)
        least = most


if __name__ == "__main__":
    main()
