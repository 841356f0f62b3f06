"""`saliscope index`: the images to which the channels of a network respond most."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from saliscope.cli import completion, messages
from saliscope.cli.options import Device, LogOptions, ModelOptions, expand
from saliscope.cli.progress import Progress, duration
from saliscope.cli.stopping import StopOnTerminate

INDEX = """Find the images to which each channel of some layers responds most, and write them as a folder.

IMAGES is a source as of `saliscope explain`. If its images have labels, each channel gets a name, which is tested on
images that did not propose it; a channel whose name fails the test has none. To resume, run the same command again.

\\b
    saliscope index photos/ --out units
    saliscope index val/ --model resnet50 --layers layer3,layer4 --effects predicted --out units

The folder has units.parquet (one row per channel) and top.parquet (one row per channel and image, with a small JPEG).
"""
IMAGES = "Images to index."
OUT = "Folder of the index: a new folder, or an unfinished index to resume. Also in a store: s3://bucket/units."
LAYERS = "Names of layers, separated by commas (see: saliscope layers MODEL). Default: the default layer of the model."
TOP = "Images of each channel."
EFFECTS = "Also find the images in which a channel contributes most to a score: predicted, or the name of a class."
INDEXING = "Indexed"
UNREADABLE = 3
"""Exit code if some images could not be read, as of `saliscope explain`."""


@expand
def index(
    images: Annotated[str, typer.Argument(help=IMAGES)],
    out: Annotated[str, typer.Option(help=OUT)],
    layers: Annotated[str, typer.Option(help=LAYERS, autocompletion=completion.layers)] = "",
    top: Annotated[int, typer.Option(min=1, max=100, help=TOP)] = 9,
    effects: Annotated[str, typer.Option(help=EFFECTS)] = "",
    limit: Annotated[int | None, typer.Option(min=1, help=messages.LIMIT)] = None,
    batch_size: Annotated[int, typer.Option(min=1, help=messages.BATCH)] = 32,
    workers: Annotated[int | None, typer.Option(min=0, help=messages.WORKERS)] = None,
    device: Device = "cpu",
    *,
    model: ModelOptions,
    log: LogOptions,
) -> None:
    log.apply()
    overrides = model.overrides()
    import explainers  # torch takes seconds to start
    from saliscope.images import uploads  # only needed if images are read
    from saliscope.runs import units  # as above

    explainers.keep_freed_memory()
    names = tuple(name.strip() for name in layers.split(",") if name.strip())
    settings = units.IndexSettings(model.model, overrides, names, top, effects, batch_size)
    with StopOnTerminate() as stop:
        job = units.prepare(settings, images, out, limit=limit)
        with Progress(INDEXING) as progress:

            def report(done: int, total: int | None) -> None:
                progress(done, total)
                stop(done, total)

            stop.running = True
            done = units.write_index(job, decode=uploads.open_image, workers=workers, device=device, report=report)
    log.done(summary(done), folder=str(done.folder), **done.counts)
    raise typer.Exit(UNREADABLE if done.counts["unreadable"] else 0)


def summary(done: Any) -> str:
    """Return the summary of an index."""
    counts = done.counts
    speed = f"{done.new:,} new in {duration(done.seconds)}" if done.new else "the index was already finished"
    lines = [f"{counts['channels']:,} channels and {counts['images']:,} images in {str(done.folder)!r}: {speed}."]
    alive = counts["channels"] - counts["dead"]
    lines.append(f"{counts['named']:,} of {alive:,} channels that are not dead have a name.")
    if failed := counts["unreadable"] + counts["skipped"]:
        lines.append(f"{failed:,} images could not be read or indexed; see manifest.json.")
    return "\n".join(lines)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=INDEX)(index)
