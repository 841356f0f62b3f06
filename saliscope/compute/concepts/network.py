"""What concepts compute on the device, or in the process, that `network_calls.run` selects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

import explainers


def find(network: Any, images: torch.Tensor, *, layer: str, k: int, **options: Any) -> tuple[Any, Any, torch.Tensor]:
    """Return k concepts of a layer, their dictionary, and their maps [N, k, h, w] in the cells of the layer."""
    found = explainers.find_concepts(network, images, layer, k, **options)
    # The result is kept for all visitors, and on a shared GPU it comes from another process: without the network.
    return replace(found, model=nn.Identity(), state={}), found.dictionary, found.maps(images)


def effects(network: Any, images: torch.Tensor, *, concepts: explainers.Concepts, **options: Any) -> torch.Tensor:
    """Return by how much the score of the target falls if a concept is removed, [1, k]."""
    return replace(concepts, model=network).effects(images, **options)


def scale(
    network: Any,
    images: torch.Tensor,
    *,
    concepts: explainers.Concepts,
    factors: dict[int, float],
    method: str,
    target: int | explainers.Target | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, explainers.Explanation, explainers.Explanation]:
    """Return the scores [1, K] and the explanations of one image before and after concepts are scaled.

    The target None is the class that the unchanged network predicts.
    """
    result = explainers.intervene(network, images, concepts.layer, value=concepts.scaling(factors))
    explained = int(result.before.argmax()) if target is None else target
    old = explainers.explain(method, network, images, explained, **options)
    with result.applied(network):
        new = explainers.explain(method, network, images, explained, **options)
    return result.before, result.after, old, new
