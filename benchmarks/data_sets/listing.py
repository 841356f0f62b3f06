"""`python -m benchmarks.data_sets.listing --entries 10000000`: memory and time of the process that lists a source.

For each kind of source: the seconds until the first batch is explained, and the peak memory of the process in addition
to that of a run of 64 images, first until then and then while it lists everything and compares it with the finished
shards, as a resumed run does. The images are links to one file, and folders and tars are links to one of ten thousand
images, so that ten million entries fit on a small disk.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from PIL import Image
from pyarrow import parquet as pq

FOLDER = 10_000
"""Images in a folder or a tar."""


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data_sets.listing", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--kinds", nargs="*", default=list(WRITERS), choices=list(WRITERS))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        Image.new("RGB", (64, 64), "gray").save(Path(folder) / "image.jpg")
        (Path(folder) / "few").mkdir()
        for k in range(64):
            os.link(Path(folder) / "image.jpg", Path(folder) / "few" / f"{k}.jpg")
        for kind in arguments.kinds:
            source = WRITERS[kind](Path(folder), arguments.entries)
            command = [sys.executable, "-m", "benchmarks.data_sets.listing", "--measure", str(source)]
            print(f"{kind}, {arguments.entries:,} entries:", flush=True)
            subprocess.run(command, check=True)


def text_list(folder: Path, entries: int) -> Path:
    """Write a CSV with labels."""
    images(folder, min(entries, FOLDER))
    with open(folder / "list.csv", "w", encoding="ascii") as file:
        file.write("path,label\n")
        for start in range(0, entries, FOLDER):
            number = start // FOLDER
            file.writelines(
                f"{number:04d}/{k:05d}.jpg,class {number % 1000}\n" for k in range(min(FOLDER, entries - start))
            )
    return folder / "list.csv"


def parquet_list(folder: Path, entries: int) -> Path:
    """Write a Parquet list with labels."""
    images(folder, min(entries, FOLDER))
    schema = pa.schema([("path", pa.string()), ("label", pa.string())])
    with pq.ParquetWriter(folder / "list.parquet", schema) as writer:
        for start in range(0, entries, FOLDER):
            count, number = min(FOLDER, entries - start), start // FOLDER
            paths = [f"{number:04d}/{k:05d}.jpg" for k in range(count)]
            writer.write_table(pa.table({"path": paths, "label": [f"class {number % 1000}"] * count}, schema))
    return folder / "list.parquet"


def images(folder: Path, count: int) -> None:
    """Write the first folder of images."""
    (folder / "0000").mkdir(exist_ok=True)
    for k in range(count):
        if not (folder / "0000" / f"{k:05d}.jpg").exists():
            os.link(folder / "image.jpg", folder / "0000" / f"{k:05d}.jpg")


def folders(folder: Path, entries: int) -> Path:
    """Write links to one folder of images."""
    images(folder, FOLDER)
    (folder / "folders").mkdir()
    for number in range(-(-entries // FOLDER)):
        (folder / "folders" / f"{number:04d}").symlink_to(folder / "0000")
    return folder / "folders"


def tars(folder: Path, entries: int) -> Path:
    """Write links to one tar of images."""
    data = (folder / "image.jpg").read_bytes()
    with tarfile.open(folder / "one", "w") as tar:
        for k in range(FOLDER):
            info = tarfile.TarInfo(f"{k:05d}.jpg")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (folder / "tars").mkdir()
    for number in range(-(-entries // FOLDER)):
        (folder / "tars" / f"{number:04d}.tar").symlink_to(folder / "one")
    return folder / "tars"


WRITERS: dict[str, Callable[[Path, int], Path]] = {
    "csv": text_list, "parquet": parquet_list, "folders": folders, "tars": tars,
}  # fmt: skip


class _Stop(Exception):
    """Raised after the first batch."""


def measure(source: str) -> None:
    """Print the results for a source. This is the main function of a process, so that its peak memory is its own."""
    from saliscope.datasets import run
    from saliscope.datasets.settings import Settings
    from saliscope.images.uploads import open_image

    def stop(done: int, total: int | None) -> None:
        raise _Stop

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings()
        model = run.load(settings)
        small = run.prepare(settings, str(Path(source).parent / "few"), Path(folder) / "small", model=model)
        run.run(small, decode=open_image, workers=0)  # what every run needs
        before = _peak()
        start = time.perf_counter()
        job = run.prepare(settings, source, Path(folder) / "run", model=model)
        try:
            run.run(job, decode=open_image, workers=0, report=stop)
        except _Stop:
            seconds = time.perf_counter() - start
        print(f"  first batch after {seconds:.1f} s, {_peak() - before:.0f} MB more", flush=True)
        start, count = time.perf_counter(), 0
        for shard in job.planned():
            count += len(shard)
            job.shards.missing(shard)
        seconds = time.perf_counter() - start
        print(
            f"  all {count:,} listed in {seconds:.0f} s ({seconds / count * 1e6:.1f} µs each), "
            f"{_peak() - before:.0f} MB more than {before:.0f} MB"
        )


def _peak() -> float:
    """Return the peak memory of this process in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
