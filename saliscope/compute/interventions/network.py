"""What a changed network computes; `network_calls.run` runs each function, possibly in another process.

A change only affects forward passes of the thread that makes it, inside one of these calls. The network itself is never
changed, so other requests, also those that run at the same time, are not affected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

import explainers
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
        return result.before, result.after, dataclasses.replace(found, images=None)


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
