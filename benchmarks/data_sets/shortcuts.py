"""`python -m benchmarks.data_sets.shortcuts RUN`: how often a report names a shortcut where there is none.

The explained classes of a run are shuffled between its images. No class then has a pattern of its own, so every
"possible shortcut" is a false positive. The images must be where the run found them.
"""

from __future__ import annotations

import argparse
import functools

import numpy as np
from PIL import Image

from saliscope.datasets.finished.finished_run import FinishedRun
from saliscope.datasets.report import text
from saliscope.datasets.report.analysis import shortcuts
from saliscope.datasets.report.analysis.clusters import find_clusters
from saliscope.datasets.report.analysis.columns import Columns
from saliscope.datasets.report.analysis.map_pass import read_all
from saliscope.datasets.report.images import crop
from saliscope.datasets.shards import open_run
from saliscope.images.uploads import open_image


def main() -> None:
    """Print the number of labelings with a shortcut."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_sets.shortcuts", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("run", help="a finished run")
    parser.add_argument("--labelings", type=int, default=20)
    parser.add_argument("--classes", type=int, help="assign this many classes of equal size instead of shuffling")
    arguments = parser.parse_args()
    run = FinishedRun(open_run(arguments.run), open_image)
    columns, model = Columns.of(run.data), run.try_model()
    by_size = text.by_size(run.data.manifest["settings"]["method"])
    maps = read_all(run.data, columns, columns.target.codes, by_size, {}).sample

    @functools.cache
    def read(number: int) -> Image.Image | None:
        image = run.image(columns.path(int(maps.rows[number])))
        return None if image is None else crop(image, model)

    names = [str(columns.target[int(row)]) for row in maps.rows]
    if arguments.classes:
        names = [f"class {k % arguments.classes}" for k in range(len(names))]
    found = 0
    for seed in range(arguments.labelings):
        shuffled = [names[k] for k in np.random.default_rng(seed).permutation(len(names))]
        clusters = find_clusters(maps, shuffled)
        candidates = shortcuts.find_candidates(maps, clusters, shuffled, read)
        named = [f"{each.name}, {shortcuts.describe(each.box)}" for each in candidates if each.is_shortcut]
        found += bool(named)
        print(f"labeling {seed}: {len(candidates)} candidates, {'; '.join(named) or 'no shortcut'}", flush=True)
    print(f"{found} of {arguments.labelings} labelings have a possible shortcut ({len(names)} images, "
          f"{len(set(names))} classes)")  # fmt: skip


if __name__ == "__main__":
    main()
