"""Requests about the channels of a layer: all channels, a measure of each, and details of one channel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from PIL import Image

import explainers
from saliscope.compute import engine, network_calls, scene
from saliscope.compute.answers import Settings, Subject
from saliscope.compute.channels import messages, network
from saliscope.compute.channels.answers import (
    Channel,
    Channels,
    Contribution,
    Identifiers,
    InputGradient,
    Measures,
    ReceptiveFields,
    Sheet,
    Step,
    Unchanged,
)
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.messages import plain
from saliscope.compute.request import Request
from saliscope.errors import Refused

TILE = 112  # cells of the longer side of a tile, the size on the screen
CAPACITY = 1_500_000  # bytes of the tiles in one answer
MOST = 2048  # tiles in one answer
DEAD = 1e-6
"""A channel is dead for an image if no value exceeds this fraction of the largest magnitude of the layer."""
MEASURES = ("gradient", "effect", "here")
"""Measures that are only computed on request: gradient times activation, the drop of the score, a cell's value."""


def sheet(request: Request, run: Run, numbers: list[int] | None = None, known: str = "") -> Iterator[Step]:
    """Yield the channels of the layer; without `numbers` those with the largest means, as many as fit.

    Yields `Same` if the page already shows them, that is, if `known` identifies the same channels.

    Errors   as `engine.explain`; Refused for channels that do not exist
    """
    inputs = yield from _load_inputs(request, run)
    if inputs.ids.channels == known:
        yield Unchanged(inputs.ids)
        return
    maps, settings = (yield from inputs.maps(run)), inputs.settings
    means, size = maps.mean((1, 2)), capacity(maps)
    if numbers is None:
        numbers = means.nan_to_num(float("-inf")).argsort(descending=True, stable=True)[:size].tolist()
    if not all(0 <= number < len(maps) for number in numbers):
        raise Refused(messages.no_channel(max(numbers, key=abs), settings.layer, len(maps)))
    chosen, highest, lowest = maps[numbers[:size]], maps.amax((1, 2)), maps.amin((1, 2))
    largest = maps.nan_to_num(0.0, 0.0, 0.0).abs().amax((1, 2))
    dead = (largest <= DEAD * largest.max()) & maps.isfinite().all(2).all(1)
    statistics = means, highest, lowest, sparsity(maps, dead), dead
    yield Sheet(settings, inputs.crop, inputs.ids, numbers[:size], chosen, *statistics)


def capacity(maps: torch.Tensor) -> int:
    """Return how many tiles of these maps fit into an answer."""
    height, width = maps.shape[1:]
    shrink = max(1.0, max(height, width) / TILE)
    return max(1, min(MOST, int(CAPACITY // max(1.0, height * width / shrink**2))))


def sparsity(maps: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
    """Return Hoyer's sparsity of the magnitudes of each channel: 0 if all are equal, 1 if only one is not zero.

    The result is NaN for dead channels and for maps with a single cell.
    """
    flat = maps.flatten(1).double().abs()
    root = flat.shape[1] ** 0.5
    if flat.shape[1] < 2:
        return maps.new_full((len(maps),), float("nan"))
    values = (root - flat.sum(1) / flat.norm(dim=1)) / (root - 1)
    return values.float().clamp(0, 1).masked_fill(dead, float("nan"))


def measure(request: Request, run: Run, kind: str, cell: tuple[int, int] | None = None) -> Iterator[Step]:
    """Yield gradient times activation ("gradient") or the measured effect ("effect") of every channel on the class.

    With "here", yield the value of every channel at a `cell` (row, column).

    Errors   as `engine.explain`; Refused if nothing was detected in the image, or for a cell that does not exist
    """
    inputs = yield from _load_inputs(request, run)
    settings = inputs.settings
    if kind == "here":
        maps, cell = (yield from inputs.maps(run)), cell or (-1, -1)
        _check_cell(cell, maps.shape[1:])
        yield Measures(settings, inputs.ids, kind, maps[:, cell[0], cell[1]], None, cell)
        return
    subject, values = yield from _values(inputs, run, kind)
    yield Measures(settings, inputs.ids, kind, values, subject)


def channel(request: Request, number: int, run: Run, cell: tuple[int, int] | None = None) -> Iterator[Step]:
    """Yield one channel: its map, its contribution, the input gradient of its strongest cell, and receptive fields.

    With `cell`, yield its map and the input gradient of that cell.

    Errors   as `engine.explain`; Refused for a channel or a cell that does not exist
    """
    inputs = yield from _load_inputs(request, run)
    maps, layer = (yield from inputs.maps(run)), inputs.settings.layer
    if not 0 <= number < len(maps):
        raise Refused(messages.no_channel(number, layer, len(maps)))
    plane = maps[number]
    if cell is not None:
        _check_cell(cell, plane.shape)
    yield Channel(inputs.settings, inputs.crop, inputs.ids, number, len(maps), plane)
    steps: list[Callable[[], Step]] = [partial(_input_gradient, inputs, number, plane, cell)]
    if cell is None:
        steps = [partial(_contribution, inputs, number), *steps, partial(_receptive_fields, inputs)]
    for step in steps:
        if run.stopped():
            return
        with turns.enqueue(run, long=False) as turn:
            yield from engine.wait_turn(turn)
            yield step()


def _check_cell(cell: tuple[int, int], grid: Sequence[int]) -> None:
    """Check that a cell (row, column) exists.

    Errors   Refused
    """
    if not all(0 <= index < count for index, count in zip(cell, grid, strict=True)):
        raise Refused(messages.no_cell(cell, tuple(grid)))


def cell_of(sources: network.Sources, cell: tuple[int, int]) -> tuple[int, int]:
    """Return the row and column of the layer that a cell (row, column) of its maps shows.

    Errors   Refused for a cell that does not exist, or that the layer does not have
    """
    rows, columns = sources
    if not (0 <= cell[0] < len(rows) and 0 <= cell[1] < len(columns)):
        raise Refused(messages.no_cell(cell, (len(rows), len(columns))))
    row, column = rows[cell[0]], columns[cell[1]]
    if row is None or column is None:
        raise Refused(messages.OUTSIDE)
    return row, column


def all_channels(request: Request, run: Run, *, sort: str = "activation") -> Iterator[Step]:
    """Yield all channels, for the API: `sort` by mean "activation", by "effect" on the class, or by "number".

    Errors   as `engine.explain`
    """
    inputs = yield from _load_inputs(request, run)
    maps, settings = (yield from inputs.maps(run)), inputs.settings
    subject, effects = yield from _values(inputs, run, sort)
    means = maps.mean((1, 2))
    keys = {"effect": effects, "number": None}.get(sort, means)
    numbers = list(range(len(maps))) if keys is None else keys.argsort(descending=True, stable=True).tolist()
    drops = None if effects is None else effects[numbers].tolist()
    yield Channels(settings, numbers, maps[numbers], means[numbers].tolist(), drops, subject)


@dataclass(frozen=True)
class _Inputs:
    """A resolved request with its image."""

    settings: Settings
    crop: Image.Image
    images: torch.Tensor
    ids: Identifiers

    def maps(self, run: Run) -> Generator[Step, None, torch.Tensor]:
        """Compute all channels of the layer, [K, h, w]."""
        with turns.enqueue(run, long=False) as turn:
            yield from engine.wait_turn(turn)
            return network_calls.features(self.settings.loaded.name, self.images, self.settings.layer)


def load(
    request: Request, run: Run, only_classifiers: str = ""
) -> Generator[Step, None, tuple[Settings, Image.Image, torch.Tensor]]:
    """Return the settings, the crop and the input of a request about a layer.

    Errors   Refused for a network without layers, and for a request without scores of classes or sentences if there is
             a message `only_classifiers`
    """
    settings = yield from engine.resolve_settings(request, run)
    if only_classifiers and settings.loaded.detects_objects:
        raise Refused(only_classifiers.format(title=settings.loaded.title))
    if not settings.loaded.layers:
        raise Refused(messages.NO_CHANNELS)
    if only_classifiers and settings.refusal:
        raise Refused(settings.refusal)
    settings, image, images = engine.load_input(settings, request)
    return settings, settings.loaded.model.crop(image), images


def _load_inputs(request: Request, run: Run) -> Generator[Step, None, _Inputs]:
    settings, crop, images = yield from load(request, run)
    parts = [request.image, settings.bands.text if settings.bands else "", settings.loaded.name, settings.layer]
    channels = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    ids = Identifiers(channels, f"{settings.names['target']} {settings.min_score}")
    return _Inputs(settings, crop, images, ids)


def _values(inputs: _Inputs, run: Run, kind: str) -> Generator[Step, None, tuple[Subject | None, Any]]:
    """Return the subject, and the "gradient" or "effect" of every channel on it, [K]; None for another kind.

    Errors   Refused if one of them is wanted and there is no subject
    """
    settings, images = inputs.settings, inputs.images
    with turns.enqueue(run, long=kind == "effect") as turn:
        yield from engine.wait_turn(turn)
        subject = scene.subject_of(settings, inputs.crop, images)
        if kind not in ("gradient", "effect"):
            return subject, None
        if subject is None:
            raise Refused(settings.refusal or messages.NO_EFFECTS)
        name, layer = settings.loaded.name, settings.layer
        if kind == "gradient":
            return subject, network.contributions(name, images, subject.target, layer)
        call = partial(network_calls.run, name, explainers.channel_effects, images)
        work = partial(call, target=subject.target, layer=layer)
        effects = yield from engine.finish(work, turn, messages.EFFECTS, messages.EFFECTS_STOPPED)
        return subject, effects[0].float()


def _input_gradient(inputs: _Inputs, number: int, plane: torch.Tensor, cell: tuple[int, int] | None) -> InputGradient:
    strongest = cell is None
    position = divmod(int(plane.nan_to_num(float("-inf")).argmax()), plane.shape[1]) if cell is None else cell
    name, layer = inputs.settings.loaded.name, inputs.settings.layer
    gradient_map, before, reason = None, None, ""
    try:
        gradient_map, before = network.cell_gradient(name, inputs.images, layer, number, position)
    except ValueError as error:  # a network without gradients, such as a quantized one
        reason = plain(str(error))
    grid, value = tuple(plane.shape), float(plane[position])
    return InputGradient(
        inputs.settings, inputs.crop, number, grid, position, strongest, before, value, gradient_map, reason
    )


def _contribution(inputs: _Inputs, number: int) -> Contribution:
    settings, images = inputs.settings, inputs.images
    subject = scene.subject_of(settings, inputs.crop, images)
    if subject is None:
        return Contribution(settings, number, None, None, None, settings.refusal or messages.NO_SUBJECT)
    name, layer = settings.loaded.name, settings.layer
    options = {"target": subject.target, "layer": layer, "channel": number}
    effect = float(network_calls.run(name, network_calls.effect, images, **options))
    try:
        parts, reason = network.contributions(name, images, subject.target, layer), ""
    except ValueError as error:
        parts, reason = None, plain(str(error))
    return Contribution(settings, number, subject, parts, effect, reason)


def _receptive_fields(inputs: _Inputs) -> ReceptiveFields:
    height, width = inputs.images.shape[2:]
    name, layer = inputs.settings.loaded.name, inputs.settings.layer
    return ReceptiveFields(network.receptive_fields(name, layer, tuple(inputs.images.shape[1:])), (width, height))
