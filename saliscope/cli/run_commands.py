"""The commands for finished runs and for an index: each calls a function of `saliscope.runs` and prints its result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saliscope import runs
from saliscope.cli import completion, messages
from saliscope.cli.options import Device, ModelOptions, Offline, OutputOptions, expand, refuse_folder, usage_error
from saliscope.cli.progress import Exit, Progress, StopOnTerminate

Run = Annotated[str, typer.Argument(help=messages.FOLDER)]
FORMATS = ("hf", "coco", "fiftyone")
INDEX = """Find the images to which each channel of some layers responds most, and write them as a folder.

IMAGES is a source as of `saliscope explain`. If its images have labels, each channel gets a name, which is tested on
images that did not propose it; a channel whose name fails the test has none. With --words and --encoder, an encoder
labels the images with words, so names do not need labels. To resume, run the same command again.

\b
    saliscope index photos/ --out units
    saliscope index val/ --model resnet50 --layers layer3,layer4 --effects predicted --out units
    saliscope index photos/ --words words.txt --encoder hf:openai/clip-vit-base-patch32 --out units

The folder has units.parquet (one row per channel) and top.parquet (one row per channel and image, with a small JPEG).
"""
IMAGES = "Images to index."
OUT = "Folder of the index: a new folder, or an unfinished index to resume. Also in a store: s3://bucket/units."
LAYERS = "Names of layers, separated by commas (see: saliscope layers MODEL). Default: the default layer of the model."
TOP = "Images of each channel."
EFFECTS = "Also find the images in which a channel contributes most to a score: predicted, or the name of a class."
SYNTHETIC = (
    "Side in pixels of an image that is optimized for each channel: what it responds to, without a photo. 0: none."
)
WORDS = "Text file with one word or phrase per line. Names are chosen from these words instead of the labels."
ENCODER = (
    "Network that decides which images show a word: an encoder of images and text, hf:NAME, hf:FOLDER or "
    "file.py:factory. A sentence encoder (hf:sentence-transformers/all-MiniLM-L6-v2) finds the word of each label."
)
INDEXING = "Indexed"


@expand
def report(
    folder: Run,
    out: Annotated[Path, typer.Option(help=messages.REPORT_OUT)] = Path("report.html"),
    box: Annotated[str | None, typer.Option(help=messages.BOX)] = None,
    mask: Annotated[Path | None, typer.Option(help=messages.MASK)] = None,
    link: Annotated[str | None, typer.Option(help=messages.LINK)] = None,
    metadata: Annotated[str | None, typer.Option(help=messages.METADATA)] = None,
    device: Device = "cpu",
    offline: Offline = False,
    *,
    output: OutputOptions,
) -> None:
    from saliscope.runs.report.images import check_link  # torch takes seconds to start

    refuse_folder(out)
    with usage_error("--link"):
        check_link(link)
    region = _parse_box(box)
    with Progress(messages.REPORTING, messages.NOT_RESUMABLE) as progress:
        done = runs.open(folder).report(
            out, box=region, mask=mask, link=link, metadata=metadata, device=device, progress=progress
        )
    output.show(done, done.to_dict())


@expand
def evaluate(
    folder: Run,
    images: Annotated[int, typer.Option(min=1, help=messages.SAMPLE)] = 100,
    metrics: Annotated[str, typer.Option(help=messages.METRICS)] = "deletion,insertion",
    steps: Annotated[int, typer.Option(min=2, help=messages.STEPS)] = 20,
    precision: Annotated[str, typer.Option(help=messages.EVALUATED)] = "auto",
    seed: Annotated[int, typer.Option(min=0, help=messages.SEED)] = 0,
    device: Device = "cpu",
    offline: Offline = False,
    *,
    output: OutputOptions,
) -> None:
    keep_freed_memory()
    names = [name.strip() for name in metrics.split(",") if name.strip()] or [metrics]
    with Progress(messages.EVALUATING, messages.NOT_RESUMABLE) as progress:
        done = runs.open(folder).evaluate(
            images=images, metrics=names, steps=steps, precision=precision, seed=seed, device=device, progress=progress
        )
    output.show(done, done.to_dict())


@expand
def compare(
    run_a: Run,
    run_b: Run,
    out: Annotated[Path, typer.Option(help=messages.COMPARE_OUT)] = Path("compare.html"),
    match: Annotated[str, typer.Option(help=messages.MATCH)] = "path",
    offline: Offline = False,
    *,
    output: OutputOptions,
) -> None:
    refuse_folder(out)
    with Progress(messages.COMPARING, messages.NOT_RESUMABLE) as progress:
        done = runs.open(run_a).compare(runs.open(run_b), out, match=match, progress=progress)
    output.show(done, done.to_dict())


@expand
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help=messages.EXPORT_OUT)],
    to: Annotated[str, typer.Option(help=messages.EXPORT_TO)] = "hf",
    offline: Offline = False,
    *,
    output: OutputOptions,
) -> None:
    if to not in FORMATS:
        raise typer.BadParameter(messages.NOT_A_TARGET.format(text=to), param_hint="--to")
    with Progress(messages.EXPORTING, messages.NOT_RESUMABLE) as progress:
        done = runs.open(run).export(to, out, progress=progress)
    output.show(done, done.to_dict())


@expand
def index(
    images: Annotated[str, typer.Argument(help=IMAGES)],
    out: Annotated[str, typer.Option(help=OUT)],
    layers: Annotated[str, typer.Option(help=LAYERS, autocompletion=completion.layers)] = "",
    top: Annotated[int, typer.Option(min=1, max=100, help=TOP)] = 9,
    effects: Annotated[str, typer.Option(help=EFFECTS)] = "",
    synthetic: Annotated[int, typer.Option(min=0, max=512, help=SYNTHETIC)] = 0,
    words: Annotated[Path | None, typer.Option(help=WORDS)] = None,
    encoder: Annotated[str, typer.Option(help=ENCODER)] = "",
    limit: Annotated[int | None, typer.Option(min=1, help=messages.LIMIT)] = None,
    batch_size: Annotated[int, typer.Option(min=1, help=messages.BATCH)] = 32,
    workers: Annotated[int | None, typer.Option(min=0, help=messages.WORKERS)] = None,
    device: Device = "cpu",
    *,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    overrides = model.overrides()
    keep_freed_memory()
    with StopOnTerminate() as stop, Progress(INDEXING, stop=stop) as progress:
        done = runs.index(
            images,
            out,
            model=model.model,
            model_options=overrides,
            layers=[name.strip() for name in layers.split(",") if name.strip()],
            top=top,
            effects=effects,
            synthetic=synthetic,
            words=words or "",
            encoder=encoder,
            limit=limit,
            batch_size=batch_size,
            workers=workers,
            device=device,
            progress=progress,
        )
    output.show(done, done.to_dict())
    raise typer.Exit(Exit.UNREADABLE if done.counts["unreadable"] else Exit.DONE)


def keep_freed_memory() -> None:
    """Keep freed memory for the next batch in this process."""
    import explainers  # torch takes seconds to start

    explainers.keep_freed_memory()


def _parse_box(text: str | None) -> tuple[float, float, float, float] | None:
    if text is None:
        return None
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(messages.NOT_A_BOX.format(text=text), param_hint="--box") from None
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise typer.BadParameter(messages.NOT_A_BOX.format(text=text), param_hint="--box")
    return left, top, right, bottom


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(help=messages.REPORT)(report)
    app.command(help=messages.EVALUATE)(evaluate)
    app.command(help=messages.COMPARE)(compare)
    app.command(help=messages.EXPORT)(export)
    app.command(help=INDEX)(index)
