"""Find the concepts of a layer, measure the effect of each, and scale one of them."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import nn

import explainers
from saliscope.compute import engine, model_cache, network_calls, results_cache, scene
from saliscope.compute.answers import Settings, Waiting
from saliscope.compute.channels.engine import load
from saliscope.compute.concepts import messages
from saliscope.compute.concepts.answers import Cut, Found, Measured, Wanted
from saliscope.compute.interventions.answers import BeforeAfter
from saliscope.compute.interventions.engine import before_and_after, explained
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import Turn, turns
from saliscope.compute.request import Request, uploaded
from saliscope.compute.results_cache import Recent
from saliscope.errors import Refused

FILES = 32
"""Maximum number of images of a batch."""
CELLS = 40_000
"""Maximum number of cells of a fit with several images: of a layer with a large grid, fewer images are used."""
CUTS, CUT_PART, CUT_SIDE = 4, 3, 80
"""Number of cuts of a concept; a cut is a third of the height and width of a crop, with a longer side in pixels."""
FACTORS = (0.0, 2.0)
"""Range of the strength of a concept."""


_found: Recent[Found] = Recent()
"""Those of finished fits by model, layer, number and images: they do not depend on the class."""


def parse(data: dict[str, Any]) -> Wanted:
    """Return what a script sent.

    Errors   Refused for another number of concepts, and for files that are not uploads of this server
    """
    k, files = data.get("k"), data.get("files")
    if k not in messages.COUNTS:
        raise Refused(messages.INVALID)
    paths = files[:FILES] if isinstance(files, list) else []
    return Wanted(k, tuple(uploaded(path) for path in paths))


def find(request: Request, wanted: Wanted, run: Run) -> Iterator[Waiting | Measured]:
    """Yield the progress, and then the concepts with their effects.

    Errors   Refused for a model without scores of classes or without layers; errors of `explainers.find_concepts`
    """
    settings, crop, images = yield from load(request, run, messages.ONLY_CLASSIFIERS)
    with turns.enqueue(run, long=True) as turn:
        yield from engine.wait_turn(turn)
        found = yield from _find(settings, request, wanted, turn)
        target = scene.target_of(settings)
        target, subject = explained(settings, target, network_calls.scores(settings.loaded.name, images))
        call = partial(network_calls.run, settings.loaded.name, _effects, images)
        work = partial(call, concepts=found.concepts, target=target)
        effects = yield from engine.finish(work, turn, messages.MEASURING, messages.STOPPED)
    yield Measured(settings, crop, found, effects[0].float(), subject)


def scale(request: Request, wanted: Wanted, index: int, factor: float, run: Run) -> Iterator[Waiting | BeforeAfter]:
    """Yield the progress, and then the scores and maps before and after concept `index` is multiplied by `factor`.

    Errors   Refused for a concept or a factor that does not exist, and as `find`
    """
    settings, crop, images = yield from load(request, run, messages.ONLY_CLASSIFIERS)
    with turns.enqueue(run, long=not _found.get(_key(settings, request, wanted))) as turn:
        yield from engine.wait_turn(turn)
        found = yield from _find(settings, request, wanted, turn)
        if not 0 <= index < len(found.concepts) or not FACTORS[0] <= factor <= FACTORS[1]:
            raise Refused(messages.INVALID)
        drawn = _with_quick_method(settings)
        drawn = replace(drawn, key=results_cache.key(drawn, request))
        scaling = Scaling(found.concepts, {index: factor})
        fields, _ = before_and_after(drawn, crop, images, scaling, request)
    yield BeforeAfter(**fields)


def _key(settings: Settings, request: Request, wanted: Wanted) -> str:
    contents = [results_cache.content(path) for path in _paths(settings, request, wanted).values()]
    return json.dumps([settings.loaded.name, settings.layer, wanted.k, request.bands, contents])


def _paths(settings: Settings, request: Request, wanted: Wanted) -> dict[str, str]:
    """Return the paths of the images by name, that of the page first, as many as the grid of the layer permits."""
    assert request.image, "the image was loaded"
    found, known = {messages.THIS_IMAGE: request.image}, {results_cache.content(request.image)}
    for number, path in enumerate(wanted.files, 1):
        if (content := results_cache.content(path)) not in known:
            found[f"Image {number}"] = path
            known.add(content)
    if not wanted.files and settings.loaded.model.channels in (1, 3):
        found |= results_cache.other_examples([request.image])
    cells = math.prod(_layer(settings).grid or ())
    return dict(list(found.items())[: max(1, CELLS // cells)])


def _layer(settings: Settings) -> explainers.Layer:
    return next(layer for layer in settings.loaded.layers if layer.name == settings.layer)


def _find(settings: Settings, request: Request, wanted: Wanted, turn: Turn) -> Generator[Any, None, Found]:
    """Return the concepts of a cached or a new fit."""
    key = _key(settings, request, wanted)
    if known := _found.get(key):
        return known
    paths = _paths(settings, request, wanted)
    says = messages.FINDING.format(layer=settings.layer, images=messages.count(len(paths)))
    yield Waiting(says)
    crops, inputs = [], []
    for path in paths.values():
        _, image, images = engine.load_input(settings, replace(request, image=path))
        crops.append(settings.loaded.model.crop(image))
        inputs.append(images)
    call = partial(network_calls.run, settings.loaded.name, _find_in, torch.cat(inputs))
    work = partial(call, layer=settings.layer, k=wanted.k)
    concepts, dictionary, maps = yield from engine.finish(work, turn, says, messages.STOPPED)
    placed = explainers.place(maps.float(), _layer(settings).placement)
    cuts = [_cuts(list(paths), crops, placed[:, k]) for k in range(len(concepts))]
    found = Found(replace(concepts, dictionary=dictionary), placed[0], cuts)
    _found.put(key, found)
    return found


def _cuts(names: list[str], crops: list[Image.Image], maps: torch.Tensor) -> list[Cut]:
    """Return the cuts around the largest value of each map [N, h, w], of the images where it is largest."""
    tops = maps.flatten(1).amax(1)
    chosen = [index for index in tops.argsort(descending=True).tolist() if tops[index] > 0]
    return [Cut(names[index], _cut(crops[index], maps[index])) for index in chosen[:CUTS]]


def _cut(crop: Image.Image, map: torch.Tensor) -> Image.Image:
    at = divmod(int(map.argmax()), map.shape[1])
    box = []
    for position, cells, pixels in zip(reversed(at), reversed(map.shape), crop.size, strict=True):
        side = max(1, pixels // CUT_PART)
        start = round((position + 0.5) / cells * pixels - side / 2)
        box.append((min(max(0, start), pixels - side), side))
    (left, width), (top, height) = box
    cut = crop.crop((left, top, left + width, top + height))
    cut.thumbnail((CUT_SIDE, CUT_SIDE))
    return cut


def _with_quick_method(settings: Settings) -> Settings:
    """Return the settings with their method if it is quick and has one map, or else Grad-CAM at the last layer.

    Errors   Refused if the model has no quick method
    """
    method = model_cache.quick_method(settings.method, settings.loaded)
    if method is None:
        raise Refused(messages.NO_METHOD)
    if method is settings.method:
        return settings
    return replace(settings, method=method, layer=settings.loaded.default, options={})


# What runs on the device, or in the process, that `network_calls.run` selects


def _find_in(
    network: Any, images: torch.Tensor, *, layer: str, k: int, **options: Any
) -> tuple[Any, Any, torch.Tensor]:
    """Return k concepts of a layer, their dictionary, and their maps [N, k, h, w] in the cells of the layer."""
    found = explainers.find_concepts(network, images, layer, k, **options)
    # The result is kept for all visitors, and on a shared GPU it comes from another process: without the network.
    return replace(found, model=nn.Identity(), state={}), found.dictionary, found.maps(images)


def _effects(network: Any, images: torch.Tensor, *, concepts: explainers.Concepts, **options: Any) -> torch.Tensor:
    """Return by how much the score of the target falls if a concept is removed, [1, k]."""
    return replace(concepts, model=network).effects(images, **options)


@dataclass(frozen=True)
class Scaling:
    """A change of the strength of concepts, for `scores_and_map` of interventions/engine.py."""

    concepts: explainers.Concepts
    factors: dict[int, float]

    def intervene(self, network: Any, images: torch.Tensor) -> explainers.Intervention:
        """Call `explainers.intervene`."""
        return explainers.intervene(network, images, self.concepts.layer, value=self.concepts.scaling(self.factors))
