"""`hooklens`: whole data sets from the command line; `hooklens COMMAND --help` has an example of each."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from dataset.errors import Refused
from hooklens import masks, words
from hooklens.progress import Progress

app = typer.Typer(
    name="hooklens", help=words.HOOKLENS, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _version(wanted: bool) -> None:
    if wanted:
        from ui.share import record  # torch takes seconds to start

        typer.echo(record.version())
        raise typer.Exit


@app.callback()
def hooklens(
    version: Annotated[bool, typer.Option("--version", help=words.VERSION, callback=_version, is_eager=True)] = False,
) -> None:
    pass


class Exit(IntEnum):
    """What a command ends with; 2 is typer's, for wrong use."""

    DONE = 0
    REFUSED = 1
    UNREADABLE = 3
    STOPPED = 130


OF_DETECTORS = ("d_rise",)
"""Methods that no classifier takes."""
Model = Annotated[str, typer.Option(help=words.MODEL, rich_help_panel=words.NETWORK)]
Weights = Annotated[
    Path | None, typer.Option(help=words.WEIGHTS, exists=True, dir_okay=False, rich_help_panel=words.NETWORK)
]
Labels = Annotated[
    Path | None, typer.Option(help=words.LABELS, exists=True, dir_okay=False, rich_help_panel=words.NETWORK)
]
Mean = Annotated[str | None, typer.Option(help=words.MEAN, rich_help_panel=words.NETWORK)]
Std = Annotated[str | None, typer.Option(help=words.STD, rich_help_panel=words.NETWORK)]
Size = Annotated[str | None, typer.Option(help=words.SIZE, rich_help_panel=words.NETWORK)]
Offline = Annotated[bool, typer.Option("--offline", help=words.OFFLINE, rich_help_panel=words.NETWORK)]
Folder = Annotated[Path, typer.Argument(help=words.FOLDER)]
Seed = Annotated[int, typer.Option(min=0, help=words.SEED)]


@app.command(help=words.EXPLAIN)
def explain(
    source: Annotated[str, typer.Argument(help=words.SOURCE)],
    out: Annotated[Path, typer.Option(help=words.OUT)],
    method: Annotated[str, typer.Option(help=words.METHOD)] = "grad_cam",
    layer: Annotated[str | None, typer.Option(help=words.LAYER)] = None,
    target: Annotated[str, typer.Option(help=words.TARGET)] = "predicted",
    option: Annotated[list[str] | None, typer.Option(help=words.OPTION)] = None,
    where: Annotated[str, typer.Option(help=words.WHERE)] = "",
    limit: Annotated[int | None, typer.Option(min=1, help=words.LIMIT)] = None,
    batch_size: Annotated[int, typer.Option(min=1, help=words.BATCH)] = 16,
    workers: Annotated[int | None, typer.Option(min=0, help=words.WORKERS)] = None,
    precision: Annotated[str | None, typer.Option(help=words.PRECISION)] = None,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help=words.DEVICE)] = "cpu",
    engine: Annotated[str, typer.Option(help=words.ENGINE)] = "local",
    address: Annotated[str | None, typer.Option(help=words.ADDRESS)] = None,
    gpus: Annotated[float, typer.Option(min=0, help=words.GPUS)] = 0,
    model: Model = "auto",
    weights: Weights = None,
    labels: Labels = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    offline: Offline = False,
) -> None:
    from dataset import run, settings  # torch takes seconds to start

    _check_engine(engine, device, address, gpus)
    own = _own(weights, labels, mean, std, size, offline)
    asked = settings.Settings(
        model, own, method, layer, target, where, _options(option or []), batch_size, precision=precision, seed=seed
    )
    _keep_freed_memory()
    job = run.prepare(asked, source, out, limit=limit, device=device)
    if engine == "ray":
        from dataset import ray_run  # ray is an extra

        with Progress(words.EXPLAINING) as progress:
            wanted = ray_run.Workers(most=workers or None, gpus=gpus)
            done = ray_run.run(job, decode=_decode(), address=address, workers=wanted, report=progress)
    else:
        with Progress(words.EXPLAINING) as progress:
            done = run.run(job, decode=_decode(), workers=workers, device=device, report=progress)
    typer.echo(words.explained(done, asked))
    raise typer.Exit(Exit.UNREADABLE if done.counts["unreadable"] else Exit.DONE)


def _check_engine(engine: str, device: str, address: str | None, gpus: float) -> None:
    if engine not in ("local", "ray"):
        raise typer.BadParameter(words.NO_ENGINE.format(engine=engine), param_hint="--engine")
    if engine == "ray" and device != "cpu":
        raise typer.BadParameter(words.DEVICE_OF_RAY, param_hint="--device")
    if engine == "local" and (address or gpus):
        raise typer.BadParameter(words.OF_RAY, param_hint="--address" if address else "--gpus")


@app.command(help=words.REPORT)
def report(
    folder: Folder,
    out: Annotated[Path, typer.Option(help=words.REPORT_OUT)] = Path("report.html"),
    box: Annotated[str | None, typer.Option(help=words.BOX)] = None,
    mask: Annotated[Path | None, typer.Option(help=words.MASK, exists=True)] = None,
    link: Annotated[str | None, typer.Option(help=words.LINK)] = None,
    offline: Offline = False,
) -> None:
    from dataset import report as reports  # as above
    from dataset import shards  # torch takes seconds to start
    from dataset.past.again import Past  # as above

    _own(None, None, None, None, None, offline)
    if out.expanduser().is_dir():
        raise typer.BadParameter(words.NO_PAGE.format(path=str(out)), param_hint="--out")
    if link is not None and not link.startswith(("http://", "https://")):
        raise typer.BadParameter(words.NO_LINK.format(text=link), param_hint="--link")
    finished = shards.open_run(folder)
    past = Past(finished, _decode())
    gone: set[str] = set()

    def read(path: str) -> Any:
        photo = past.photograph(path)
        if photo is None:
            gone.add(path)
        return photo

    with Progress(words.REPORTING, words.ENDED) as progress:
        path = reports.write(
            finished,
            out,
            read=read,
            model=past.model(),
            box=_box(box),
            mask=None if mask is None else masks.find(mask, finished.table["path"].to_pylist()),
            link=link,
            progress=progress,
        )
    typer.echo(words.reported(path, len(gone)))


@app.command(help=words.EVALUATE)
def evaluate(
    folder: Folder,
    pictures: Annotated[int, typer.Option(min=1, help=words.SAMPLE)] = 100,
    metrics: Annotated[str, typer.Option(help=words.METRICS)] = "deletion,insertion",
    steps: Annotated[int, typer.Option(min=2, help=words.STEPS)] = 20,
    precision: Annotated[str, typer.Option(help=words.EVALUATED)] = "auto",
    seed: Seed = 0,
    offline: Offline = False,
) -> None:
    from dataset import shards  # torch takes seconds to start
    from dataset.past import evaluation  # as above
    from dataset.past.again import Past  # as above

    _own(None, None, None, None, None, offline)
    _keep_freed_memory()
    finished = shards.open_run(folder)
    with Progress(words.EVALUATING, words.ENDED) as progress:
        found = evaluation.evaluate(
            Past(finished, _decode()),
            pictures=pictures,
            metrics=[name.strip() for name in metrics.split(",") if name.strip()] or [metrics],
            steps=steps,
            precision=precision,
            seed=seed,
            report=progress,
        )
    typer.echo(words.evaluated(found, folder))


@app.command(help=words.MODELS)
def models() -> None:
    import models as rooms  # torch takes seconds to start

    for info in rooms.list_models():
        here = words.HERE if info.cached else words.megabytes(info.megabytes)
        typer.echo(f"{info.name:40} {info.title:40} {here}{words.task(info.task)}")


@app.command(help=words.METHODS)
def methods() -> None:
    import explainers  # torch takes seconds to start

    for method in explainers.METHODS.values():
        if method.returns in ("grid", "pixels", "heat") and method.name not in OF_DETECTORS:
            typer.echo(f"{method.name:32} {method.family:14} {method.summary}")


@app.command(help=words.REPLAY)
def replay(
    bundle: Annotated[Path, typer.Argument(help=words.BUNDLE)],
    model: Model = "auto",
    weights: Weights = None,
    labels: Labels = None,
    mean: Mean = None,
    std: Std = None,
    size: Size = None,
    offline: Offline = False,
) -> None:
    from ui.share import replay as replaying  # torch takes seconds to start

    own = _own(weights, labels, mean, std, size, offline)
    raise typer.Exit(replaying.run(str(bundle), typer.echo, model=model, own=own))


@app.command(
    help=words.SERVE, add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def serve(context: typer.Context) -> None:
    import app as page  # starts the page

    page.main(context.args)


def _own(
    weights: Path | None, labels: Path | None, mean: str | None, std: str | None, size: str | None, offline: bool
) -> dict[str, Any]:
    """What is said of the network besides its name; sets the environment of `--offline`."""
    import app as page  # the page takes the same values

    if offline:
        os.environ["HOOKLENS_OFFLINE"] = "1"
    own: dict[str, Any] = {"weights": weights and str(weights), "labels": labels and str(labels)}
    own["mean"] = _parsed(page.numbers, mean, "--mean")
    own["std"] = _parsed(page.numbers, std, "--std")
    own["size"] = _parsed(page.size, size, "--size")
    return {name: value for name, value in own.items() if value is not None}


def _parsed(parse: Callable[[str], Any], text: str | None, flag: str) -> Any:
    try:
        return None if text is None else parse(text)
    except argparse.ArgumentTypeError as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def _options(texts: list[str]) -> dict[str, Any]:
    """`name=value` of the method, with numbers and truth values read as such."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(words.NO_OPTION.format(text=text), param_hint="--option")
        found[name.strip().replace("-", "_")] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _box(text: str | None) -> tuple[float, float, float, float] | None:
    if text is None:
        return None
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(words.NO_BOX.format(text=text), param_hint="--box") from None
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise typer.BadParameter(words.NO_BOX.format(text=text), param_hint="--box")
    return left, top, right, bottom


def _decode() -> Any:
    """The page's own guarded decoder."""
    from ui.serving import uploads  # only where pictures are read

    return uploads.open_picture


def _keep_freed_memory() -> None:
    import explainers  # torch takes seconds to start

    explainers.keep_freed_memory()


def main() -> None:
    """Run a command; every refusal is one sentence and an exit code, never a traceback.

    Errors   SystemExit
    """
    for name, value in {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "300000"}.items():
        os.environ.setdefault(name, value)  # as for the page: see ui/serving/gradio_setup.py
    warnings.showwarning = _said_once()
    try:
        app()
    except KeyboardInterrupt:
        _leave()
    except SystemExit as end:
        if end.code == Exit.STOPPED:  # typer's own word for Ctrl+C
            _leave()
        raise
    except Exception as error:
        if not _is_refusal(error):
            raise
        typer.echo(str(error), err=True)
        sys.exit(Exit.REFUSED)


def _said_once() -> Callable[..., None]:
    """Warnings as their sentence, without the line of code that gave them."""
    said: set[str] = set()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            typer.echo(str(message), err=True)

    return show


def _leave() -> NoReturn:
    """End at once: everything is on the disk, and a worker that waits to hand over its batch would be waited for."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.exit(Exit.STOPPED)


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, Refused):
        return True
    from explainers.errors import ExplainerError  # torch takes seconds to start
    from models import ModelUnavailable  # as above

    return isinstance(error, (ExplainerError, ModelUnavailable, ImportError))
