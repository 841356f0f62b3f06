"""The experiment of the headline: the probability without the brightest part of a map, and without as much elsewhere.

It runs after a map is shown, and yields its turn to every click. The headline describes the map until the result is
known, and if there is none. Results are cached by the key of the map and shared by all users.
"""

from __future__ import annotations

import time
from typing import Any

import explainers
from saliscope import limits
from saliscope.compute import engine, network_calls
from saliscope.compute.answers import Answer
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.methods import costs
from saliscope.compute.request import Request
from saliscope.compute.results_cache import Recent
from saliscope.percentages import percent

SHARE, SAMPLES = 0.2, 19
"""The part of the pixels that is removed, and the number of random places; see `explainers.remove_brightest`."""
PASSES = 4 + SAMPLES
MOST_SECONDS = 10.0
"""The experiment does not run if its forward passes would take longer."""
PATIENCE, CROWD = 20.0, 4
"""Seconds of waiting for its turn, and number of waiting jobs, above which the experiment is dropped."""
known_removals = Recent["explainers.Removal"]()


def is_possible(answer: Answer) -> bool:
    """Return whether the experiment can be done: for a finished map of a class of a classifier with probabilities."""
    settings, plane = answer.settings, answer.map
    has_probability = answer.probabilities is not None and settings.loaded.has_probabilities
    if not has_probability or settings.unit or settings.sentences or settings.loaded.encodes_text:
        return False
    if answer.planes or not settings.method.gives_map or answer.share < 1 or not settings.key:
        return False
    return bool(plane.isfinite().all()) and float(plane.max()) > 0 and float(plane.max()) > float(plane.min())


def measure(answer: Answer, request: Request, run: Run) -> bool:
    """Run the experiment for a map that is shown; return whether it has a new result, which `sentence` then returns.

    The map is not affected by an error, which is logged.
    """
    settings = answer.settings
    if run.stopped() or not is_possible(answer) or known_removals.get(settings.key) is not None or limits.SHARED_GPU:
        return False
    if PASSES * costs.forward(settings.loaded) > MOST_SECONDS:
        return False
    try:
        found = _remove(answer, request, run)
    except Exception as error:
        engine.message_of(error, "")  # logs an unknown error
        return False
    if found is None or not bool(found.without_brightest.isfinite().all() and found.without_random.isfinite().all()):
        return False
    known_removals.put(settings.key, found)
    return not run.stopped()


def _remove(answer: Answer, request: Request, run: Run) -> explainers.Removal | None:
    """Wait for the turn and run the experiment; return None if the job was stopped or waited too long."""
    settings, end = answer.settings, time.monotonic() + PATIENCE

    def report(step: Any) -> bool:
        turns.report(turn, step.fraction)
        return not run.stopped()

    with turns.enqueue(run, long=True, min_seconds=0.0, brief=True) as turn:
        for _ in turns.wait(turn):
            if time.monotonic() > end or turns.waiting() > CROWD:
                return None
        if run.cancelled:
            return None
        images = engine.load_input(settings, request)[2]
        plane = answer.map.abs() if settings.method.by_size else answer.map
        result: explainers.Removal = network_calls.remove_brightest(
            settings.loaded.name,
            images,
            plane[None],
            report,
            target=_explained(answer),
            share=SHARE,
            samples=SAMPLES,
            score=settings.loaded.score,
        )
    return None if run.stopped() else result


def _explained(answer: Answer) -> int:
    """Return the class that the headline names: the top prediction if the method is class-agnostic."""
    return answer.target if answer.settings.method.reads_class else answer.top[0][0]


def sentence(answer: Answer) -> str:
    """Return the result of the experiment, or an empty string if it is not known."""
    found = known_removals.get(answer.settings.key) if is_possible(answer) else None
    if found is None:
        return ""
    assert answer.probabilities is not None, "it is possible"
    before, after = float(answer.probabilities[_explained(answer)]), float(found.without_brightest[0])
    places = found.without_random[0]
    at_random = words_of_range(float(places.min()), float(places.max()))
    if answer.settings.method.family == "control":
        text = f"This control map does not use the network. Without its brightest {percent(float(found.share[0]))}"
        return f"{text}{words_of_change(before, after)}; at random places: {at_random}."
    removed = _removed(answer, found)
    return f"Without {removed}{words_of_change(before, after)}; without as much at random places: {at_random}."


def _removed(answer: Answer, found: explainers.Removal) -> str:
    """Return what was removed: less than `SHARE` of the pixels if fewer are positive."""
    share, pixels = percent(float(found.share[0])), found.mask[0].numel()
    if int(found.mask[0].sum()) < int(SHARE * pixels):
        return f"the positive part of the map ({share} of the crop)"
    is_signed = not answer.settings.method.by_size and bool((answer.map < 0).any())
    return f"the {'most positive' if is_signed else 'brightest'} {share} of the map"


def words_of_change(before: float, after: float) -> str:
    """Return a probability after a change, and say so if it is higher than before, or looks the same."""
    if percent(after) == percent(before):
        return f": still {percent(after)}"
    return f", it rises to {percent(after)}" if after > before else f": {percent(after)}"


def words_of_range(low: float, high: float) -> str:
    """Return a range of probabilities, or a single one if both ends look the same."""
    return percent(low) if percent(low) == percent(high) else f"{percent(low)} to {percent(high)}"
