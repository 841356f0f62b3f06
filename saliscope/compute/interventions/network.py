"""Calls of the changed network; `network_calls.run` runs each, possibly in another process.

A change only affects forward passes of the thread that makes it, inside one of these calls. The network itself is never
changed, so other requests, also those that run at the same time, are not affected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import explainers
from saliscope.compute import network_calls
from saliscope.compute.interventions.answers import Change, Place


@dataclasses.dataclass(frozen=True)
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
    name: str, method: str, images: torch.Tensor, edit: Edit, **keywords: Any
) -> tuple[torch.Tensor, torch.Tensor, explainers.Explanation | None]:
    """Return the scores of one image before and after the change, both float32 [K], and the map of a quick method.

    `keywords` are those of `explainers.explain` with the changed network; the target None is the class before. One
    call, because the page waits for it: two forward passes, and those of the method.

    Errors   as `explainers.intervene`
    """
    before, after, found = network_calls.run(name, _scores_and_map, images, method=method, edit=edit, **keywords)
    return before[0].float(), after[0].float(), None if found is None else dataclasses.replace(found, images=None)


def _scores_and_map(
    network: Any,
    images: torch.Tensor,
    *,
    method: str,
    edit: Edit,
    target: int | explainers.Target | None,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor, explainers.Explanation | None]:
    result = edit.intervene(network, images)
    if explainers.METHODS[method].long:
        return result.before, result.after, None
    explained = int(result.before.argmax()) if target is None else target
    with result.applied(network):
        return result.before, result.after, explainers.explain(method, network, images, explained, **keywords)


def explain(
    name: str,
    method: str,
    images: torch.Tensor,
    edit: Edit,
    progress: Callable[[Any], bool] | None = None,
    **keywords: Any,
) -> explainers.Explanation:
    """Call `explainers.explain` with the changed network; the other arguments are as in `network_calls.explain`."""
    around = partial(_explain_changed, edit=edit)
    return network_calls.explain(name, method, images, progress, around=around, **keywords)


def _explain_changed(
    explain: Callable[..., explainers.Explanation],
    network: Any,
    images: torch.Tensor,
    *,
    edit: Edit,
    **keywords: Any,
) -> explainers.Explanation:
    with edit.intervene(network, images).applied(network):
        return explain(network, images, **keywords)


def position_effects(
    name: str,
    images: torch.Tensor,
    place: Place,
    swapped: torch.Tensor,
    target: int | explainers.Target | None,
    progress: Callable[[Any], bool],
) -> torch.Tensor:
    """Return `explainers.patch_effects` of one image, float32 [h, w]; positions that were not reached are 0."""
    keywords = {"target": target, "layer": place.layer, "channels": place.channels, "others": swapped}
    keywords |= network_calls.progress_options(progress)
    effects: torch.Tensor = network_calls.run(name, _position_effects, images, **keywords)
    return effects[0].float()


def _position_effects(network: Any, images: torch.Tensor, others: torch.Tensor, **keywords: Any) -> torch.Tensor:
    return explainers.patch_effects(network, images, others.to(images.device), **keywords)
