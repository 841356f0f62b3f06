"""Options that several commands share, each declared once.

A command takes them as one argument, a dataclass of annotated fields: `expand` replaces it by its fields before typer
reads the signature.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from saliscope.cli import completion, messages, progress
from saliscope.errors import Refused
from saliscope.runs.settings import Settings, check_engine


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(messages.NOT_NUMBERS.format(text=text)) from None


def parse_size(text: str) -> int | tuple[int, int]:
    """Return the pixels of a side, or height and width.

    Errors   typer.BadParameter
    """
    parts = re.fullmatch(r"([1-9]\d{0,3})(?:x([1-9]\d{0,3}))?", text)
    if not parts:
        raise typer.BadParameter(messages.NOT_A_SIZE.format(text=text))
    height, width = parts.groups()
    return (int(height), int(width)) if width else int(height)


NAMES = ("source", "out", "model", "model_options", "progress", "detail")
"""Arguments of `saliscope.runs.explain` that are not in `RunOptions`."""
_NETWORK: dict[str, Any] = {"rich_help_panel": messages.NETWORK}


def _set_offline(offline: bool) -> bool:
    """Forbid downloads for the rest of the process if `offline` is true."""
    if offline:
        os.environ["SALISCOPE_OFFLINE"] = "1"
    return offline


Offline = Annotated[bool, typer.Option("--offline", help=messages.OFFLINE, callback=_set_offline)]
Device = Annotated[str, typer.Option(help=messages.DEVICE)]


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The model, and the user's settings for it."""

    model: Annotated[str, typer.Option(help=messages.MODEL, autocompletion=completion.models, **_NETWORK)] = "auto"
    weights: Annotated[Path | None, typer.Option(help=messages.WEIGHTS, **_NETWORK)] = None
    labels: Annotated[Path | None, typer.Option(help=messages.LABELS, **_NETWORK)] = None
    mean: Annotated[Any, typer.Option(help=messages.MEAN, parser=_numbers, metavar="NUMBERS", **_NETWORK)] = None
    std: Annotated[Any, typer.Option(help=messages.STD, parser=_numbers, metavar="NUMBERS", **_NETWORK)] = None
    size: Annotated[Any, typer.Option(help=messages.SIZE, parser=parse_size, metavar="PIXELS", **_NETWORK)] = None
    score: Annotated[str | None, typer.Option(help=messages.SCORE, **_NETWORK)] = None
    offline: Annotated[bool, typer.Option("--offline", help=messages.OFFLINE, callback=_set_offline, **_NETWORK)] = (
        False
    )

    def overrides(self) -> dict[str, Any]:
        """Return the given options except the name of the model.

        Errors   Refused if they are for a model that is not named
        """
        values = {"mean": self.mean, "std": self.std, "size": self.size, "score": self.score}
        paths = {"weights": self.weights, "labels": self.labels}
        values |= {name: path and os.path.expanduser(path) for name, path in paths.items()}
        options = {name: value for name, value in values.items() if value is not None}
        if options and self.model == os.environ.get("SALISCOPE_MODEL", "auto") == "auto":
            raise Refused(messages.no_model_named([f"--{name}" for name in options]))
        return options


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What a run computes, and with which resources."""

    method: Annotated[str, typer.Option(help=messages.METHOD, autocompletion=completion.methods)] = "grad_cam"
    layer: Annotated[str | None, typer.Option(help=messages.LAYER, autocompletion=completion.layers)] = None
    target: Annotated[str, typer.Option("--target", "--text", help=messages.TARGET)] = "predicted"
    option: Annotated[list[str] | None, typer.Option(help=messages.OPTION)] = None
    where: Annotated[str, typer.Option(help=messages.WHERE)] = ""
    limit: Annotated[int | None, typer.Option(min=1, help=messages.LIMIT)] = None
    batch_size: Annotated[int, typer.Option(min=1, help=messages.BATCH)] = 16
    workers: Annotated[int | None, typer.Option(min=0, help=messages.WORKERS)] = None
    precision: Annotated[str | None, typer.Option(help=messages.PRECISION)] = None
    seed: Annotated[int, typer.Option(min=0, help=messages.SEED)] = 0
    device: Device = "cpu"
    engine: Annotated[str, typer.Option(help=messages.ENGINE)] = "local"
    address: Annotated[str | None, typer.Option(help=messages.ADDRESS)] = None
    gpus: Annotated[float, typer.Option(min=0, help=messages.GPUS)] = 0
    min_workers: Annotated[int | None, typer.Option(min=1, help=messages.MIN_WORKERS)] = None

    def arguments(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments of `saliscope.runs.explain`, and the options of the method.

        Errors   typer.BadParameter for options that the engine does not support; Refused for two different values
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["option"]
        options = self.method_options()
        if shared := {"seed", "precision"} & options.keys():
            Settings(method=self.method, options=options).check()  # which of them the method has
        for name in shared:
            value = options.pop(name)
            if values[name] not in (None, 0, value):
                raise Refused(f"--{name} {values[name]} and --option {name}={value} conflict. Use only one of them.")
            values[name] = value
        if taken := options.keys() & {*values, *NAMES}:
            text = messages.NOT_OF_A_METHOD.format(name=min(taken))
            raise typer.BadParameter(text, param_hint="--option")
        names = ("engine", "device", "workers", "address", "gpus", "min_workers")
        with usage_error():
            check_engine(**{name: values[name] for name in names})
        return values, options

    def method_options(self) -> dict[str, Any]:
        """Return the values of `--option name=value` as a dictionary; numbers and booleans are converted."""
        options: dict[str, Any] = {}
        for text in self.option or []:
            name, equals, value = text.partition("=")
            if not equals or not name:
                raise typer.BadParameter(messages.NOT_AN_OPTION.format(text=text), param_hint="--option")
            options[name.strip().replace("-", "_")] = _value(value.strip())
        return options


class Format(str, Enum):
    """How a command prints its result."""

    text = progress.TEXT
    json = progress.JSON


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """How a command prints its result and its progress."""

    format: Annotated[Format, typer.Option(help=messages.FORMAT)] = Format.text
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=messages.QUIET)] = False

    def apply(self) -> None:
        """Use these settings for the rest of the process."""
        progress.LOG.quiet, progress.LOG.format = self.quiet, self.format.value

    def show(self, text: object, values: Any) -> None:
        """Print the result of a command: its text, which is left out if quiet, or its values as one JSON document."""
        if self.format is Format.json:
            progress.LOG.print_result(values)
        elif not self.quiet:
            typer.echo(str(text))


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def refuse_folder(out: Path) -> None:
    """Check that --out names a file, for commands that write one page.

    Errors   typer.BadParameter
    """
    if out.expanduser().is_dir():
        raise typer.BadParameter(messages.NOT_A_FILE.format(path=str(out)), param_hint="--out")


@contextlib.contextmanager
def usage_error(option: str | None = None) -> Iterator[None]:
    """Convert Refused to an error of usage.

    Errors   typer.BadParameter
    """
    try:
        yield
    except Refused as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _annotated(hint: Any) -> Any:
    """Return a hint without the None that Python 3.10 adds to it if the default is None."""
    first = next(iter(get_args(hint)), None)
    return first if get_origin(first) is Annotated else hint


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is annotated with a dataclass of options by the fields of the dataclass.

    `OutputOptions` are applied before the command runs.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = _annotated(hints[name])
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind))
            continue
        groups[name] = kind
        types = get_type_hints(kind, include_extras=True)
        for field in dataclasses.fields(kind):
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
                )
            )

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            if kind is OutputOptions:
                values[name].apply()
        command(**values)

    ordered = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return run
