"""`python -m benchmarks.data_sets.listing --entries 10000000`: memory and time of the process that lists a list.

The seconds until the first batch is explained, and the peak memory of the process in addition to that of a run of 64
images, first until then and then while it lists everything and compares it with the finished shards, as a resumed run
does. The images are links to one file, so that ten million entries fit on a small disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from PIL import Image

from saliscope.datasets import run
from saliscope.datasets.settings import Settings
from saliscope.images.uploads import open_image

IMAGES = 10_000
"""Images that exist, of which the first batches are."""


class _Stop(Exception):
    """Raised after the first batch."""


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_sets.listing", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--entries", type=int, default=10_000_000)
    entries = parser.parse_args().entries
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder, entries)
        settings = Settings()
        model = run.load(settings)
        small = run.prepare(settings, str(folder / "few"), folder / "small", model=model)
        run.run(small, decode=open_image, workers=0)  # what every run needs
        before, start = _peak(), time.perf_counter()
        job = run.prepare(settings, str(folder / "list.csv"), folder / "run", model=model)
        try:
            run.run(job, decode=open_image, workers=0, report=stop)
        except _Stop:
            seconds = time.perf_counter() - start
        print(f"first batch after {seconds:.1f} s, {_peak() - before:.0f} MB more", flush=True)
        start, count = time.perf_counter(), 0
        for shard in job.planned():
            count += len(shard)
            job.shards.missing(shard)
        seconds = time.perf_counter() - start
        each, more = seconds / count * 1e6, _peak() - before
        print(f"all {count:,} listed in {seconds:.0f} s ({each:.1f} µs each), {more:.0f} MB more than {before:.0f} MB")


def write(folder: Path, entries: int) -> None:
    """Write a CSV with labels, the images of its first entries, and a folder with 64 images."""
    Image.new("RGB", (64, 64), "gray").save(folder / "image.jpg")
    for name, count in (("few", 64), ("0000", min(entries, IMAGES))):
        (folder / name).mkdir()
        for k in range(count):
            os.link(folder / "image.jpg", folder / name / f"{k:05d}.jpg")
    with open(folder / "list.csv", "w", encoding="ascii") as file:
        file.write("path,label\n")
        file.writelines(f"{k // IMAGES:04d}/{k % IMAGES:05d}.jpg,class {k // IMAGES % 1000}\n" for k in range(entries))


def stop(done: int, total: int | None) -> None:
    """End the run."""
    raise _Stop


def _peak() -> float:
    """Return the peak memory of this process in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
