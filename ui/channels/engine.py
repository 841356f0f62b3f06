"""The engine's answers about a layer's channels: all of them, a measure of each, and one with its numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui.channels import network, words
from ui.channels.messages import About, Channel, Channels, Fields, Measures, Same, Share, Sheet, Step, Why
from ui.engine import engine, network_calls, scene
from ui.engine.messages import Refused, Settings, Subject, Waiting
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import turns

if TYPE_CHECKING:
    import torch

TILE = 112  # cells of a tile's longer side: what a screen shows of it
ROOM = 1_500_000  # bytes of the tiles in one answer
MOST = 2048  # tiles in one answer
DEAD = 1e-6
"""A channel is dead on a picture where no value exceeds this part of the layer's largest magnitude."""
MEASURES = ("gradient", "effect")
"""What is measured of all channels only when a visitor asks: gradient times activation, and the score lost."""


def sheet(request: Request, run: Run, numbers: list[int] | None = None, known: str = "") -> Iterator[Step]:
    """The layer's channels; without `numbers` those with the largest means, as many as fit. `Same` where the page shows
    them already: those about `known`.

    Errors   as `engine.explain`; Refused for channels that do not exist
    """
    asked = yield from _asked(request, run)
    if asked.about.channels == known:
        yield Same(asked.about)
        return
    maps, settings = (yield from asked.maps(run)), asked.settings
    means, size = maps.mean((1, 2)), room(maps)
    if numbers is None:
        numbers = means.nan_to_num(float("-inf")).argsort(descending=True, stable=True)[:size].tolist()
    if not all(0 <= number < len(maps) for number in numbers):
        raise Refused(words.no_channel(max(numbers, key=abs), settings.layer, len(maps)))
    chosen, highest, lowest = maps[numbers[:size]], maps.amax((1, 2)), maps.amin((1, 2))
    largest = maps.nan_to_num(0.0, 0.0, 0.0).abs().amax((1, 2))
    dead = (largest <= DEAD * largest.max()) & maps.isfinite().all(2).all(1)
    pages = -(-len(maps) // size)
    figures = means, highest, lowest, sparsity(maps, dead), dead
    yield Sheet(settings, asked.seen, asked.about, numbers[:size], chosen, *figures, pages)


def room(maps: torch.Tensor) -> int:
    """How many tiles of such maps fit into an answer."""
    height, width = maps.shape[1:]
    shrink = max(1.0, max(height, width) / TILE)
    return max(1, min(MOST, int(ROOM // max(1.0, height * width / shrink**2))))


def sparsity(maps: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
    """Hoyer's sparsity of each channel's magnitudes: 0 where all are equal, 1 where one alone is not zero.

    NaN for dead channels, and for maps of one cell.
    """
    flat = maps.flatten(1).double().abs()
    root = flat.shape[1] ** 0.5
    if flat.shape[1] < 2:
        return maps.new_full((len(maps),), float("nan"))
    found = (root - flat.sum(1) / flat.norm(dim=1)) / (root - 1)
    return found.float().clamp(0, 1).masked_fill(dead, float("nan"))


def measured(request: Request, run: Run, kind: str) -> Iterator[Step]:
    """Gradient times activation ("gradient") or the measured effect ("effect") of every channel on the class.

    Errors   as `engine.explain`; Refused where nothing was found in the picture
    """
    asked = yield from _asked(request, run)
    settings = asked.settings
    with turns.place(run, long=kind == "effect") as turn:
        yield from engine.taken(turn)
        subject = scene.subject_of(settings, asked.seen, asked.images)
        if subject is None:
            raise Refused(words.NO_EFFECTS)
        if kind == "effect":
            values = yield from _effects(settings, asked.images, subject, turn)
        else:
            values = network.contributions(settings.loaded.name, asked.images, subject.target, settings.layer)
    yield Measures(settings, asked.about, kind, values, subject)


def channel(request: Request, number: int, run: Run, cell: tuple[int, int] | None = None) -> Iterator[Step]:
    """One channel: its map, its share of the class, why its strongest cell fired, and all receptive fields; with `cell`
    its map and why that cell fired.

    Errors   as `engine.explain`; Refused for a channel or a cell that does not exist
    """
    asked = yield from _asked(request, run)
    maps, layer = (yield from asked.maps(run)), asked.settings.layer
    if not 0 <= number < len(maps):
        raise Refused(words.no_channel(number, layer, len(maps)))
    plane = maps[number]
    if cell is not None and not all(0 <= at < count for at, count in zip(cell, plane.shape, strict=True)):
        raise Refused(words.no_cell(cell, tuple(plane.shape)))
    yield Channel(asked.settings, asked.seen, asked.about, number, len(maps), plane)
    steps: tuple[Callable[..., Step], ...] = (_share, _why, _fields) if cell is None else (_why,)
    for step in steps:
        if run.stopped():
            return
        with turns.place(run, long=False) as turn:
            yield from engine.taken(turn)
            yield step(asked, number, plane, cell)


def every(request: Request, run: Run, *, sort: str = "activation") -> Iterator[Step]:
    """All channels for a program: `sort` by mean "activation", by "effect" on the class, or by "number".

    Errors   as `engine.explain`
    """
    asked = yield from _asked(request, run)
    maps, settings, images = (yield from asked.maps(run)), asked.settings, asked.images
    with turns.place(run, long=sort == "effect") as turn:
        yield from engine.taken(turn)
        subject = scene.subject_of(settings, asked.seen, images)
        effects = None
        if sort == "effect":
            if subject is None:
                raise Refused(words.NO_EFFECTS)
            effects = yield from _effects(settings, images, subject, turn)
    means = maps.mean((1, 2))
    keys = {"effect": effects, "number": None}.get(sort, means)
    numbers = list(range(len(maps))) if keys is None else keys.argsort(descending=True, stable=True).tolist()
    drops = None if effects is None else effects[numbers].tolist()
    yield Channels(settings, numbers, maps[numbers], means[numbers].tolist(), drops, subject)


@dataclass(frozen=True)
class _Asked:
    """A request that is settled, with its picture."""

    settings: Settings
    seen: Image.Image
    images: torch.Tensor
    about: About

    def maps(self, run: Run) -> Generator[Step, None, torch.Tensor]:
        """All channels of the layer, [K, h, w]."""
        with turns.place(run, long=False) as turn:
            yield from engine.taken(turn)
            return network_calls.features(self.settings.loaded.name, self.images, self.settings.layer)


def _asked(request: Request, run: Run) -> Generator[Step, None, _Asked]:
    settings = yield from engine.settled(request, run)
    settings, photo, images = engine.opened(settings, request)
    parts = [request.picture, settings.bands.text if settings.bands else "", settings.loaded.name, settings.layer]
    channels = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    about = About(channels, f"{settings.names['target']} {settings.min_score}")
    return _Asked(settings, settings.loaded.model.crop(photo), images, about)


def _effects(settings: Settings, images: torch.Tensor, subject: Subject, turn: Any) -> Generator[Step, None, Any]:
    def work(report: Callable[[Any], bool]) -> torch.Tensor:
        return network_calls.effects(settings.loaded.name, images, subject.target, settings.layer, report)

    effects = yield from engine.stream(work, turn.run, lambda partial: Waiting(words.EFFECTS, partial.fraction), turn)
    if turn.run.stopped():
        raise Refused(words.EFFECTS_STOPPED)
    return effects


def _why(asked: _Asked, number: int, plane: torch.Tensor, cell: tuple[int, int] | None) -> Why:
    strongest, of_mean = cell is None, False
    at = divmod(int(plane.nan_to_num(float("-inf")).argmax()), plane.shape[1]) if cell is None else cell
    ask = partial(network.fired_by, asked.settings.loaded.name, asked.images, asked.settings.layer, number)
    found, reason = None, ""
    try:
        found = ask(at)
        if strongest and bool(plane.any()) and not bool(found.any()):
            found, of_mean = ask(None), True
    except ValueError as error:  # of the library: a network without gradients, such as a quantized one
        reason = words.no_gradient(error)
    grid, value = tuple(plane.shape), float(plane[at])
    return Why(asked.settings, asked.seen, number, grid, at, strongest, of_mean, value, found, reason)


def _share(asked: _Asked, number: int, plane: torch.Tensor, cell: tuple[int, int] | None) -> Share:
    from explainers.layers.layout import channel_axis  # torch takes seconds to start

    settings, images = asked.settings, asked.images
    subject = scene.subject_of(settings, asked.seen, images)
    if subject is None:
        return Share(settings, number, None, None, None, words.NO_SUBJECT)
    name, layer = settings.loaded.name, settings.layer
    layout = next(each.layout for each in settings.loaded.layers if each.name == layer)
    effect = network_calls.effect(name, images, subject.target, layer, channel_axis(layout), number)
    try:
        parts, reason = network.contributions(name, images, subject.target, layer), ""
    except ValueError as error:
        parts, reason = None, words.no_gradient(error)
    return Share(settings, number, subject, parts, effect, reason)


def _fields(asked: _Asked, number: int, plane: torch.Tensor, cell: tuple[int, int] | None) -> Fields:
    height, width = asked.images.shape[2:]
    name, layer = asked.settings.loaded.name, asked.settings.layer
    return Fields(network.receptive_fields(name, layer, tuple(asked.images.shape[1:])), (width, height))
