"""Rank methods for one request by running `recommend` step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from explainers import Recommendation
from saliscope import limits
from saliscope.compute import engine, messages, network_calls, results_cache, scene
from saliscope.compute.answers import Settings, Step
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.ranking.messages import STOPPED, TOO_SHORT, wrong_seconds
from saliscope.compute.request import Request
from saliscope.errors import Refused


@dataclass(frozen=True)
class RankingOptions:
    """The options in the form of the table."""

    seconds: float = limits.RANKING_SECONDS
    all_stages: bool = True
    """Whether to test all stages instead of only the current layer."""


@dataclass(frozen=True)
class Ranking:
    """The maps tested so far. `left` is None at the end, and `stopped` tells whether the user stopped the ranking."""

    settings: Settings
    crop: Image.Image
    target: str
    result: Recommendation | None
    left: float | None = None
    fraction: float | None = None
    stopped: bool = False


def parse_options(data: dict[str, Any]) -> RankingOptions:
    """Parse the options that a script sent.

    Errors   Refused for an invalid time limit
    """
    seconds, (low, high) = data.get("seconds", limits.RANKING_SECONDS), limits.RANKING
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not low <= seconds <= high:
        raise Refused(wrong_seconds(seconds))
    return RankingOptions(float(seconds), data.get("layers") != "here")


def rank(request: Request, options: RankingOptions, run: Run) -> Iterator[Step | Ranking]:
    """Wait for the network and the turn, then rank; the last step is the complete table.

    Errors   Refused, and the errors of the library
    """
    settings = yield from engine.resolve_settings(request, run)
    settings, image, images = engine.load_input(settings, request)
    settings = replace(settings, subject=results_cache.subject(settings, request))
    crop = settings.loaded.model.crop(image)
    with turns.enqueue(run, long=True) as turn:
        yield from engine.wait_turn(turn)
        subject = scene.subject_of(settings, crop, images)
        if subject is None:
            raise Refused(settings.refusal or scene.inspect(settings, crop, images).message)
        unit = settings.unit and scene.target_of(settings)
        target = settings.names["target"] if unit else subject.name
        yield Ranking(settings, crop, target, None, options.seconds, 0.0)

        def work(report: Any) -> Recommendation:
            return network_calls.recommend(
                settings.loaded.name,
                images,
                report,
                target=unit or subject.target,
                budget=options.seconds,
                layers="stages" if options.all_stages else [settings.layer],
            )

        def partial(step: Any) -> Ranking:
            result = step.recommendation
            return Ranking(settings, crop, target, result, max(0.0, options.seconds - result.seconds), step.fraction)

        result = yield from engine.stream(work, run, partial, turn)
    if not result.rows:
        reason = TOO_SHORT if len(result.refused) < result.total else messages.plain(str(result))
        raise Refused(STOPPED if run.cancelled else reason)
    yield Ranking(settings, crop, target, result, stopped=run.cancelled)
