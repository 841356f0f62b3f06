"""Commands that use finished runs, apart from those in `commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from saliscope.cli import completion, messages
from saliscope.cli.options import LogOptions, ModelOptions, expand, parse_size, refuse_folder, set_offline
from saliscope.cli.progress import Progress

Run = Annotated[str, typer.Argument(help=messages.FOLDER)]
Offline = Annotated[bool, typer.Option("--offline", help=messages.OFFLINE)]


@expand
def compare(
    run_a: Run,
    run_b: Run,
    out: Annotated[Path, typer.Option(help=messages.COMPARE_OUT)] = Path("compare.html"),
    match: Annotated[str, typer.Option(help=messages.MATCH)] = "path",
    offline: Offline = False,
    *,
    log: LogOptions,
) -> None:
    from saliscope.runs.compare import texts, write  # torch takes seconds to start

    log.apply()
    set_offline(offline)
    refuse_folder(out)
    runs = [open_finished(folder) for folder in (run_a, run_b)]
    with Progress(messages.COMPARING, messages.NOT_RESUMABLE) as progress:
        done = write(runs[0], runs[1], out, key=match, progress=progress)
    text = texts.printed(done.result, done.alignment, str(done.page), str(done.table))
    log.done(text, page=str(done.page), table=str(done.table), **texts.numbers(done.result))


@expand
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help=messages.EXPORT_OUT)],
    to: Annotated[str, typer.Option(help=messages.EXPORT_TO)] = "hf",
    offline: Offline = False,
    *,
    log: LogOptions,
) -> None:
    from saliscope.runs import export as exports  # torch takes seconds to start

    log.apply()
    set_offline(offline)
    if to not in exports.FORMATS:
        raise typer.BadParameter(messages.NOT_A_TARGET.format(text=to), param_hint="--to")
    finished = open_finished(run)
    with Progress(messages.EXPORTING, messages.NOT_RESUMABLE) as progress:
        done = exports.export(finished, to, out, progress)
    text = messages.exported(done.folder, done.written, done.missing, to)
    log.done(text, folder=str(done.folder), written=done.written, missing=done.missing)


@expand
def layers(
    name: Annotated[str, typer.Argument(metavar="MODEL", help=messages.MODEL, autocompletion=completion.models)],
    weights: Annotated[Path | None, typer.Option(help=messages.WEIGHTS)] = None,
    labels: Annotated[Path | None, typer.Option(help=messages.LABELS)] = None,
    size: Annotated[Any, typer.Option(help=messages.SIZE, parser=parse_size, metavar="PIXELS")] = None,
    offline: Offline = False,
) -> None:
    options = ModelOptions(name, weights, labels, size=size, offline=offline).overrides()
    for layer, shape, kind in completion.list_layers(name, **options):
        typer.echo(f"{layer:40} {shape:20} {kind}")


def open_finished(folder: str) -> Any:
    """Return a finished run with its images.

    Errors   Refused
    """
    from saliscope.images import uploads  # only needed if images are read
    from saliscope.runs import shards  # torch takes seconds to start
    from saliscope.runs.finished.finished_run import FinishedRun  # as above

    return FinishedRun(shards.open_run(folder), uploads.open_image)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(help=messages.COMPARE)(compare)
    app.command(help=messages.EXPORT)(export)
    app.command(help=messages.LAYERS)(layers)
