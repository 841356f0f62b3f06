"""The experiment of the headline: its numbers are the library's, its words follow from them, and it can be left out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import explainers
from saliscope import limits
from saliscope.session import engine, headline, network_calls, removal
from saliscope.session.answers import Answer
from saliscope.session.jobs.runs import Run
from saliscope.session.methods import costs
from saliscope.session.request import Request
from tests.saliscope.session import asking
from tests.saliscope.session.asking import DOG

pytestmark = pytest.mark.usefixtures("loaded", "without_experiments")


def answered(**request: Any) -> tuple[Answer, Request]:
    question = Request(DOG, **request)
    return asking.answered(question), question


@pytest.fixture(scope="module")
def dog(loaded: object) -> tuple[Answer, Request]:
    return answered()


def result(after: float, *places: float, share: float = 0.2) -> explainers.Removal:
    scores = torch.tensor([0.94]), torch.tensor([after]), torch.tensor([places])
    mask = (torch.arange(1000) < 1000 * share).view(1, 10, 100)
    return explainers.Removal(torch.tensor([share]), mask, *scores, "softmax probability", [235])


def said(answer: Answer, found: explainers.Removal) -> str:
    removal._known.put(answer.settings.key, found)
    return headline.headline(answer)[1]


def test_the_headline_describes_the_map_until_the_experiment_is_known(dog: tuple[Answer, Request]) -> None:
    answer, question = dog
    assert headline.headline(answer)[1].startswith("The map is mainly") and not removal.sentence(answer)
    assert removal.measure(answer, question, Run(60.0))
    assert not removal.measure(answer, question, Run(60.0)), "the result is known"
    loaded, images = answer.settings.loaded, engine.load_input(answer.settings, question)[2]
    found = explainers.remove_brightest(loaded.model.network, images, answer.explanation, share=0.2, samples=19)
    low, high = found.without_random.min(), found.without_random.max()
    assert headline.headline(answer) == [
        "German shepherd, 94%.",
        f"Without the brightest 20% of the map: {found.without_brightest.item():.0%}; without as much at random "
        f"places: {low:.0%} to {high:.0%}.",
    ]
    line = headline.status(answer, 7)
    assert line["id"] == 7 and line["headline"] == headline.headline(answer) and line["settled"]


def test_the_words_follow_from_the_numbers(dog: tuple[Answer, Request]) -> None:
    for numbers, words in (
        ((0.41, 0.88, 0.93), "map: 41%; without as much at random places: 88% to 93%."),
        ((0.97, 0.88, 0.93), "map, it rises to 97%; without as much at random places: 88% to 93%."),
        ((0.936, 0.936, 0.9401), "map: still 94%; without as much at random places: 94%."),
        ((0.005, 0.0062, 0.05), "map: 0.5%; without as much at random places: 0.6% to 5.0%."),
    ):
        assert said(dog[0], result(*numbers)) == f"Without the brightest 20% of the {words}"


def test_the_removed_part_is_named(dog: tuple[Answer, Request]) -> None:
    """Fewer positive pixels than requested, and maps with negative values."""
    answer = dog[0]
    few = said(answer, result(0.41, 0.9, share=0.124))
    assert few.startswith("Without the positive part of the map (12% of the crop): 41%; ")
    signed = replace(answer, map=answer.map - 0.3)
    assert said(signed, result(0.41, 0.9)).startswith("Without the most positive 20% of the map: 41%; ")


@pytest.mark.parametrize(
    "request_of, start",
    [
        ({"target": "malinois"}, "Without the brightest 20% of the map"),
        ({"method": "eigen_cam", "target": "malinois"}, "Without the most positive 20% of the map"),
        ({"method": "random_control"}, "This control map does not use the network. Without its brightest 20%"),
    ],
)
def test_the_class_of_the_headline_is_measured(
    request_of: dict[str, str], start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class that the user chose, and the top prediction for class-agnostic methods."""
    answer, question = answered(**request_of)
    seen: list[Any] = []
    call = network_calls.remove_brightest
    monkeypatch.setattr(network_calls, "remove_brightest", lambda *a, **k: (seen.append(k), call(*a, **k))[1])
    assert removal.measure(answer, question, Run(60.0))
    first, second = headline.headline(answer)
    assert second.startswith(start) and "at random places: " in second
    assert first.startswith(answer.settings.loaded.names[seen[0]["target"]][:1].upper())
    assert first.split(",")[0].lower() == answer.settings.loaded.names[seen[0]["target"]].lower()


def test_a_map_that_is_too_small_is_no_experiment() -> None:
    """What no test can change about a map is said in any case."""
    answer, question = answered(layer="stem")
    removal.measure(answer, question, Run(60.0))
    assert headline.headline(answer)[1].startswith("Too small to interpret: ")


def test_maps_without_an_experiment_keep_their_description(dog: tuple[Answer, Request]) -> None:
    answer, question = dog
    settings = answer.settings
    removal._known.put(settings.key, result(0.41, 0.9))
    for other in (
        replace(answer, share=0.03),
        replace(answer, map=torch.ones(7, 7)),
        replace(answer, map=-answer.map - 1),
        replace(answer, map=torch.full((7, 7), math.nan)),
        replace(answer, settings=replace(settings, unit=("head", 3))),
        replace(answer, settings=replace(settings, loaded=replace(settings.loaded, score="logit"))),
        replace(answer, settings=replace(settings, key="")),
        replace(answer, settings=replace(settings, method=explainers.METHODS["feature_maps"])),
    ):
        assert not removal.is_possible(other) and not removal.sentence(other)
        assert not removal.measure(other, question, Run(60.0))


def test_the_experiment_is_left_out_if_it_takes_long_or_fails(
    dog: tuple[Answer, Request], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer, question = dog
    stopped = Run(60.0)
    stopped.stop()
    assert not removal.measure(answer, question, stopped)
    with monkeypatch.context() as patch:
        patch.setattr(costs, "forward", lambda loaded: 1.0)
        assert not removal.measure(answer, question, Run(60.0))
    with monkeypatch.context() as patch:
        patch.setattr(limits, "SHARED_GPU", True)
        assert not removal.measure(answer, question, Run(60.0))
    assert not removal.measure(answer, replace(question, image="/gone.jpg"), Run(60.0))
    with monkeypatch.context() as patch:
        patch.setattr(network_calls, "remove_brightest", lambda *a, **k: result(math.nan, 0.9))
        assert not removal.measure(answer, question, Run(60.0))
    assert not removal.sentence(answer) and removal.measure(answer, question, Run(60.0))


def test_a_new_question_stops_the_experiment(dog: tuple[Answer, Request], monkeypatch: pytest.MonkeyPatch) -> None:
    """At its next report; a part of the random places is not a result."""
    answer, question = dog
    run, call = Run(60.0), network_calls.remove_brightest
    steps: list[Any] = []

    def superseded(name: str, images: Any, maps: Any, progress: Any, **options: Any) -> explainers.Removal:
        def report(step: Any) -> bool:
            steps.append(step)
            run.supersede()
            return bool(progress(step))

        return call(name, images, maps, report, **options)

    monkeypatch.setattr(network_calls, "remove_brightest", superseded)
    assert not removal.measure(answer, question, run)
    assert len(steps) == 1 and steps[0].done < steps[0].total and not removal.sentence(answer)
