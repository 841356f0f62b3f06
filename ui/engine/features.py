"""The engine's answers about a layer's channels: a page of them in some order, and one of them with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ui import words
from ui.engine import engine, network_calls
from ui.engine.messages import Channel, Channels, Loaded, Refused, Settings, Step, Subject, Waiting
from ui.engine.request import Request
from ui.engine.runs import Run

if TYPE_CHECKING:
    import torch

    import explainers

PAGE = 512  # channels


def page(request: Request, run: Run, *, sort: str = "activation", number: int = 0, size: int = PAGE) -> Iterator[Step]:
    """A page of the layer's channels: `sort` by mean "activation", by "effect" on the class, or by "number".

    Errors   as `engine.explain`
    """
    settings = yield from engine.settled(request, run)
    loaded, (settings, photo, images) = settings.loaded, engine.opened(settings, request)
    with engine.turn:
        maps = network_calls.features(loaded.name, images, settings.layer)
        subject = engine.subject_of(settings, loaded.model.crop(photo), images)
        effects = None
        if sort == "effect":
            if subject is None:
                raise Refused(words.NO_EFFECTS)
            effects = yield from _effects(settings, images, subject, run)
    means = maps.mean((1, 2))
    keys = {"effect": effects, "number": None}.get(sort, means)
    order = range(len(maps)) if keys is None else keys.argsort(descending=True, stable=True).tolist()
    pages = -(-len(maps) // size)
    number = min(max(0, number), pages - 1)
    numbers = list(order)[number * size : (number + 1) * size]
    yield Channels(
        settings,
        numbers,
        maps[numbers],
        means[numbers].tolist(),
        None if effects is None else effects[numbers].tolist(),
        subject,
        number,
        pages,
        len(maps),
    )


def _effects(
    settings: Settings, images: torch.Tensor, subject: Subject, run: Run
) -> Generator[Step, None, torch.Tensor]:
    def work(report: Callable[[Any], bool]) -> torch.Tensor:
        return network_calls.effects(settings.loaded.name, images, subject.target, settings.layer, report)

    effects = yield from engine.stream(work, run, lambda partial: Waiting(words.EFFECTS, partial.fraction))
    if run.stopped():
        raise Refused(words.EFFECTS_STOPPED)
    return effects


def channel(request: Request, number: int, run: Run) -> Iterator[Step]:
    """One channel at its own resolution, its effect on the class, and the receptive field of its strongest cell.

    Errors   as `engine.explain`
    """
    from explainers.layers.layout import channel_axis  # torch takes seconds to start

    settings = yield from engine.settled(request, run)
    loaded, (photo, images) = settings.loaded, engine.prepared(settings, request)
    layer = next(layer for layer in loaded.layers if layer.name == settings.layer)
    with engine.turn:
        maps = network_calls.features(loaded.name, images, layer.name)
        if not 0 <= number < len(maps):
            raise Refused(words.no_channel(number, layer.name, len(maps)))
        seen, effect = loaded.model.crop(photo), None
        if subject := engine.subject_of(settings, seen, images):
            axis = channel_axis(layer.layout)
            effect = network_calls.effect(loaded.name, images, subject.target, layer.name, axis, number)
        box = _receptive_field(_layer_for(loaded, layer, images), maps[number], images)
    yield Channel(settings, seen, number, maps[number], effect, subject, box)


def _layer_for(loaded: Loaded, layer: explainers.Layer, images: torch.Tensor) -> explainers.Layer:
    """The layer as it is for these images, where they have another size than those that the layers are listed for."""
    import explainers  # torch takes seconds to start

    if tuple(images.shape[-2:]) == tuple(loaded.model.size):
        return layer
    listed = explainers.list_layers(loaded.model.network, images.to(loaded.device), spatial=True)
    return next((each for each in listed if each.name == layer.name), layer)


def _receptive_field(
    layer: explainers.Layer, plane: torch.Tensor, images: torch.Tensor
) -> tuple[float, float, float, float] | None:
    """That of the largest cell of `plane` [h, w], in parts of the input; None where the network has none."""
    try:
        left, top, right, bottom = layer.receptive_field(divmod(int(plane.argmax()), plane.shape[1]))
    except (ValueError, RuntimeError):
        return None
    height, width = images.shape[-2:]
    return left / width, top / height, right / width, bottom / height
