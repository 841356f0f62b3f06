"""What concepts compute on the device, or in the process, that `network_calls.run` selects."""

from __future__ import annotations

from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Scaling:
    """A change of the strength of concepts, for `scores_and_map` of interventions/network.py."""

    concepts: explainers.Concepts
    factors: dict[int, float]

    def intervene(self, network: Any, images: torch.Tensor) -> explainers.Intervention:
        """Call `explainers.intervene`."""
        return explainers.intervene(network, images, self.concepts.layer, value=self.concepts.scaling(self.factors))
