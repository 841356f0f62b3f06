"""The verdict on the map of an answer: the facts of the library, and what the page knows about the network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from saliscope.session import messages

if TYPE_CHECKING:
    import torch

    from explainers import Facts, Verdict
    from saliscope.session.answers import Answer, LoadedModel

PARTS = 1000
"""A stopped map whose samples are not counted has a share of this many parts."""


def facts_of(step: Answer) -> Facts:
    """Return what is known about the map of an answer without tests."""
    loaded = step.settings.loaded
    explanation = step.explanation if step.planes else replace(step.explanation, map=step.map[None])
    found = replace(explanation.facts(0), unit=messages.measure(step.settings))
    found = found.with_probabilities(probabilities(step.probabilities, loaded), loaded.score)
    if step.share < 1 and not found.is_stopped:
        found = replace(found, done=round(step.share * PARTS), planned=PARTS)
    return found


def verdict_of(step: Answer) -> Verdict:
    """Return the verdict on the map of an answer without tests."""
    from explainers import judge_facts  # torch takes seconds to start

    return judge_facts(facts_of(step))


def probabilities(values: torch.Tensor | None, loaded: LoadedModel) -> tuple[float, ...]:
    """Return the probabilities of a classifier, and none for other scores."""
    known = values is not None and loaded.has_probabilities and not (loaded.detects_objects or loaded.encodes_text)
    return tuple(values.tolist()) if known and values is not None else ()


def no_preference(values: torch.Tensor | None, loaded: LoadedModel) -> str:
    """Return the sentence about a network without a preference for some class, or an empty string."""
    shares = probabilities(values, loaded)
    if not shares:
        return ""
    from explainers import Facts, judge_facts  # torch takes seconds to start

    verdict = judge_facts(Facts().with_probabilities(shares, loaded.score))
    return verdict.sentence if verdict.code == "no_preference" else ""
