"""The commands of `saliscope`. `saliscope COMMAND --help` shows an example of each."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from saliscope import __version__, runs, zoo
from saliscope.cli import completion, messages, planning, run_commands, serving
from saliscope.cli.options import Device, Format, ModelOptions, Offline, OutputOptions, RunOptions, expand, parse_size
from saliscope.cli.progress import JSON, LOG, TEXT, Exit, Progress, StopOnTerminate, Terminated
from saliscope.errors import Refused

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


METHOD_KEYS = ("name", "title", "family", "returns", "paper", "summary", "takes_layer", "long")
DETECTOR_METHODS = ("d_rise",)
"""Methods that do not apply to classifiers."""
USAGE_ERROR: Any = typer.BadParameter.__base__
"""The error for wrong usage, which typer does not export."""


@app.command(help=messages.SERVE)
@expand
def serve(
    model: ModelOptions,
    host: Annotated[str | None, typer.Option(help=messages.HOST)] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help=messages.PORT)] = None,
    run: Annotated[str | None, typer.Option(metavar="FOLDER", help=messages.RUN)] = None,
    units: Annotated[str | None, typer.Option(metavar="FOLDER", help=messages.UNITS)] = None,
    mcp: Annotated[bool, typer.Option("--mcp", help=messages.MCP)] = False,
    monitoring: Annotated[
        bool, typer.Option("--monitoring", envvar="SALISCOPE_MONITORING", help=messages.MONITORING)
    ] = False,
    log_format: Annotated[Format, typer.Option(envvar="SALISCOPE_LOG_FORMAT", help=messages.REQUEST_LOG)] = Format.text,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=messages.NO_ADDRESS)] = False,
    device: Device = "auto",
) -> None:
    overrides = model.overrides()
    serving.check_address(host, port)
    with contextlib.ExitStack() as stack:
        if quiet:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        serving.serve(model.model, overrides, host, port, run, units, device, mcp, monitoring, log_format.value)


@app.command(help=messages.EXPLAIN)
@expand
def explain(
    source: Annotated[str, typer.Argument(help=messages.SOURCE)],
    out: Annotated[str, typer.Option(help=messages.OUT)],
    run: RunOptions,
    model: ModelOptions,
    output: OutputOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=messages.DRY_RUN)] = False,
) -> None:
    (arguments, options), own = run.arguments(), model.overrides()
    run_commands.keep_freed_memory()
    if dry_run:
        output.show(*planning.measure(source, out, model.model, own, arguments, options))
        return
    with StopOnTerminate() as stop, Progress(messages.EXPLAINING, stop=stop) as progress:
        done = runs.explain(
            source,
            out,
            model=model.model,
            model_options=own,
            progress=progress,
            detail=progress.detail,
            **arguments,
            **options,
        )
    output.show(done, done.to_dict())
    raise typer.Exit(Exit.UNREADABLE if done.counts["unreadable"] else Exit.DONE)


@app.command(help=messages.MODELS)
@expand
def models(offline: Offline = False, *, output: OutputOptions) -> None:
    found = zoo.list_models()
    lines = (f"{each.name:40} {each.title:40} {messages.model_state(each)}{messages.task(each.task)}" for each in found)
    output.show("\n".join(lines), [dataclasses.asdict(each) for each in found])


@app.command(help=messages.METHODS)
@expand
def methods(output: OutputOptions) -> None:
    import explainers  # torch takes seconds to start

    found = [
        method
        for method in explainers.METHODS.values()
        if method.returns in ("grid", "pixels", "heat") and method.name not in DETECTOR_METHODS
    ]
    values = [
        {**{name: getattr(method, name) for name in METHOD_KEYS}, "options": list(method.options)} for method in found
    ]
    output.show("\n".join(f"{each.name:32} {each.family:14} {each.summary}" for each in found), values)


@app.command(help=messages.LAYERS)
@expand
def layers(
    name: Annotated[str, typer.Argument(metavar="MODEL", help=messages.MODEL, autocompletion=completion.models)],
    weights: Annotated[Path | None, typer.Option(help=messages.WEIGHTS)] = None,
    labels: Annotated[Path | None, typer.Option(help=messages.LABELS)] = None,
    size: Annotated[Any, typer.Option(help=messages.SIZE, parser=parse_size, metavar="PIXELS")] = None,
    offline: Offline = False,
    *,
    output: OutputOptions,
) -> None:
    options = ModelOptions(name, weights, labels, size=size).overrides()
    found = completion.list_layers(name, **options)
    lines = (f"{layer:40} {' × '.join(map(str, shape)):20} {kind}" for layer, shape, kind in found)
    values = [{"name": layer, "shape": list(shape), "kind": kind} for layer, shape, kind in found]
    output.show("\n".join(lines), values)


@app.command(help=messages.REPLAY)
@expand
def replay(
    bundle: Annotated[Path, typer.Argument(help=messages.BUNDLE)],
    device: Device = "auto",
    *,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    from saliscope.compute.bundles import replay as replays  # torch takes seconds to start

    own = model.overrides()
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        if output.format is Format.text and not output.quiet:
            typer.echo(line)

    equal = replays.run(str(bundle), write, model=model.model, own=own, device=device)
    if output.format is Format.json:
        output.show("", {"equal": equal, "lines": lines})
    raise typer.Exit(Exit.DONE if equal else Exit.ERROR)


run_commands.register(app)


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Expected errors are printed as one message without a traceback, and set the exit code.

    Errors   SystemExit
    """
    for name, value in {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "300000"}.items():
        os.environ.setdefault(name, value)  # as for the page: see saliscope/page/serving/before_torch.py
    warnings.showwarning = _print_once()
    LOG.quiet, LOG.format, LOG.stdout = False, JSON if _wants_json(arguments) else TEXT, sys.stdout
    # The user's own network may print, and the result has stdout for itself.
    with contextlib.redirect_stdout(sys.stderr) if LOG.format == JSON else contextlib.nullcontext():
        code = _run(arguments)
    LOG.stdout = None
    _exit(code)


def _wants_json(arguments: list[str] | None) -> bool:
    """Return whether the result is JSON, before the arguments are parsed: wrong usage is JSON too."""
    words = sys.argv[1:] if arguments is None else arguments
    return "--format=json" in words or ("--format", "json") in itertools.pairwise(words)


def _run(arguments: list[str] | None) -> int:
    """Run a command, print its error, and return the exit code."""
    try:
        return int(app(arguments, standalone_mode=False) or 0)
    except USAGE_ERROR as error:
        return _print_error(error.format_message(), error.exit_code, error.show)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except SystemExit as end:
        if end.code != Exit.TERMINATED:
            raise
        return Exit.TERMINATED
    except Terminated:
        return _print_error(messages.TERMINATED, Exit.TERMINATED)
    except Exception as error:
        if not _is_expected(error):
            raise
        return _print_error(str(error), Exit.ERROR)


def _print_error(message: str, code: int, show: Callable[[], object] | None = None) -> int:
    """Print an error as a JSON object or as text, and return the exit code; `show` prints it with the usage."""
    if show is not None and LOG.format == TEXT:
        show()
    else:
        LOG.write("error", message, error=message, exit=int(code))
    return int(code)


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


def _exit(code: int) -> NoReturn:
    """Exit. A stopped command exits at once: finished batches are on the disk, and its workers may be blocked."""
    if code in (Exit.INTERRUPTED, Exit.TERMINATED):
        for worker in multiprocessing.active_children():
            worker.kill()
    sys.exit(code)


def _is_expected(error: Exception) -> bool:
    if isinstance(error, Refused):
        return True
    from explainers import ExplainerError  # torch takes seconds to start
    from saliscope.zoo import ModelUnavailable  # as above

    return isinstance(error, (ExplainerError, ModelUnavailable, ImportError))
