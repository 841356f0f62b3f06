"""The sentences above the map: their words follow from the map, and from the experiment once it is known."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import explainers
from explainers import judge_facts
from explainers.verdict.facts import CONTROLS
from saliscope import limits
from saliscope.compute import engine, headline, network_calls, removal
from saliscope.compute.answers import Answer
from saliscope.compute.jobs.runs import Run
from saliscope.compute.methods import costs
from saliscope.compute.request import Request
from tests.saliscope.compute.asking import answered


def test_shares_are_areas_times_values() -> None:
    """Cells that two thirds share are divided by area; negative values do not count."""
    assert torch.allclose(headline.shares(torch.ones(7, 5)), torch.full((3, 3), 1 / 9, dtype=torch.float64))
    four = torch.zeros(4, 4)
    four[1, 0], four[3, 3] = 1.0, -5.0  # rows from 1/4 to 1/2: one third of the cell is in the upper third
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[0, 0], expected[1, 0] = 1 / 3, 2 / 3
    assert torch.allclose(headline.shares(four), expected)
    assert headline.shares(torch.zeros(2, 2)).isnan().all()


def test_the_smallest_part_with_most_of_the_map_is_named() -> None:
    parts: dict[str, dict[tuple[int, int], float]] = {
        "the upper center": {(0, 1): 0.61},
        "the center": {(1, 1): 0.5},
        "the upper center and the upper right corner": {(0, 1): 0.3, (0, 2): 0.3},
        "the lower third": {(2, 0): 0.25, (2, 1): 0.24, (2, 2): 0.25},
        "the upper right": {(0, 1): 0.17, (0, 2): 0.16, (1, 1): 0.2, (1, 2): 0.12},
    }
    for name, cells in parts.items():
        whole = sum(cells.values())
        values = torch.full((3, 3), (1 - whole) / (9 - len(cells)), dtype=torch.float64)
        for cell, value in cells.items():
            values[cell] = value
        assert headline.largest_part(values) == (name, pytest.approx(whole), True)


def test_the_headline_says_each_sentence(answers: dict[str, Answer]) -> None:
    """The position only if the verdict allows it, and no class without a preference of the network."""
    answer = answers["grad_cam"]
    spread = torch.ones(9, 9)
    spread[:3, :3] = 2
    assert not headline.largest_part(torch.full((3, 3), 1 / 9, dtype=torch.float64))[2]
    for changes, sentence in (
        ({"map": torch.ones(7, 7) - 1e-3 * torch.eye(7)}, "The map is spread evenly over the crop."),
        ({"map": spread}, "The map is spread out, with the most in the upper left corner"),
        ({"share": 0.03}, "Stopped after 3% of the samples, and its stability is not known."),
        ({"map": answer.map * 1e-6}, "Too small to interpret: its values add up to "),
        ({"map": -torch.rand(7, 7)}, "The map has no positive values."),
        ({"map": torch.full((7, 7), torch.nan)}, "The map is not finite"),
        ({"map": answers["hires_cam"].map - 0.3}, "% of the positive values)."),
    ):
        first, second = headline.headline(replace(answer, **changes))
        assert first == "German shepherd, 94%." and sentence in second
    even = headline.headline(replace(answer, probabilities=torch.full((1000,), 0.001)))
    why = "The top class has 0.1%, and each of 1,000 equal classes would have 0.1%"
    assert even == ["No preference.", f"{why}, so the network has no preference."]


def test_the_sentence_claims_only_what_the_method_shows(answers: dict[str, Answer]) -> None:
    """Evidence, sensitivity, or only the map; a control does not use the network."""
    tested = {metric: dict.fromkeys(CONTROLS, "better") for metric in ("deletion", "insertion")}
    doubt = "Not compared with controls; on EfficientNet-Lite0, its maps were no better"
    start = "is mainly in the upper right (65%"
    for name, before, after in (
        ("grad_cam", f"The map {start} of the map).", f"The evidence {start}"),
        ("saliency", doubt, "The sensitivity of the score is "),
        ("eigen_cam", doubt, "The map is "),
        ("random_control", "This control map does not use the network.", ""),
    ):
        answer = answers[name]
        better = judge_facts(replace(answer.facts, comparisons=tested))
        for verdict, sentence in ((None, before), (better, after)):
            first, second = headline.headline(answer, verdict)
            assert first == "German shepherd, 94%." and second.startswith(sentence), name


def test_the_next_question_follows_from_the_answer(answers: dict[str, Answer]) -> None:
    panels = [{"own": {}}, {"own": {"target": "malinois"}, "classed": True}]
    assert headline.next_step(answers["grad_cam"]) == {"label": "Compare with malinois", "compare": panels}
    assert headline.next_step(answers["eigen_cam"])["choose"] == {"method": "grad_cam"}


NEW = itertools.count()


def new(answer: Answer) -> Answer:
    """Return an answer for which no experiment is known."""
    return replace(answer, settings=replace(answer.settings, key=f"answer {next(NEW)}"))


def result(after: float, *places: float, share: float = 0.2) -> explainers.Removal:
    scores = torch.tensor([0.94]), torch.tensor([after]), torch.tensor([places])
    mask = (torch.arange(1000) < 1000 * share).view(1, 10, 100)
    return explainers.Removal(torch.tensor([share]), mask, *scores, "softmax probability", [235])


def said(answer: Answer, found: explainers.Removal, image: str) -> str:
    """Return the sentence on a result of the experiment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_calls, "remove_brightest", lambda *_, **__: found)
        assert removal.measure(answer, Request(image), Run(60.0))
    return headline.headline(answer)[1]


def test_the_headline_describes_the_map_until_the_experiment_is_known(answers: dict[str, Answer], new_dog: str) -> None:
    answer, question = answers["grad_cam"], Request(new_dog)
    assert headline.headline(answer)[1].startswith("The map is mainly")
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
    assert headline.status(answer, 7)["settled"]


def test_the_words_follow_from_the_numbers(answers: dict[str, Answer], new_dog: str) -> None:
    answer = answers["grad_cam"]
    for found, words in (
        (result(0.97, 0.88, 0.93), "brightest 20% of the map, it rises to 97%; without as much"),
        (result(0.936, 0.936, 0.9401), "map: still 94%; without as much at random places: 94%."),
        (result(0.005, 0.0062, 0.05), "map: 0.5%; without as much at random places: 0.6% to 5.0%."),
        (result(0.41, 0.9, share=0.124), "Without the positive part of the map (12% of the crop): 41%; "),
    ):
        assert words in said(new(answer), found, new_dog)


def test_the_class_of_the_headline_is_measured(new_dog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that the user chose, and the top prediction for class-agnostic methods. A tiny map stays too small."""
    monkeypatch.setattr(removal, "SAMPLES", 2)
    seen: list[Any] = []
    call = network_calls.remove_brightest
    monkeypatch.setattr(network_calls, "remove_brightest", lambda *a, **k: (seen.append(k), call(*a, **k))[1])
    for settings, start in (
        ({"target": "malinois"}, "Without the brightest 20% of the map"),
        ({"method": "eigen_cam", "target": "malinois"}, "Without the most positive 20% of the map"),
        ({"method": "random_control"}, "This control map does not use the network. Without its brightest 20%"),
    ):
        question = Request(new_dog, **settings)
        answer = answered(question)
        assert removal.measure(answer, question, Run(60.0))
        first, second = headline.headline(answer)
        assert second.startswith(start) and "at random places: " in second
        assert first.split(",")[0].lower() == answer.settings.loaded.names[seen[-1]["target"]].lower()
    question = Request(new_dog, layer="stem")
    answer = answered(question)
    removal.measure(answer, question, Run(60.0))
    assert headline.headline(answer)[1].startswith("Too small to interpret: "), "no test can change this"


def test_maps_without_an_experiment_keep_their_description(answers: dict[str, Answer], new_dog: str) -> None:
    answer = new(answers["grad_cam"])
    assert said(answer, result(0.41, 0.9), new_dog)
    settings = answer.settings
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
        assert not removal.measure(other, Request(new_dog), Run(60.0))


def test_the_experiment_can_be_left_out(answers: dict[str, Answer], new_dog: str, monkeypatch: Any) -> None:
    """It was stopped, takes long or fails; a new question stops it, and a part of the places is not a result."""
    answer, question, call = new(answers["grad_cam"]), Request(new_dog), network_calls.remove_brightest
    run, steps = Run(60.0), list[Any]()
    run.stop()
    assert not removal.measure(answer, question, run)
    assert not removal.measure(answer, replace(question, image="/gone.jpg"), Run(60.0))
    run = Run(60.0)

    def superseded(name: str, images: Any, maps: Any, progress: Any, **options: Any) -> explainers.Removal:
        def report(step: Any) -> bool:
            steps.append(step)
            run.supersede()
            return bool(progress(step))

        return call(name, images, maps, report, **options)

    for module, name, value in (
        (costs, "forward", lambda loaded: 1.0),
        (limits, "SHARED_GPU", True),
        (network_calls, "remove_brightest", lambda *_, **__: result(math.nan, 0.9)),
        (network_calls, "remove_brightest", superseded),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert not removal.measure(answer, question, run), name
    assert len(steps) == 1 and steps[0].done < steps[0].total
    assert not removal.sentence(answer) and removal.measure(answer, question, Run(60.0))
