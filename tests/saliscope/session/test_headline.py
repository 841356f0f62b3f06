"""The sentence above the map: its words follow from the map. Oracles: sums by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from explainers.verdict.facts import CONTROLS
from explainers.verdict.rules import judge_facts
from saliscope.session import engine, headline, messages
from saliscope.session.answers import Answer, Refining
from saliscope.session.jobs.runs import Run
from saliscope.session.request import Request
from saliscope.session.verdict import facts_of
from tests.saliscope.session.asking import DOG


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
        first, second = headline.headline(replace(answer, **changes))  # type: ignore[arg-type]
        assert first == "German shepherd, 94%." and sentence in second
    even = headline.headline(replace(answer, probabilities=torch.full((1000,), 0.001)))
    why = "The top class has 0.1%, and each of 1,000 equal classes would have 0.1%"
    assert even == ["No preference.", f"{why}, so the network has no preference."]


def test_the_sentence_claims_only_what_the_method_shows(answers: dict[str, Answer]) -> None:
    """Evidence, sensitivity, or only the map; a control does not use the network."""
    tested = {metric: dict.fromkeys(CONTROLS, "better") for metric in ("deletion", "insertion")}
    doubt = "Not compared with controls; on EfficientNet-Lite0, its maps were no better"
    for name, before, after in (
        (
            "grad_cam",
            "The map is mainly in the upper right (65% of the map).",
            "The evidence is mainly in the upper right (65%",
        ),
        ("saliency", doubt, "The sensitivity of the score is "),
        ("eigen_cam", doubt, "The map is "),
        ("random_control", "This control map does not use the network.", ""),
    ):
        answer = answers[name]
        better = judge_facts(replace(facts_of(answer), comparisons=tested))
        for verdict, sentence in ((None, before), (better, after)):
            first, second = headline.headline(answer, verdict)
            assert first == "German shepherd, 94%." and second.startswith(sentence), name


def test_the_next_question_follows_from_the_answer(answers: dict[str, Answer]) -> None:
    step = headline.next_step(answers["grad_cam"])
    assert step == {
        "label": "Compare with malinois",
        "compare": [{"own": {}}, {"own": {"target": "malinois"}, "classed": True}],
    }
    assert headline.next_step(answers["eigen_cam"]) == {
        "label": "Explain the class with Grad-CAM",
        "choose": {"method": "grad_cam"},
    }


def test_a_slow_map_starts_with_the_prediction_and_what_is_computed(loaded: object) -> None:
    """Only in the first step, which has the predictions; the later ones do not repeat it."""
    steps = engine.explain(Request(DOG, method="rise"), Run(60.0), stages=False)
    first, later = itertools.islice((step for step in steps if isinstance(step, Refining)), 2)
    steps.close()
    assert later.probabilities is None and messages.subject(later) == "German shepherd", "not only in the first step"
    assert headline.before_the_map(first) == ["German shepherd, 94%.", "RISE is being computed."]
    assert messages.file_name(first).endswith("-German_shepherd")
    assert headline.before_the_map(replace(first, probabilities=None, fraction=0.2)) == []


def test_probabilities_have_the_digits_of_the_list(answers: dict[str, Answer]) -> None:
    loaded = answers["grad_cam"].settings.loaded
    shown = [messages.class_score(share, loaded) for share in (0.94, 0.0144, 0.001, 0.0004)]
    assert shown == ["94%", "1.4%", "0.1%", "<0.1%"]
