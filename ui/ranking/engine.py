"""The ranking of one question: `recommend` on the page's network, a step at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui import limits, words
from ui.engine import engine, network_calls, scene
from ui.engine.messages import Refused, Settings, Step
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import turns
from ui.maps import kept
from ui.ranking.words import STOPPED, TOO_SHORT, wrong_seconds

if TYPE_CHECKING:
    from explainers.metrics.recommendation import Recommendation

SECONDS = 10.0
"""By default."""


@dataclass(frozen=True)
class Wish:
    """What the table's form asks for."""

    seconds: float = SECONDS
    every: bool = True
    """Whether all stages are tried; else the page's layer alone."""


@dataclass(frozen=True)
class Ranking:
    """The maps tried so far. `left` is None once it is over, `stopped` by the visitor or not."""

    settings: Settings
    seen: Image.Image
    whom: str
    found: Recommendation | None
    left: float | None = None
    fraction: float | None = None
    stopped: bool = False


def received(data: dict[str, Any]) -> Wish:
    """The wish in what a script sent.

    Errors   Refused for a time that cannot be
    """
    seconds, (low, high) = data.get("seconds", SECONDS), limits.RANKING
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not low <= seconds <= high:
        raise Refused(wrong_seconds(seconds))
    return Wish(float(seconds), data.get("layers") != "here")


def rank(request: Request, wish: Wish, run: Run) -> Iterator[Step | Ranking]:
    """Wait for the network and for the turn, then rank; the last step is the whole table.

    Errors   Refused, and those of the library
    """
    settings = yield from engine.settled(request, run)
    from explainers.metrics.recommend import FIRST_ROUND  # torch takes seconds to start

    settings, photo, images = engine.opened(settings, request)
    settings = replace(settings, subject=kept.subject(settings, request))
    seen = settings.loaded.model.crop(photo)
    with turns.place(run, long=True) as turn:
        yield from engine.taken(turn)
        subject = scene.subject_of(settings, seen, images)
        if subject is None:
            raise Refused(scene.look(settings, seen, images).sentence)
        unit = settings.unit and scene.target_of(settings)
        whom = settings.names["target"] if unit else subject.name
        yield Ranking(settings, seen, whom, None, wish.seconds, 0.0)

        def work(report: Any) -> Recommendation:
            return network_calls.recommend(
                settings.loaded.name,
                images,
                report,
                target=unit or subject.target,
                seconds=wish.seconds,
                layers="stages" if wish.every else [settings.layer],
            )

        def partial(step: Any) -> Ranking:
            found = step.recommendation
            return Ranking(settings, seen, whom, found, max(0.0, wish.seconds - found.seconds), step.fraction)

        found = yield from engine.stream(work, run, partial, turn)
    if not found.rows:
        over = TOO_SHORT if found.seconds >= FIRST_ROUND * wish.seconds else words.plain(str(found))
        raise Refused(STOPPED if run.cancelled else over)
    yield Ranking(settings, seen, whom, found, stopped=run.cancelled)
