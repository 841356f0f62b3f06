"""Answer a change of channels: classes before and after, and the map of the changed network next to the old one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from PIL import Image

from hooklens.errors import Refused
from hooklens.session import engine, network_calls, results_cache, scene
from hooklens.session.answers import TOP, Settings, Waiting
from hooklens.session.channels import messages as channel_messages
from hooklens.session.channels import network as channels_network
from hooklens.session.interventions import messages, network
from hooklens.session.interventions.answers import Change, Changed, ClassChange, Maps, Place
from hooklens.session.interventions.changes import parse_channels
from hooklens.session.jobs.runs import Run
from hooklens.session.jobs.turns import Turn, turns
from hooklens.session.request import Request
from hooklens.session.text_messages import quoted

if TYPE_CHECKING:
    import torch

    from explainers.targets import Target


@dataclass(frozen=True)
class _Inputs:
    """A resolved request with its input, and the input made from the second image of a swap."""

    settings: Settings
    crop: Image.Image
    images: torch.Tensor
    swapped: torch.Tensor | None
    change: Change

    @property
    def name(self) -> str:
        return self.settings.loaded.name


def intervene(request: Request, change: Change, run: Run) -> Iterator[Any]:
    """Yield the answer: `Waiting`, then `Changed`; for a long method first without its maps.

    Errors   as `engine.explain`; Refused for channels or cells that do not exist, for a network that detects objects,
             and for a second image that does not fit
    """
    inputs = yield from _load_inputs(request, change, run)
    settings, name = inputs.settings, inputs.name
    layer = next(known for known in settings.loaded.layers if known.name == settings.layer)
    total = layer.shape[_channel_axis(layer.layout)]
    place = Place(layer.name, parse_channels(change.channels, total, layer.name))
    with turns.enqueue(run, long=change.positions) as turn:
        yield from engine.wait_turn(turn)
        target, subject = _target(inputs)
        found: dict[str, Any] = {}
        if change.positions:
            found, place = yield from _positions(inputs, place, target, turn)
        before, after = network.scores(name, inputs.images, place, change, inputs.swapped)
        classes = _classes(settings, before, after)
        answer = Changed(settings, inputs.crop, change, place, total, classes, subject, **found)
        if not settings.method.long:
            yield replace(answer, maps=_quick_maps(inputs, place, target, request))
            return
    yield answer
    with turns.enqueue(run, long=True) as turn:
        yield from engine.wait_turn(turn)
        yield replace(answer, maps=(yield from _long_maps(inputs, place, target, request, turn)))


def _load_inputs(request: Request, change: Change, run: Run) -> Generator[Any, None, _Inputs]:
    settings = yield from engine.resolve_settings(request, run)
    if not settings.loaded.layers:
        raise Refused(channel_messages.NO_CHANNELS)
    if settings.loaded.detects_objects:
        raise Refused(messages.NO_CLASSES)
    if settings.refusal:
        raise Refused(settings.refusal)
    settings, image, images = engine.load_input(settings, request)
    settings = replace(settings, key=results_cache.key(settings, request))
    swapped = None
    if change.kind == "swap":
        _, _, swapped = engine.load_input(settings, replace(request, image=change.other))
        if swapped.shape != images.shape:
            raise Refused(messages.other_size(tuple(swapped.shape[2:]), tuple(images.shape[2:])))
    return _Inputs(settings, settings.loaded.model.crop(image), images, swapped, change)


def _channel_axis(layout: str) -> int:
    from explainers.layers.layout import channel_axis  # torch takes seconds to start

    return channel_axis(layout)


def _target(inputs: _Inputs) -> tuple[int | Target, str]:
    """Return the target of both maps and its name: the top prediction is that of the unchanged network."""
    settings = inputs.settings
    target = scene.target_of(settings)
    if target is None:
        target = int(network_calls.scores(inputs.name, inputs.images).argmax())
        return target, settings.loaded.names[target]
    return target, quoted(settings.sentences) if settings.sentences else settings.names["target"]


def _classes(settings: Settings, before: torch.Tensor, after: torch.Tensor) -> list[ClassChange]:
    """Return the classes that are among the most likely ones before or after, the most likely before first."""
    old, new = (engine.probabilities_of(settings, scores).double() for scores in (before, after))
    count = min(TOP, len(old))
    order = dict.fromkeys([*old.topk(count).indices.tolist(), *new.topk(count).indices.tolist()])
    names = settings.class_names
    return [ClassChange(names[index], float(old[index]), float(new[index])) for index in order]


def _quick_maps(inputs: _Inputs, place: Place, target: int | Target, request: Request) -> Maps:
    old = network_calls.explain(inputs.name, inputs.settings.method.name, inputs.images, **_options(inputs, target))
    new = _changed(inputs, place, target)()
    return _maps(inputs.settings, request, old, new, 1.0)


def _long_maps(
    inputs: _Inputs, place: Place, target: int | Target, request: Request, turn: Turn
) -> Generator[Any, None, Maps]:
    """Compute the maps of a long method; the old one may be cached."""
    settings, share = inputs.settings, 1.0
    old = results_cache.find(settings) if request.use_cache else None
    parts = 1 if old else 2

    def waiting(done: int, step: Any) -> Waiting:
        nonlocal share
        share = step.fraction
        return Waiting(
            messages.map_of(settings.method.title, changed=done + 1 == parts), (done + step.fraction) / parts
        )

    if old is None:
        work = partial(network_calls.explain, inputs.name, settings.method.name, inputs.images)
        old = yield from engine.stream(
            lambda report: work(progress=report, **_options(inputs, target)), turn.run, partial(waiting, 0), turn
        )
        if turn.run.stopped():
            raise Refused(messages.STOPPED)
    new = yield from engine.stream(
        lambda report: _changed(inputs, place, target)(progress=report), turn.run, partial(waiting, parts - 1), turn
    )
    if turn.run.cancelled:
        raise Refused(messages.STOPPED)
    return _maps(settings, request, old, new, share if turn.run.stopped() else 1.0)


def _options(inputs: _Inputs, target: int | Target) -> dict[str, Any]:
    settings = inputs.settings
    options = {**settings.method_options, "target": target, "compare": False}
    return options | {"layer": settings.layer} if settings.takes_layer else options


def _changed(inputs: _Inputs, place: Place, target: int | Target) -> Callable[..., Any]:
    """Return the function that explains the changed network."""
    options = _options(inputs, target)
    method = inputs.settings.method.name
    return partial(network.explain, inputs.name, method, inputs.images, place, inputs.change, inputs.swapped, **options)


def _maps(settings: Settings, request: Request, old: Any, new: Any, share: float) -> Maps:
    """Return both maps; of a method with several planes, the one that the page shows."""
    if not settings.method.planes:
        return Maps(engine.first_plane(old.map), engine.first_plane(new.map), share)
    number = engine.plane_number(old.raw[0], request.plane)
    return Maps(engine.first_plane(old.raw[:, number]), engine.first_plane(new.raw[:, number]), share)


def _positions(
    inputs: _Inputs, place: Place, target: int | Target, turn: Turn
) -> Generator[Any, None, tuple[dict[str, Any], Place]]:
    """Return the effects of all positions as shown on maps, unless a cell is chosen, and the place of one position."""
    rows, columns = channels_network.sources(inputs.name, place.layer, inputs.images)
    shown = inputs.change.cell
    found: dict[str, Any] = {}
    if shown is None:
        swapped = inputs.swapped
        assert swapped is not None, "positions are only swapped"

        def work(report: Callable[[Any], bool]) -> torch.Tensor:
            return network.position_effects(inputs.name, inputs.images, place, swapped, target, report)

        effects = yield from engine.stream(
            work, turn.run, lambda step: Waiting(messages.POSITIONS, step.fraction), turn
        )
        if turn.run.stopped():
            raise Refused(messages.STOPPED)
        placed = _shown(effects, rows, columns)
        found["effects"], shown = placed, divmod(int(placed.abs().argmax()), placed.shape[1])
    if not (0 <= shown[0] < len(rows) and 0 <= shown[1] < len(columns)):
        raise Refused(channel_messages.no_cell(shown, (len(rows), len(columns))))
    row, column = rows[shown[0]], columns[shown[1]]
    if row is None or column is None:
        raise Refused(messages.OUTSIDE)
    return found | {"shown_cell": shown}, replace(place, cell=(row, column))


def _shown(effects: torch.Tensor, rows: Any, columns: Any) -> torch.Tensor:
    """Return the effects at the cells of the maps, which may lie elsewhere; 0 where the layer has no cell."""
    placed = effects.new_zeros(len(rows), len(columns))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if row is not None and column is not None:
                placed[i, j] = effects[row, column]
    return placed
