"""Calls of the changed network; `network_calls.run` runs each, possibly in another process.

A change only affects forward passes of the thread that makes it, inside one of these calls. The network itself is never
changed, so other requests, also those that run at the same time, are not affected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hooklens.session import network_calls
from hooklens.session.interventions.answers import Change, Place

if TYPE_CHECKING:
    import torch

    import explainers
    from explainers.targets import Target


def scores(
    name: str, images: torch.Tensor, place: Place, change: Change, swapped: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of the network for one image before and after the change, both float32 [K].

    Errors   as `explainers.intervene`
    """
    before, after = network_calls.run(name, _scores, images, place=place, change=change, swapped=swapped)
    return before[0].float(), after[0].float()


def _scores(network: Any, images: torch.Tensor, **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    result = _intervene(network, images, **given)
    return result.before, result.after


def _intervene(
    network: Any, images: torch.Tensor, *, place: Place, change: Change, swapped: torch.Tensor | None
) -> explainers.Intervention:
    import explainers  # torch takes seconds to start

    value = change.value(None if swapped is None else swapped.to(images.device))
    cells = None if place.cell is None else [place.cell]
    return explainers.intervene(network, images, place.layer, channels=place.channels, cells=cells, value=value)


def scores_and_map(
    name: str,
    method: str,
    images: torch.Tensor,
    place: Place,
    change: Change,
    swapped: torch.Tensor | None,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor, explainers.Explanation]:
    """Return `scores`, and `explainers.explain` with the changed network; the target None is the class before.

    One call, because the page waits for it: two forward passes, and those of a quick method.
    """
    given = {"method": method, "place": place, "change": change, "swapped": swapped}
    before, after, explanation = network_calls.run(name, _scores_and_map, images, **given, **keywords)
    return before[0].float(), after[0].float(), dataclasses.replace(explanation, images=None)


def _scores_and_map(
    network: Any,
    images: torch.Tensor,
    *,
    method: str,
    place: Place,
    change: Change,
    swapped: torch.Tensor | None,
    target: int | Target | None,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor, explainers.Explanation]:
    import explainers  # torch takes seconds to start

    result = _intervene(network, images, place=place, change=change, swapped=swapped)
    explained = int(result.before.argmax()) if target is None else target
    with result.applied(network):
        return result.before, result.after, explainers.explain(method, network, images, explained, **keywords)


def explain(
    name: str,
    method: str,
    images: torch.Tensor,
    place: Place,
    change: Change,
    swapped: torch.Tensor | None,
    progress: Callable[[Any], bool] | None = None,
    **keywords: Any,
) -> explainers.Explanation:
    """Call `explainers.explain` with the changed network; the other arguments are as in `network_calls.explain`."""
    edit = partial(_explain_changed, place=place, change=change, swapped=swapped)
    return network_calls.explain(name, method, images, progress, around=edit, **keywords)


def _explain_changed(
    explain: Callable[..., explainers.Explanation],
    network: Any,
    images: torch.Tensor,
    *,
    place: Place,
    change: Change,
    swapped: torch.Tensor | None,
    **keywords: Any,
) -> explainers.Explanation:
    with _intervene(network, images, place=place, change=change, swapped=swapped).applied(network):
        return explain(network, images, **keywords)


def position_effects(
    name: str,
    images: torch.Tensor,
    place: Place,
    swapped: torch.Tensor,
    target: int | Target | None,
    progress: Callable[[Any], bool],
) -> torch.Tensor:
    """Return `explainers.patch_effects` of one image, float32 [h, w]; positions that were not reached are 0."""
    keywords = {"target": target, "layer": place.layer, "channels": place.channels, "others": swapped}
    return network_calls.run(name, _position_effects, images, **keywords, **network_calls.progress_options(progress))[
        0
    ].float()


def _position_effects(network: Any, images: torch.Tensor, others: torch.Tensor, **keywords: Any) -> torch.Tensor:
    import explainers  # torch takes seconds to start

    return explainers.patch_effects(network, images, others.to(images.device), **keywords)
