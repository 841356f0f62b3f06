"""The commands that use finished runs: each calls a function of `saliscope.runs` and prints its result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saliscope import runs
from saliscope.cli import messages
from saliscope.cli.options import Device, Offline, OutputOptions, expand, refuse_folder, usage_error
from saliscope.cli.progress import Progress

Run = Annotated[str, typer.Argument(help=messages.FOLDER)]
FORMATS = ("hf", "coco", "fiftyone")


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
