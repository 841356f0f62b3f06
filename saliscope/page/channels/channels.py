"""The channels of a layer: the tiles of all, and one channel enlarged, which then follows the settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from saliscope.compute import engine, units
from saliscope.compute.answers import Waiting
from saliscope.compute.channels import engine as channels_engine
from saliscope.compute.channels import messages
from saliscope.compute.channels.answers import (
    Channel,
    Channels,
    Contribution,
    InputGradient,
    Measures,
    ReceptiveFields,
    Sheet,
    Unchanged,
)
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import Request
from saliscope.page.channels import parts
from saliscope.page.channels import view as channels_view
from saliscope.page.events import Ask, Show, busy, failed, on, run_job, shown, stop_on
from saliscope.page.files import address, new_file
from saliscope.page.wire import Updates

SHOW_WAITING, show_error = busy(parts.GRID_STATUS), failed(parts.GRID_STATUS)


@on(parts.GRID, "answered")
def follow(ask: Ask) -> Iterator[Updates]:
    """Show the tiles of a new answer, unless the page already has them, and update the open channel.

    The script sends the identifiers "about" and "whom" of the page (see `Identifiers`) and its channel "number".
    """
    key, number = ask.text("key"), ask.integer("number", -1)

    def steps(run: Run) -> Iterator[Updates]:
        question, step = ask.question(), None
        if question.image is None:
            yield _closed("") | {parts.GRID: {"key": key}}
            return
        for step in channels_engine.sheet(question, run, known=ask.text("about")):
            if isinstance(step, Unchanged):
                yield {parts.GRID: channels_view.same(key, step.ids), parts.GRID_STATUS: None}
            elif isinstance(step, Sheet):
                yield {parts.GRID: _sheet(step, key, ask.session), parts.GRID_STATUS: None}
            elif isinstance(step, Waiting):
                yield SHOW_WAITING[Waiting](step)
        if number < 0 or (isinstance(step, Unchanged) and step.ids.target == ask.data.get("whom")):
            return
        if isinstance(step, Sheet) and number >= step.total:
            yield _closed(messages.gone(number, step.settings.layer, step.total))
        else:
            yield from _channel(question, number, run, None)

    yield from run_job(ask.job("channels"), steps, show_error)


@on(parts.GRID, "submit")
def more(ask: Ask) -> Iterator[Updates]:
    """Show more tiles, or a measure of all channels."""
    kind, numbers = ask.data.get("measure"), _numbers(ask.data.get("numbers"))

    def steps(run: Run) -> Iterator[Updates]:
        question = ask.question()
        if kind in channels_engine.MEASURES:
            results = channels_engine.measure(question, run, kind, ask.cell())
        else:
            results = channels_engine.sheet(question, run, numbers)
        show: Show = {
            Measures: lambda step: {parts.GRID: channels_view.measures(step), parts.GRID_STATUS: None},
            Sheet: lambda step: {parts.GRID: _sheet(step, ask.text("key"), ask.session), parts.GRID_STATUS: None},
        }
        return shown(results, show | SHOW_WAITING)

    yield from run_job(
        ask.job("channels"), steps, lambda message: {parts.GRID: {"refused": kind}, **show_error(message)}
    )


stop_on(parts.GRID, "channels")


@on(parts.GRID, "select")
@on(parts.WHY, "select")
def open_channel(ask: Ask) -> Iterator[Updates]:
    """Enlarge a channel; with a cell, show its input gradient."""
    number, cell = ask.integer("channel", -1), ask.cell()

    def steps(run: Run) -> Iterator[Updates]:
        yield from _channel(ask.question(), number, run, cell)

    yield from run_job(ask.job("channel"), steps, show_error)


@on(parts.GRID, "save")
def save(ask: Ask) -> Iterator[Updates]:
    """Save all channels as a file, [K, h, w]."""

    def download(step: Channels) -> Updates:
        name = f"{messages.sheet_file(step.settings)}.npy"
        path = new_file(name)
        engine.save_array(step.maps, path)
        return {"download": {"src": address(path), "name": name}, parts.GRID_STATUS: None}

    def steps(run: Run) -> Iterator[Updates]:
        results = channels_engine.all_channels(ask.question(), run, sort="number")
        return shown(results, {Channels: download} | SHOW_WAITING)

    yield from run_job(ask.job("channels-file"), steps, show_error)


def sprite(name: str) -> bytes | None:
    """Return the images of all channels of a layer as WebP, by the file name in a message to the page."""
    return units.sprite(name)


def _sheet(step: Sheet, key: str, session: str) -> dict[str, Any]:
    found = units.of_layer(step.settings.loaded, step.settings.layer, session)
    return channels_view.sheet(step, key) | {"units": channels_view.layer_units(found)}


def _channel(question: Request, number: int, run: Run, cell: tuple[int, int] | None) -> Iterator[Updates]:
    facts: dict[str, Any] = {}
    for step in channels_engine.channel(question, number, run, cell):
        if isinstance(step, Waiting):
            yield SHOW_WAITING[Waiting](step)
        elif isinstance(step, InputGradient):
            yield {parts.WHY: channels_view.input_gradient(step), parts.GRID_STATUS: None}
        elif isinstance(step, Channel) and cell is None:
            facts = channels_view.facts(step)
            found = units.of_layer(step.settings.loaded, step.settings.layer, run.session)
            yield {
                parts.OPENED: channels_view.open_channel(step),
                parts.CHANNEL: channels_view.channel(step),
                parts.FACTS: facts,
                parts.UNIT: channels_view.unit(found, number),
                parts.GRID_STATUS: None,
            }
        elif isinstance(step, Contribution | ReceptiveFields):
            facts = {**facts, **channels_view.more(step)}
            yield {parts.FACTS: facts}


def _closed(message: str) -> Updates:
    """Close the open channel with a message."""
    return {
        parts.OPENED: {"number": None, "sentence": message},
        parts.CHANNEL: {"words": {"empty": messages.EMPTY_CHANNEL}},
        **{part: {} for part in (parts.WHY, parts.FACTS, parts.UNIT)},
    }


def _numbers(value: Any) -> list[int] | None:
    """Parse the channels that a script sent."""
    fits = isinstance(value, list) and value and all(type(number) is int for number in value)
    return value[: channels_engine.MOST] if fits else None
