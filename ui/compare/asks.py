"""What a panel asks: the settings of the page, but for what the panel has of its own; and the way to its answer."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ui.compare import words
from ui.engine import engine, model_cache, network_calls, scene
from ui.engine.messages import MIN_SCORE, Refused, Scene, Settings, Step
from ui.engine.request import LONGEST, MOST_OPTIONS, NAMES, Request
from ui.engine.runs import Run
from ui.engine.turns import turns

if TYPE_CHECKING:
    import torch
    from PIL import Image

SLOTS = 4
"""Panels, at most."""


@dataclass(frozen=True)
class Ask:
    """A panel's question as its script sent it."""

    slot: int
    number: int
    """Larger than that of all former questions of the same page."""
    picture: str = ""
    """The picture that the script saw on the page; another one may have come since."""
    page: dict[str, str] = field(default_factory=dict)
    """The settings of the page that are names, and its bands."""
    options: dict[str, Any] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    """The names that the panel has of its own; an empty target is the top prediction."""
    runner_up: bool = False
    """Whether the class is the one after the top prediction."""
    by_class: bool = False
    """Whether a method that reads no class gives way to the default one."""
    lists: bool = False
    """Whether the script needs the names to choose from."""
    place: bool = False
    """Whether the script needs to know what the network sees of the photograph."""

    @property
    def elsewhere(self) -> bool:
        """Whether the panel has another model than the page."""
        return self.own.get("model", self.page.get("model")) != self.page.get("model")


@dataclass(frozen=True)
class Place:
    """What the network sees of the photograph: left, top, right and bottom, in parts of it."""

    box: tuple[float, float, float, float]


def received(data: dict[str, Any]) -> Ask:
    """The question in what a script sent; what is no name is left out, and what is no panel is the first one."""
    slot, number, options = data.get("slot"), data.get("number"), data.get("options")
    picture = data.get("picture")
    return Ask(
        slot if type(slot) is int and 0 <= slot < SLOTS else 0,
        number if type(number) is int else 0,
        picture if isinstance(picture, str) else "",
        _named(data.get("page"), (*NAMES, "bands")),
        options if isinstance(options, dict) and len(options) <= MOST_OPTIONS else {},
        _named(data.get("own"), NAMES),
        data.get("runner") is True,
        data.get("classed") is True,
        data.get("lists") is True,
        data.get("place") is True,
    )


def _named(given: Any, names: tuple[str, ...]) -> dict[str, str]:
    given = given if isinstance(given, dict) else {}
    found = {name: given[name] for name in names if isinstance(given.get(name), str)}
    return {name: value for name, value in found.items() if len(value) <= LONGEST}


def answers(ask: Ask, picture: str, run: Run) -> Iterator[Step | Place]:
    """The panel's answer, step by step; long methods give partial maps.

    A name of the panel's own that cannot be had is refused. One of the page's that another model does not have becomes
    that model's default.

    Errors   as `engine.explain`
    """
    question = yield from _question(ask, picture, run)
    if ask.place or ask.runner_up:
        settings, photo, images = engine.opened(engine.resolve(question), question)
        yield Place(_place(settings, photo))
        if ask.runner_up:
            with turns.place(run, long=False) as turn:
                yield from engine.taken(turn)
                question = replace(question, target=_runner_up(settings, photo, images))
    asked = False
    for step in engine.explain(question, run, stages=False):
        if isinstance(step, Settings) and not asked:
            _only_as_asked(step)
            asked = True
        if isinstance(step, Scene) and (ask.own.get("target") or ask.runner_up):
            _only_as_asked(step.settings)
        yield step
        if isinstance(step, Scene) and step.chosen is None:
            raise Refused(step.sentence)


def _question(ask: Ask, picture: str, run: Run) -> Generator[Step, None, Request]:
    """The panel's settings as a request; its target is still the first where the runner-up is asked for."""
    named: dict[str, Any] = {name: ask.page.get(name, "") for name in NAMES}
    named["model"] = ask.own.get("model", named["model"])
    if ask.elsewhere:
        named["layer"] = ""
    bands = ask.page.get("bands", "")
    settings = yield from engine.settled(Request(picture, **named, bands=bands, forgiving=ask.elsewhere), run)
    names: dict[str, Any] = settings.names | {name: value for name, value in ask.own.items() if name != "model"}
    if ask.by_class and not settings.method.reads_class and "method" not in ask.own:
        listed = model_cache.list_methods(settings.loaded, names["layer"])
        names["method"] = model_cache.default_method(settings.loaded, [method.name for method in listed])
    if ask.runner_up:
        names["target"] = ""
    detects = settings.loaded.model.task == "detection"
    same = names["method"] == ask.page.get("method")
    options = {name: value for name, value in ask.options.items() if (detects if name == MIN_SCORE else same)}
    return Request(picture, **names, options=options, bands=bands)


def _only_as_asked(settings: Settings) -> None:
    """Refuse what would be shown instead of what was asked for."""
    if settings.notes:
        raise Refused(settings.notes[0].split(" Shown instead")[0])


def _place(settings: Settings, photo: Image.Image) -> tuple[float, float, float, float]:
    from models.model import limit_aspect  # torch takes seconds to start

    kept = limit_aspect(photo)
    left, top, right, bottom = settings.loaded.model.preparation.region(*kept.size)
    aside, above = (photo.width - kept.width) // 2, (photo.height - kept.height) // 2
    across, down = photo.size
    return (left + aside) / across, (top + above) / down, (right + aside) / across, (bottom + above) / down


def _runner_up(settings: Settings, photo: Image.Image, images: torch.Tensor) -> str:
    """The class after the top prediction; of what is found in a picture, the second object, or another class's region.

    Errors   Refused where there is none
    """
    loaded = settings.loaded
    if not loaded.finds:
        scores = network_calls.scores(loaded.name, images)
        if scores.numel() < 2:
            raise Refused(words.ONE_CLASS)
        return loaded.names[int(scores.topk(2).indices[1])]
    around = scene.look(settings, loaded.model.crop(photo), images)
    if around.chosen is None:
        raise Refused(around.sentence)
    others = [each for each in around.found if each is not around.chosen]
    if loaded.model.task == "segmentation":
        first = around.chosen.label
        others = [e for e in others if not (e.rank or e.label == first or scene.is_background(loaded, e.label))]
    if not others:
        raise Refused(words.NOTHING_ELSE[loaded.model.task])
    return others[0].name
