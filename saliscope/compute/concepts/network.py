"""The calls of the network that concepts need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import explainers
from saliscope.compute import network_calls

Report = Callable[[Any], bool]


def find(
    name: str, images: torch.Tensor, layer: str, k: int, progress: Report
) -> tuple[explainers.Concepts, torch.Tensor]:
    """Return k concepts of a layer without their network, and their maps [N, k, h, w] in the cells of the layer."""
    options = network_calls.progress_options(progress)
    found, dictionary, maps = network_calls.run(name, _find, images, layer=layer, k=k, **options)
    return replace(found, dictionary=dictionary), maps.float()


def _find(network: Any, images: torch.Tensor, *, layer: str, k: int, **options: Any) -> tuple[Any, Any, torch.Tensor]:
    found = explainers.find_concepts(network, images, layer, k, **options)
    # The result is kept for all visitors, and on a shared GPU it comes from another process: without the network.
    return replace(found, model=nn.Identity(), state={}), found.dictionary, found.maps(images)


def effects(
    name: str,
    images: torch.Tensor,
    concepts: explainers.Concepts,
    target: int | explainers.Target,
    progress: Report,
) -> torch.Tensor:
    """Return by how much the score of the target falls if a concept is removed, float32 [k]."""
    options = {"concepts": concepts, "target": target, **network_calls.progress_options(progress)}
    return network_calls.run(name, _effects, images, **options)[0].float()


def _effects(network: Any, images: torch.Tensor, *, concepts: explainers.Concepts, **options: Any) -> torch.Tensor:
    return replace(concepts, model=network).effects(images, **options)


Scores = tuple[torch.Tensor, torch.Tensor]
Explanations = tuple[explainers.Explanation, explainers.Explanation]
"""Those of one image before and after a concept was scaled."""


def scale(
    name: str, images: torch.Tensor, concepts: explainers.Concepts, factors: dict[int, float], **keywords: Any
) -> tuple[Scores, Explanations]:
    """Scale concepts of one image; `keywords` are the `method` of the maps, its `target` and its options.

    The target None is the class that the unchanged network predicts. The scores are float32 [K].
    """
    options = {"concepts": concepts, "factors": factors, **keywords}
    before, after, old, new = network_calls.run(name, _scale, images, **options)
    return (before[0].float(), after[0].float()), (old, new)


def _scale(
    network: Any,
    images: torch.Tensor,
    *,
    concepts: explainers.Concepts,
    factors: dict[int, float],
    method: str,
    target: int | explainers.Target | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, explainers.Explanation, explainers.Explanation]:
    result = explainers.intervene(network, images, concepts.layer, value=concepts.scaling(factors))
    explained = int(result.before.argmax()) if target is None else target
    old = explainers.explain(method, network, images, explained, **options)
    with result.applied(network):
        new = explainers.explain(method, network, images, explained, **options)
    return result.before, result.after, old, new
