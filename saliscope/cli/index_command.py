"""`saliscope index`: the images to which the channels of a network respond most."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saliscope import runs
from saliscope.cli import completion, messages, run_commands
from saliscope.cli.options import Device, ModelOptions, OutputOptions, expand
from saliscope.cli.progress import Exit, Progress, StopOnTerminate

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
    run_commands.keep_freed_memory()
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


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=INDEX)(index)
