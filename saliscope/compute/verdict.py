"""The verdict on the map of an answer: the facts of the library, and what the page knows about the network."""

from __future__ import annotations

from dataclasses import replace

from explainers import Facts, Verdict, judge_facts
from saliscope.compute import messages
from saliscope.compute.answers import Answer

PARTS = 1000
"""A stopped map whose samples are not counted has a share of this many parts."""


def facts_of(step: Answer) -> Facts:
    """Return what is known about the map of an answer without tests."""
    loaded = step.settings.loaded
    explanation = step.explanation if step.planes else replace(step.explanation, map=step.map[None])
    found = replace(explanation.facts(0), unit=messages.measure(step.settings))
    found = found.with_probabilities(loaded.known_probabilities(step.probabilities), loaded.score)
    if step.share < 1 and not found.is_stopped:
        found = replace(found, done=round(step.share * PARTS), planned=PARTS)
    return found


def verdict_of(step: Answer) -> Verdict:
    """Return the verdict on the map of an answer without tests."""
    return judge_facts(facts_of(step))
