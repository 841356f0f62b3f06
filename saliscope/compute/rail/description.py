"""The sizes and costs of all layers of a network, measured when the table is opened, once for each network."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import explainers
from saliscope import zoo
from saliscope.compute import engine, network_calls
from saliscope.compute.answers import LoadedModel, Waiting
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.request import Request

_known: weakref.WeakKeyDictionary[zoo.Model, explainers.Description] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Described:
    """The description of a network."""

    loaded: LoadedModel
    description: explainers.Description


def describe(request: Request, run: Run) -> Iterator[Waiting | Described]:
    """Yield the description of the network of a request, for a black image of the size of its input.

    Errors   as `explainers.describe`
    """
    settings = yield from engine.resolve_settings(request, run)
    loaded = settings.loaded
    model = loaded.model
    found = _known.get(model)
    if found is None:
        with turns.enqueue(run, long=False) as turn:
            yield from engine.wait_turn(turn)
            images = torch.zeros(1, model.channels, *model.size)
            found = _known[model] = network_calls.run(loaded.name, explainers.describe, images)
    yield Described(loaded, found)
