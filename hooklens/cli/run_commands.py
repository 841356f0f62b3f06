"""Commands that use finished runs, apart from those in `commands`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hooklens.cli import messages
from hooklens.cli.options import set_offline
from hooklens.cli.progress import Progress

Run = Annotated[str, typer.Argument(help=messages.FOLDER)]
Offline = Annotated[bool, typer.Option("--offline", help=messages.OFFLINE)]


def compare(
    run_a: Run,
    run_b: Run,
    out: Annotated[Path, typer.Option(help=messages.COMPARE_OUT)] = Path("compare.html"),
    match: Annotated[str, typer.Option(help=messages.MATCH)] = "path",
    offline: Offline = False,
) -> None:
    from hooklens.datasets.compare import texts, write  # torch takes seconds to start

    set_offline(offline)
    if out.expanduser().is_dir():
        raise typer.BadParameter(messages.NOT_A_FILE.format(path=str(out)), param_hint="--out")
    runs = [open_finished(folder) for folder in (run_a, run_b)]
    with Progress(messages.COMPARING, messages.NOT_RESUMABLE) as progress:
        done = write(runs[0], runs[1], out, key=match, progress=progress)
    typer.echo(texts.printed(done.result, done.alignment, str(done.page), str(done.table)))


def open_finished(folder: str) -> Any:
    """Return a finished run with its images.

    Errors   Refused
    """
    from hooklens.datasets import shards  # torch takes seconds to start
    from hooklens.datasets.finished.finished_run import FinishedRun  # as above
    from hooklens.images import uploads  # only needed if images are read

    return FinishedRun(shards.open_run(folder), uploads.open_image)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(help=messages.COMPARE)(compare)
