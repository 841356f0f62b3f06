"""Requests of comparison panels: the settings of the page with the overrides of the panel, and their answers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image

from saliscope import limits
from saliscope.compute import engine, model_cache, network_calls, scene
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import MIN_SCORE, Scene, Settings, Step
from saliscope.compute.compare import messages
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.request import LONGEST, MOST_OPTIONS, NAMES, Request
from saliscope.compute.text import sentences
from saliscope.compute.text_messages import NO_SECOND_SENTENCE
from saliscope.errors import Refused


@dataclass(frozen=True)
class PanelRequest:
    """The request of a panel as its script sent it."""

    slot: int
    number: int
    """Increases with every request of the same page."""
    image: str = ""
    """The image on the page when the script sent the request; it may have changed since."""
    page: dict[str, str] = field(default_factory=dict)
    """The names and the bands in the settings of the page."""
    options: dict[str, Any] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    """The names that the panel overrides; an empty target is the top prediction."""
    runner_up: bool = False
    """Whether to explain the class after the top prediction."""
    by_class: bool = False
    """Whether to replace a class-agnostic method by the default method."""
    lists: bool = False
    """Whether the script needs the lists of names."""

    @property
    def other_model(self) -> bool:
        """Whether the panel uses a different model than the page."""
        return self.own.get("model", self.page.get("model")) != self.page.get("model")


def parse(data: dict[str, Any]) -> PanelRequest:
    """Parse the message of a script; invalid names are ignored, and an invalid panel number means the first panel."""
    slot, number, options = data.get("slot"), data.get("number"), data.get("options")
    image = data.get("image")
    return PanelRequest(
        slot if type(slot) is int and 0 <= slot < limits.PANELS else 0,
        number if type(number) is int else 0,
        image if isinstance(image, str) else "",
        _parse_names(data.get("page"), (*NAMES, "bands")),
        options if isinstance(options, dict) and len(options) <= MOST_OPTIONS else {},
        _parse_names(data.get("own"), NAMES),
        data.get("runner") is True,
        data.get("classed") is True,
        data.get("lists") is True,
    )


def _parse_names(values: Any, names: tuple[str, ...]) -> dict[str, str]:
    values = values if isinstance(values, dict) else {}
    strings = {name: values[name] for name in names if isinstance(values.get(name), str)}
    return {name: value for name, value in strings.items() if len(value) <= LONGEST}


def answers(panel_request: PanelRequest, image: str, run: Run) -> Iterator[Step]:
    """Yield the answer of a panel step by step; long methods yield partial maps.

    An unknown name in the overrides of the panel is refused. A name of the page that the model of the panel does not
    have is replaced by the default of that model.

    Errors   as `engine.explain`
    """
    question = yield from _question(panel_request, image, run)
    if panel_request.runner_up:
        settings, full_image, images = engine.load_input(engine.resolve(question), question)
        with turns.enqueue(run, long=False) as turn:
            yield from engine.wait_turn(turn)
            question = replace(question, target=_runner_up(settings, full_image, images))
    checked = False
    for step in engine.explain(question, run, stages=False):
        if isinstance(step, Settings) and not checked:
            _refuse_defaults(step)
            checked = True
        if isinstance(step, Scene) and (panel_request.own.get("target") or panel_request.runner_up):
            _refuse_defaults(step.settings)
        yield step
        if isinstance(step, Scene) and step.chosen is None:
            raise Refused(step.message)


def _question(panel_request: PanelRequest, image: str, run: Run) -> Generator[Step, None, Request]:
    """Return the request of the panel; the target of a runner-up request is set later."""
    page_names: dict[str, Any] = {name: panel_request.page.get(name, "") for name in NAMES}
    page_names["model"] = panel_request.own.get("model", page_names["model"])
    if panel_request.other_model:
        page_names["layer"] = ""
    bands = panel_request.page.get("bands", "")
    request = Request(image, **page_names, bands=bands, lenient=panel_request.other_model)
    settings = yield from engine.resolve_settings(request, run)
    names: dict[str, Any] = settings.names | {
        name: value for name, value in panel_request.own.items() if name != "model"
    }
    if panel_request.by_class and not settings.method.reads_class and "method" not in panel_request.own:
        names["method"] = model_cache.default_method(settings.loaded).name
    if panel_request.runner_up:
        names["target"] = ""
    if settings.loaded.encodes_text and not names["target"]:  # the first or the second sentence of the page
        listed_sentences = settings.class_names if settings.sentences else []
        if panel_request.runner_up and len(listed_sentences) < 2:
            raise Refused(NO_SECOND_SENTENCE)
        names["target"] = [*listed_sentences, ""][panel_request.runner_up]
    is_detector = settings.loaded.model.task == "detection"
    same_method = names["method"] == panel_request.page.get("method")
    options = {
        name: value
        for name, value in panel_request.options.items()
        if (is_detector if name == MIN_SCORE else same_method)
    }
    return Request(image, **names, options=options, bands=bands)


def page_sentences(panel_request: PanelRequest) -> list[str]:
    """Return the sentences on the page, for panels of networks with a text encoder."""
    found, _ = sentences.parse(Request(target=panel_request.page.get("target", "")))
    return found.listed if found else []


def _refuse_defaults(settings: Settings) -> None:
    """Refuse settings in which an unknown name was replaced by a default."""
    if settings.notes:
        raise Refused(page_messages.without_default(settings.notes[0]))


def _runner_up(settings: Settings, image: Image.Image, images: torch.Tensor) -> str:
    """Return the class after the top prediction, the second object, or the region of a second class.

    Errors   Refused if there is none
    """
    loaded = settings.loaded
    if loaded.encodes_text:
        return settings.names["target"]
    if not loaded.detects_objects:
        scores = network_calls.scores(loaded.name, images)
        if scores.numel() < 2:
            raise Refused(messages.ONE_CLASS)
        return loaded.names[int(scores.topk(2).indices[1])]
    detected = scene.inspect(settings, loaded.model.crop(image), images)
    if detected.chosen is None:
        raise Refused(detected.message)
    others = [item for item in detected.objects if item is not detected.chosen]
    if loaded.model.task == "segmentation":
        first = detected.chosen.label
        others = [
            item for item in others if not (item.rank or item.label == first or scene.is_background(loaded, item.label))
        ]
    if not others:
        raise Refused(messages.NOTHING_ELSE[loaded.model.task])
    return others[0].name
