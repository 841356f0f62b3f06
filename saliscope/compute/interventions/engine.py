"""Answer a change of channels: classes before and after, and the map of the changed network next to the old one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from PIL import Image

import explainers
from saliscope.compute import engine, network_calls, results_cache, scene
from saliscope.compute.answers import TOP, Settings, Waiting
from saliscope.compute.channels import network as channels_network
from saliscope.compute.channels.engine import cell_of, load
from saliscope.compute.interventions import messages
from saliscope.compute.interventions.answers import Change, Changed, ClassChange, Maps, Place
from saliscope.compute.interventions.changes import parse_channels
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import Turn, turns
from saliscope.compute.request import Request
from saliscope.compute.results_cache import Recent
from saliscope.compute.text_messages import quoted
from saliscope.errors import Refused


def intervene(request: Request, change: Change, run: Run) -> Iterator[Any]:
    """Yield the answer: `Waiting`, then `Changed`; for a long method first without its maps.

    Errors   as `engine.explain`; Refused for channels or cells that do not exist, for a network that detects objects,
             and for a second image that does not fit
    """
    settings, crop, images, swapped = yield from _load_inputs(request, change, run)
    layer = next(known for known in settings.loaded.layers if known.name == settings.layer)
    total = layer.shape[layer.channel_axis]
    place = Place(layer.name, parse_channels(change.channels, total, layer.name))
    with turns.enqueue(run, long=change.positions) as turn:
        yield from engine.wait_turn(turn)
        found: dict[str, Any] = {}
        if change.positions:
            assert swapped is not None, "positions are only swapped"
            found, place = yield from _positions(settings, images, swapped, change, place, turn)
        edit = Edit(place, change, swapped)
        fields, target = before_and_after(settings, crop, images, edit, request)
    answer = Changed(**fields, change=change, place=place, total=total, **found)
    yield answer
    if answer.maps is not None:
        return
    with turns.enqueue(run, long=True) as turn:
        yield from engine.wait_turn(turn)
        yield replace(answer, maps=(yield from _long_maps(settings, images, edit, target, request, turn)))


def before_and_after(
    settings: Settings, crop: Image.Image, images: torch.Tensor, edit: Any, request: Request
) -> tuple[dict[str, Any], int | explainers.Target]:
    """Return the fields of a `BeforeAfter`, without the maps of a long method, and the target of the maps.

    `edit` is as in `scores_and_map`.
    """
    target = scene.target_of(settings)
    options = {"method": settings.method.name, "edit": edit, **_options(settings, target)}
    *scores, new = network_calls.run(settings.loaded.name, scores_and_map, images, **options)
    before, after = (each[0].float() for each in scores)
    shown, subject = explained(settings, target, before)
    maps = None if new is None else _maps(_quick_old_map(settings, images, shown, request), new, 1.0)
    classes = class_changes(settings, before, after)
    return {"settings": settings, "crop": crop, "classes": classes, "subject": subject, "maps": maps}, shown


def _load_inputs(
    request: Request, change: Change, run: Run
) -> Generator[Any, None, tuple[Settings, Image.Image, torch.Tensor, torch.Tensor | None]]:
    """Return the settings, the crop and the input of a request, and the input made from the second image of a swap."""
    settings, crop, images = yield from load(request, run, messages.NO_CLASSES)
    settings = replace(settings, key=results_cache.key(settings, request))
    swapped = None
    if change.kind == "swap":
        _, _, swapped = engine.load_input(settings, replace(request, image=change.other))
        if swapped.shape != images.shape:
            raise Refused(messages.other_size(tuple(swapped.shape[2:]), tuple(images.shape[2:])))
    return settings, crop, images, swapped


def explained(
    settings: Settings, target: int | explainers.Target | None, before: torch.Tensor
) -> tuple[int | explainers.Target, str]:
    """Return the target of both maps and its name: the top prediction is that of the unchanged network."""
    if target is None:
        top = int(before.argmax())
        return top, settings.loaded.names[top]
    return target, quoted(settings.sentences) if settings.sentences else settings.names["target"]


def class_changes(settings: Settings, before: torch.Tensor, after: torch.Tensor) -> list[ClassChange]:
    """Return the classes that are among the most likely ones before or after, the most likely before first."""
    old, new = (engine.probabilities_of(settings, scores).double() for scores in (before, after))
    count = min(TOP, len(old))
    order = dict.fromkeys([*old.topk(count).indices.tolist(), *new.topk(count).indices.tolist()])
    names = settings.class_names
    return [ClassChange(names[index], float(old[index]), float(new[index])) for index in order]


_OldMap = tuple[torch.Tensor, int | None]
"""The map of the unchanged network, and which plane it is for a method with several."""
_old_maps: Recent[_OldMap] = Recent()
"""Those of quick methods by the key of their request, because several changes are made to one question."""


def _quick_old_map(
    settings: Settings, images: torch.Tensor, target: int | explainers.Target, request: Request
) -> _OldMap:
    known = _old_maps.get(settings.key) if settings.key else None
    if known is None:
        name, method = settings.loaded.name, settings.method.name
        old = network_calls.explain(name, method, images, **_options(settings, target))
        known = _old_map(settings, old, request)
        if settings.key:
            _old_maps.put(settings.key, known)
    return known


def _old_map(settings: Settings, explanation: explainers.Explanation, request: Request) -> _OldMap:
    plane = engine.plane_number(explanation.raw[0], request.plane) if settings.method.planes else None
    return engine.first_plane(engine.drawn_map(explanation, plane)), plane


def _maps(old: _OldMap, new: explainers.Explanation, share: float) -> Maps:
    """Return both maps; of a method with several planes, the plane that the page shows."""
    old_map, plane = old
    return Maps(old_map, engine.first_plane(engine.drawn_map(new, plane)), share)


def _long_maps(
    settings: Settings,
    images: torch.Tensor,
    edit: Edit,
    target: int | explainers.Target,
    request: Request,
    turn: Turn,
) -> Generator[Any, None, Maps]:
    """Compute the maps of a long method; the old one may be cached."""
    share, options = 1.0, _options(settings, target)
    explain = partial(network_calls.explain, settings.loaded.name, settings.method.name, images, **options)
    old = results_cache.find(settings) if request.use_cache else None
    parts = 1 if old else 2

    def waiting(done: int, step: Any) -> Waiting:
        nonlocal share
        share = step.fraction
        return Waiting(
            messages.map_of(settings.method.title, changed=done + 1 == parts), (done + step.fraction) / parts
        )

    if old is None:
        old = yield from engine.stream(explain, turn.run, partial(waiting, 0), turn)
        if turn.run.stopped():
            raise Refused(messages.STOPPED)
    changed = partial(explain_changed, edit=edit)
    new = yield from engine.stream(partial(explain, around=changed), turn.run, partial(waiting, parts - 1), turn)
    if turn.run.cancelled:
        raise Refused(messages.STOPPED)
    return _maps(_old_map(settings, old, request), new, share if turn.run.stopped() else 1.0)


def _options(settings: Settings, target: int | explainers.Target | None) -> dict[str, Any]:
    return {**settings.method_arguments, "target": target, "compare": False}


def _positions(
    settings: Settings, images: torch.Tensor, swapped: torch.Tensor, change: Change, place: Place, turn: Turn
) -> Generator[Any, None, tuple[dict[str, Any], Place]]:
    """Return the effects of all positions as shown on maps, unless a cell is chosen, and the place of one position."""
    name, shown = settings.loaded.name, change.cell
    sources = channels_network.sources(name, place.layer, images)
    found: dict[str, Any] = {}
    if shown is None:
        target = scene.target_of(settings)
        target = int(network_calls.scores(name, images).argmax()) if target is None else target
        options = {"target": target, "layer": place.layer, "channels": place.channels, "others": swapped}
        work = partial(network_calls.run, name, explainers.patch_effects, images, **options)
        effects = yield from engine.finish(work, turn, messages.POSITIONS, messages.STOPPED)
        placed = _shown(effects[0].float(), *sources)
        found["effects"], shown = placed, divmod(int(placed.abs().argmax()), placed.shape[1])
    return found | {"shown_cell": shown}, replace(place, cell=cell_of(sources, shown))


def _shown(effects: torch.Tensor, rows: Any, columns: Any) -> torch.Tensor:
    """Return the effects at the cells of the maps, which may lie elsewhere; 0 where the layer has no cell."""
    placed = effects.new_zeros(len(rows), len(columns))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if row is not None and column is not None:
                placed[i, j] = effects[row, column]
    return placed


# What a changed network computes; `network_calls.run` runs each function, possibly in another process. A change only
# affects forward passes of the thread that makes it, inside one of these calls. The network itself is never changed, so
# other requests, also those that run at the same time, are not affected.


@dataclass(frozen=True)
class Edit:
    """What is sent to the process that runs the network: a change of channels, and where to make it.

    `place` names the layer, its channels and at most one cell; `change` says what happens to their values. `swapped`
    [1, C, H, W] is the input made from the second image of a swap, None for other changes. `intervene` makes the change
    for one call; it never modifies the network.
    """

    place: Place
    change: Change
    swapped: torch.Tensor | None

    def intervene(self, network: Any, images: torch.Tensor) -> explainers.Intervention:
        """Call `explainers.intervene`."""
        place = self.place
        value = self.change.value(None if self.swapped is None else self.swapped.to(images.device))
        cells = None if place.cell is None else [place.cell]
        return explainers.intervene(network, images, place.layer, channels=place.channels, cells=cells, value=value)


def scores_and_map(
    network: Any,
    images: torch.Tensor,
    *,
    method: str,
    edit: Any,
    target: int | explainers.Target | None,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor, explainers.Explanation | None]:
    """Return the scores [1, K] before and after the change, and the map of a quick method.

    `edit.intervene(network, images)` makes the change, as that of `Edit`. `keywords` are those of `explainers.explain`
    with the changed network; the target None is the class before. One call, because the page waits for it: two forward
    passes, and those of the method.

    Errors   as `explainers.intervene`
    """
    result = edit.intervene(network, images)
    if explainers.METHODS[method].long:
        return result.before, result.after, None
    explained = int(result.before.argmax()) if target is None else target
    with result.applied(network):
        found = explainers.explain(method, network, images, explained, **keywords)
        return result.before, result.after, replace(found, images=None)


def explain_changed(
    explain: Callable[..., explainers.Explanation],
    network: Any,
    images: torch.Tensor,
    *,
    edit: Edit,
    **keywords: Any,
) -> explainers.Explanation:
    """Call `explain` with the changed network, as `around` of `network_calls.explain`."""
    with edit.intervene(network, images).applied(network):
        return explain(network, images, **keywords)
