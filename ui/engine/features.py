"""The engine's answers about a layer's channels: a page of them in some order, and one of them with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from ui import words
from ui.engine import engine, network_calls
from ui.engine.messages import Channel, Channels, Refused, Request, Settings, Step, Waiting
from ui.engine.runs import Run

if TYPE_CHECKING:
    import torch

PAGE = 512


def page(request: Request, run: Run, *, sort: str = "activation", number: int = 0, size: int = PAGE) -> Iterator[Step]:
    """A page of the layer's channels: `sort` by mean "activation", by "effect" on the class, or by "number".

    Errors   Refused, with a sentence for the visitor.
    """
    with engine.sentences():
        settings, _, images = yield from engine.prepared(request, run)
        loaded = settings.loaded
        with engine.turn:
            maps = network_calls.features(loaded.name, images, settings.layer)
            target = engine.class_of(settings, images)
            effects = None
            if sort == "effect":
                effects = yield from _effects(settings, images, target, run)
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
            target,
            number,
            pages,
            len(maps),
        )


def _effects(settings: Settings, images: torch.Tensor, target: int, run: Run) -> Generator[Step, None, torch.Tensor]:
    def work(report: Callable[[Any], bool]) -> torch.Tensor:
        return network_calls.effects(settings.loaded.name, images, target, settings.layer, report)

    partials = engine.stream(work, run)
    try:
        while True:
            partial = next(partials)
            if partial is not None:
                yield Waiting(words.EFFECTS, partial.fraction)
    except StopIteration as end:
        if run.stopped():
            raise Refused(words.EFFECTS_STOPPED) from None
        return end.value


def channel(request: Request, number: int, run: Run) -> Iterator[Step]:
    """One channel at its own resolution, with its effect and what its strongest cell can see.

    Errors   Refused, with a sentence for the visitor.
    """
    with engine.sentences():
        settings, photo, images = yield from engine.prepared(request, run)
        loaded = settings.loaded
        with engine.turn:
            maps = network_calls.features(loaded.name, images, settings.layer)
            if not 0 <= number < len(maps):
                raise Refused(words.no_channel(number, settings.layer, len(maps)))
            target = engine.class_of(settings, images)
            effect = _effect(settings, images, target, number)
            box = _seen_by_peak(settings, maps[number])
        yield Channel(settings, loaded.model.crop(photo), number, maps[number], effect, target, box)


def _effect(settings: Settings, images: torch.Tensor, target: int, number: int) -> float:
    from explainers.layers.layout import channel_axis  # torch takes seconds to start

    layer = next(each for each in settings.loaded.layers if each.name == settings.layer)
    return network_calls.effect(
        settings.loaded.name, images, target, settings.layer, channel_axis(layer.layout), number
    )


def _seen_by_peak(settings: Settings, plane: torch.Tensor) -> tuple[float, float, float, float] | None:
    layer = next(each for each in settings.loaded.layers if each.name == settings.layer)
    cell = divmod(int(plane.argmax()), plane.shape[1])
    try:
        left, top, right, bottom = layer.receptive_field(cell)
    except (ValueError, RuntimeError):
        return None  # a network in which every cell sees everything, or which forbids the question
    side = settings.loaded.model.side
    return left / side, top / side, right / side, bottom / side
