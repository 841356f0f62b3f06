"""Compare the model of the page with a second one on the image of the page and the examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from PIL import Image

import explainers
from saliscope import limits
from saliscope.compute import engine, model_cache, network_calls, results_cache
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import LoadedModel, Settings, Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.models import messages
from saliscope.compute.request import Request
from saliscope.errors import Refused

TOLERANCE = 1e-3
"""The largest relative difference of two outputs that count as equal."""


@dataclass(frozen=True)
class Compared:
    """Two models on the same images: `names` are those of the images, `crops` their crops for each model."""

    a: LoadedModel
    b: LoadedModel
    names: list[str]
    crops: tuple[list[Image.Image], list[Image.Image]]
    method: explainers.Method
    result: explainers.ModelComparison
    notes: tuple[str, ...]
    same_inputs: bool
    """Whether both networks receive the same values."""


def compare(request: Request, other: str, run: Run, *, with_examples: bool = True) -> Iterator[Waiting | Compared]:
    """Compare the model of a request with another one.

    Errors   Refused for models that cannot be compared; errors of `explainers.compare_models`
    """
    if not other:
        raise Refused(messages.NO_OTHER)
    first = yield from engine.resolve_settings(request, run)
    second = yield from engine.resolve_settings(Request(request.image, model=other, lenient=True), run)
    a, b = first.loaded, second.loaded
    notes = list(_check(a, b))
    method = model_cache.quick_method(first.method, a, b)
    if method is None:
        raise Refused(messages.NO_METHOD)
    if method is not first.method:
        notes.append(messages.other_method(first.method.title, method.title))
    files = _images(request, a, b, with_examples)
    yield Waiting(messages.comparing(a, b, len(files)))
    with turns.enqueue(run, long=True) as turn:
        yield from engine.wait_turn(turn)
        inputs = [[_input(settings, request, path) for path in files.values()] for settings in (first, second)]
        if [window for _, _, window in inputs[0]] != [window for _, _, window in inputs[1]]:
            notes.append(messages.OTHER_CROPS)
        batches = [torch.cat([images for _, images, _ in each]) for each in inputs]
        same = batches[0].shape == batches[1].shape and torch.equal(*batches)
        work = partial(network_calls.run, a.name, partial(_compare, b.name, method.name), batches[0])
        result = yield from engine.stream(lambda report: work(images_b=batches[1]), run, turn=turn)
    if run.stopped():
        raise Refused(page_messages.STOPPED_BEFORE)
    crops = [crop for crop, _, _ in inputs[0]], [crop for crop, _, _ in inputs[1]]
    yield Compared(a, b, list(files), crops, method, result, tuple(notes), same)


def _check(a: LoadedModel, b: LoadedModel) -> Iterator[str]:
    """Yield notes on two models.

    Errors   Refused if they cannot be compared
    """
    if a.name == b.name:
        raise Refused(messages.SAME.format(title=a.title))
    for loaded in (a, b):
        if loaded.detects_objects or loaded.encodes_text:
            raise Refused(messages.ONLY_CLASSIFIERS.format(title=loaded.title))
    if len(a.names) != len(b.names):
        raise Refused(messages.other_classes(a, b))
    different = sum(x.casefold() != y.casefold() for x, y in zip(a.names, b.names, strict=True))
    if different and sorted(map(str.casefold, a.names)) == sorted(map(str.casefold, b.names)):
        raise Refused(messages.other_order(len(a.names)))
    if different:
        yield messages.other_names(different, len(a.names))


def _images(request: Request, a: LoadedModel, b: LoadedModel, with_examples: bool) -> dict[str, str]:
    """Return the paths of the images by name: that of the page first, then the other examples.

    Errors   Refused if there is none
    """
    files = {messages.YOUR_IMAGE: request.image} if request.image else {}
    if with_examples and {a.model.channels, b.model.channels} <= {1, 3}:
        files |= results_cache.other_examples(files.values())
    if not files:
        raise Refused(page_messages.NO_IMAGE)
    return files


def _input(settings: Settings, request: Request, path: str) -> tuple[Image.Image, torch.Tensor, Any]:
    """Return the crop of an image, the input of the network, and the position of the crop."""
    opened, image, images = engine.load_input(settings, replace(request, image=path))
    return settings.loaded.model.crop(image), images, opened.window


def _compare(
    other: str, method: str, network: Any, images: torch.Tensor, *, images_b: torch.Tensor
) -> explainers.ModelComparison:
    """Call `explainers.compare_models`; the second network is loaded by its name, like the first."""
    loaded = model_cache.load(other)
    device, second = model_cache.device_of_call(loaded), loaded.model.network
    if limits.SHARED_GPU:
        second = second.to(device)
    return explainers.compare_models(network, second, images, images_b=images_b, method=method, tolerance=TOLERANCE)
