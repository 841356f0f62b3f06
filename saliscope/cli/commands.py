"""The commands of `saliscope`. `saliscope COMMAND --help` shows an example of each."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from saliscope import __version__
from saliscope.cli import index_command, masks, messages, planning, run_commands, serving
from saliscope.cli.options import Device, LogOptions, ModelOptions, RunOptions, expand, refuse_folder, set_offline
from saliscope.cli.progress import FORMATS, JSON, LOG, TEXT, Progress
from saliscope.cli.stopping import TERMINATED, StopOnTerminate, Terminated
from saliscope.errors import Refused

if TYPE_CHECKING:
    from saliscope.runs.run import Detail, Job, Report, Summary

app = typer.Typer(
    name="saliscope",
    help=messages.SALISCOPE,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def saliscope(
    version: Annotated[
        bool, typer.Option("--version", help=messages.VERSION, callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


class Exit(IntEnum):
    """Exit codes of the commands. Typer exits with 2 for usage errors."""

    DONE = 0
    ERROR = 1
    UNREADABLE = 3
    INTERRUPTED = 130
    TERMINATED = TERMINATED


DETECTOR_METHODS = ("d_rise",)
"""Methods that do not apply to classifiers."""
Folder = Annotated[str, typer.Argument(help=messages.FOLDER)]
Seed = Annotated[int, typer.Option(min=0, help=messages.SEED)]
Offline = Annotated[bool, typer.Option("--offline", help=messages.OFFLINE)]


@app.command(help=messages.SERVE)
@expand
def serve(
    model: ModelOptions,
    host: Annotated[str | None, typer.Option(help=messages.HOST)] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help=messages.PORT)] = None,
    run: Annotated[str | None, typer.Option(metavar="FOLDER", help=messages.RUN)] = None,
    mcp: Annotated[bool, typer.Option("--mcp", help=messages.MCP)] = False,
    monitoring: Annotated[
        bool, typer.Option("--monitoring", envvar="SALISCOPE_MONITORING", help=messages.MONITORING)
    ] = False,
    log_format: Annotated[str, typer.Option(envvar="SALISCOPE_LOG_FORMAT", help=messages.REQUEST_LOG)] = TEXT,
    device: Device = "auto",
) -> None:
    overrides = model.overrides()
    if log_format not in FORMATS:
        raise typer.BadParameter(messages.NOT_A_FORMAT.format(text=log_format), param_hint="--log-format")
    serving.check_address(host, port)
    serving.serve(model.model, overrides, host, port, run, device, mcp, monitoring, log_format)


@app.command(help=messages.EXPLAIN)
@expand
def explain(
    source: Annotated[str, typer.Argument(help=messages.SOURCE)],
    out: Annotated[str, typer.Option(help=messages.OUT)],
    run: RunOptions,
    model: ModelOptions,
    log: LogOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=messages.DRY_RUN)] = False,
) -> None:
    log.apply()
    run.check_engine()
    method_options, overrides = run.method_options(), model.overrides()
    from saliscope.runs import run as runs  # torch takes seconds to start
    from saliscope.runs import settings as run_settings  # as above

    settings = run_settings.Settings(
        model.model,
        overrides,
        run.method,
        run.layer,
        run.target,
        run.where,
        method_options,
        run.batch_size,
        precision=run.precision,
        seed=run.seed,
    )
    _keep_freed_memory()
    if dry_run:
        plan = planning.measure(settings, source, out, run, _decode())
        log.done(plan.text(), **plan.values())
        return
    with StopOnTerminate() as stop:
        job = runs.prepare(settings, source, out, limit=run.limit, device=run.local_device)
        with Progress(messages.EXPLAINING) as progress:

            def report(done: int, total: int | None) -> None:
                progress(done, total)
                stop(done, total)

            stop.running = True
            done = _explain_images(job, run, report, progress.detail)
    log.done(messages.explained(done, settings), folder=str(done.folder), **done.counts)
    raise typer.Exit(Exit.UNREADABLE if done.counts["unreadable"] else Exit.DONE)


def _explain_images(job: Job, run: RunOptions, report: Report, detail: Detail) -> Summary:
    """Explain the images of a job in this process or on Ray."""
    if run.engine == "ray":
        from saliscope.runs import ray_engine  # ray is an extra

        workers = ray_engine.Workers(run.workers or None, gpus=run.gpus, device=run.device, least=run.min_workers or 1)
        return ray_engine.run(job, decode=_decode(), address=run.address, workers=workers, report=report, detail=detail)
    from saliscope.runs import run as runs  # torch takes seconds to start

    return runs.run(job, decode=_decode(), workers=run.workers, device=run.device, report=report, detail=detail)


@app.command(help=messages.REPORT)
@expand
def report(
    folder: Folder,
    out: Annotated[Path, typer.Option(help=messages.REPORT_OUT)] = Path("report.html"),
    box: Annotated[str | None, typer.Option(help=messages.BOX)] = None,
    mask: Annotated[Path | None, typer.Option(help=messages.MASK)] = None,
    link: Annotated[str | None, typer.Option(help=messages.LINK)] = None,
    metadata: Annotated[str | None, typer.Option(help=messages.METADATA)] = None,
    device: Device = "cpu",
    offline: Offline = False,
    *,
    log: LogOptions,
) -> None:
    from saliscope.runs import report as reports  # torch takes seconds to start
    from saliscope.runs.report import metadata as lists  # as above
    from saliscope.zoo import devices  # as above

    log.apply()
    set_offline(offline)
    refuse_folder(out)
    if link is not None and not link.startswith(("http://", "https://")):
        raise typer.BadParameter(messages.NOT_A_URL.format(text=link), param_hint="--link")
    place = devices.choose(device)
    run = run_commands.open_finished(folder)
    loaded = run.try_model()
    if loaded is not None:
        if warning := devices.compare(loaded, place):
            warnings.warn(warning, stacklevel=2)
        loaded.network.to(place)
    data = run.data
    paths = data.columns(["path"])["path"] if mask is not None or metadata is not None else None
    missing: set[str] = set()

    def read(path: str) -> Any:
        image = run.image(path)
        if image is None:
            missing.add(path)
        return image

    with Progress(messages.REPORTING, messages.NOT_RESUMABLE) as progress:
        path = reports.write(
            data,
            out,
            read=read,
            model=loaded,
            box=_box(box),
            mask=None if mask is None or paths is None else masks.find(mask, paths.to_pylist()),
            link=link,
            metadata=None if metadata is None or paths is None else lists.read(metadata, paths),
            source=run.source,
            progress=progress,
        )
    log.done(messages.reported(path, len(missing)), page=str(path), missing=len(missing))


@app.command(help=messages.EVALUATE)
@expand
def evaluate(
    folder: Folder,
    images: Annotated[int, typer.Option(min=1, help=messages.SAMPLE)] = 100,
    metrics: Annotated[str, typer.Option(help=messages.METRICS)] = "deletion,insertion",
    steps: Annotated[int, typer.Option(min=2, help=messages.STEPS)] = 20,
    precision: Annotated[str, typer.Option(help=messages.EVALUATED)] = "auto",
    seed: Seed = 0,
    device: Device = "cpu",
    offline: Offline = False,
    *,
    log: LogOptions,
) -> None:
    from saliscope.runs import shards  # torch takes seconds to start
    from saliscope.runs.finished import evaluation  # as above
    from saliscope.runs.finished.finished_run import FinishedRun  # as above

    log.apply()
    set_offline(offline)
    _keep_freed_memory()
    data = shards.open_run(folder)
    with Progress(messages.EVALUATING, messages.NOT_RESUMABLE) as progress:
        result = evaluation.evaluate(
            FinishedRun(data, _decode()),
            images=images,
            metrics=[name.strip() for name in metrics.split(",") if name.strip()] or [metrics],
            steps=steps,
            precision=precision,
            seed=seed,
            device=device,
            report=progress,
        )
    log.done(messages.evaluated(result, folder), images=result["images"])


@app.command(help=messages.MODELS)
def models(offline: Offline = False) -> None:
    from saliscope import zoo  # torch takes seconds to start

    set_offline(offline)
    for info in zoo.list_models():
        typer.echo(f"{info.name:40} {info.title:40} {messages.model_state(info)}{messages.task(info.task)}")


@app.command(help=messages.METHODS)
def methods() -> None:
    import explainers  # torch takes seconds to start

    for method in explainers.METHODS.values():
        if method.returns in ("grid", "pixels", "heat") and method.name not in DETECTOR_METHODS:
            typer.echo(f"{method.name:32} {method.family:14} {method.summary}")


@app.command(help=messages.REPLAY)
@expand
def replay(
    bundle: Annotated[Path, typer.Argument(help=messages.BUNDLE)], device: Device = "auto", *, model: ModelOptions
) -> None:
    from saliscope.compute.bundles import replay as replays  # torch takes seconds to start

    own = model.overrides()
    raise typer.Exit(replays.run(str(bundle), typer.echo, model=model.model, own=own, device=device))


run_commands.register(app)
index_command.register(app)


def _box(text: str | None) -> tuple[float, float, float, float] | None:
    if text is None:
        return None
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(messages.NOT_A_BOX.format(text=text), param_hint="--box") from None
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise typer.BadParameter(messages.NOT_A_BOX.format(text=text), param_hint="--box")
    return left, top, right, bottom


def _decode() -> Any:
    """Return the decoder of the page, which limits size and time."""
    from saliscope.images import uploads  # only needed if images are read

    return uploads.open_image


def _keep_freed_memory() -> None:
    import explainers  # torch takes seconds to start

    explainers.keep_freed_memory()


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Expected errors are printed as one message without a traceback, and set the exit code.

    Errors   SystemExit
    """
    for name, value in {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "300000"}.items():
        os.environ.setdefault(name, value)  # as for the page: see saliscope/page/serving/before_torch.py
    warnings.showwarning = _print_once()
    LOG.quiet, LOG.format = False, TEXT
    try:
        app(arguments)
    except KeyboardInterrupt:
        _exit_interrupted()
    except Terminated:
        typer.echo(messages.TERMINATED, err=True)
        _exit_interrupted(Exit.TERMINATED)
    except SystemExit as end:
        if end.code in (Exit.INTERRUPTED, Exit.TERMINATED):  # typer converts Ctrl+C to this code
            _exit_interrupted(Exit(end.code))
        raise
    except Exception as error:
        if not _is_expected(error):
            raise
        if LOG.format == JSON:
            LOG.write("error", str(error), message=str(error))
        else:
            typer.echo(str(error), err=True)
        sys.exit(Exit.ERROR)


def _print_once() -> Callable[..., None]:
    """Return a function that prints each warning once, without the line of code that caused it."""
    printed: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in printed:
            printed.add(str(message))
            if LOG.format == JSON:
                LOG.write("warning", str(message), message=str(message))
            elif not LOG.quiet:
                typer.echo(str(message), err=True)

    return show


def _exit_interrupted(code: Exit = Exit.INTERRUPTED) -> NoReturn:
    """Exit at once: finished batches are on the disk, and a worker may be blocked while it passes on its batch."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.exit(code)


def _is_expected(error: Exception) -> bool:
    if isinstance(error, Refused):
        return True
    from explainers import ExplainerError  # torch takes seconds to start
    from saliscope.zoo import ModelUnavailable  # as above

    return isinstance(error, (ExplainerError, ModelUnavailable, ImportError))
