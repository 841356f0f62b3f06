"""500 generated situations: no sentence about a map contradicts another sentence, or the numbers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from explainers import Facts, Verdict, judge_facts
from explainers.metrics.comparison import Comparison, adjust, results_of
from explainers.verdict import facts as verdicts
from saliscope.compute import headline
from saliscope.compute.answers import Answer

METHODS = ("grad_cam", "saliency", "eigen_cam", "input_x_gradient", "random_control")
COUNT = 500
CONTROLS = ("random", "edge", "center")
CLAIMED = re.compile(r"Better than (.*?)(?:, (?:not|worse|better|too)|;|\.$)")
"""The controls that a sentence says a map is better than."""
POSITION = re.compile(r"mainly in|spread")


def check(found: Verdict, p_values: dict[tuple[str, str], float]) -> None:
    """The rules that hold for a verdict by itself."""
    facts, sentence = found.facts, found.sentence
    assert sentence.endswith(".") and sentence[0].isupper() and not re.search(r"[{}]|nan|None|inf\b", sentence), (
        sentence
    )
    claimed = CLAIMED.match(sentence)
    for control, name in verdicts.CONTROLS.items():
        if claimed and name in claimed[1]:
            best = min(p for (_, each), p in p_values.items() if each == control and not math.isnan(p))
            assert best < 0.05, (sentence, p_values)
    if found.mark == "good":
        all_claimed = claimed and all(name in claimed[1] for name in verdicts.CONTROLS.values())
        assert all_claimed or "unknown" in facts.results.values()
    assert not (found.mark == "good" and not found.shows_position)
    assert not (found.is_evidence and found.mark != "good")
    if found.shows_position:
        assert not facts.is_stopped and not facts.is_noisy and facts.is_finite and facts.range[1] > 0
        assert facts.share is None or facts.share >= verdicts.TINY
        assert verdicts.has_preference(facts.probabilities, facts.exclusive) is not False
        assert facts.depends_on_weights is not False and not (facts.correlation or 0) > Facts.ALIKE
        assert facts.results.get("center", "better") == "better" and (facts.is_tested or not facts.caution)
    if "samples" in sentence and facts.is_stopped and found.code in ("noise", "stopped"):
        (share,) = re.findall(r"([\d.]+)% of the", sentence)
        assert float(share) == pytest.approx(100 * facts.done / facts.planned, abs=0.51)
    if "epends on" in sentence and facts.correlation is not None and facts.reads_class:
        assert ("hardly depends on the class" in sentence) <= (facts.correlation > Facts.ALIKE)
        hardly = re.search("hardly depends on (the class and )?the weights", sentence)
        assert (facts.depends_on_weights is False) == bool(hardly)


DRAWN: dict[str, list[Any]] = {
    "stability": [None, None, 0.9, 0.4, 0.1, -0.2, math.nan],
    "total": [None, 1.0, 0.01, 1e-4, 1e-6],
    "score": [None, 10.0, 0.5, -3.0],
    "correlation": [None, 0.2, 0.7, 0.995, math.nan],
    "depends_on_weights": [None, True, False],
    "reads_class": [True, True, True, False],
    "caution": ["", "", "On a network, its maps were no better than a centered blob. Use another."],
    "range": [(0.0, 1.0), (-1.0, 1.0), (-2.0, -1.0), (0.5, 0.5)],
    "is_finite": [True] * 19 + [False],
}


def generated(random: Random) -> tuple[dict[str, Any], dict[tuple[str, str], float]]:
    """Return facts with comparisons whose p-values are corrected by the library, and these p-values."""
    metrics = random.choice([("deletion", "insertion"), ("insertion",), ("deletion", "insertion", "road")])
    images = random.choice([1, 1, 1, 3, 8, 100])
    table = {
        metric: {
            control: Comparison(control, 0.1, 1.0, math.nan, p, p, "unknown" if math.isnan(p) else result, images)
            for control in CONTROLS
            for result in [random.choice(["better", "better", "worse"])]
            for p in [random.choice([1e-4, 0.004, 0.03, 0.06, 0.5, 1.0, math.nan])]
        }
        for metric in metrics
    }
    (adjusted,) = adjust([table])
    p_values = {(m, c): each.p_adjusted for m, by in adjusted.items() for c, each in by.items()}
    drawn = {name: random.choice(values) for name, values in DRAWN.items()}
    planned = random.choice([1, 1, 960])
    done = random.choice([planned, planned, max(1, planned // 30)])
    correlation = drawn["correlation"] if drawn["reads_class"] else None
    drawn |= {"comparisons": results_of(adjusted) if random.random() < 0.8 else {}, "correlation": correlation}
    return drawn | {"planned": planned, "done": done}, p_values


def probabilities(random: Random) -> Tensor:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(random.randrange(10**6)))
    return (logits * random.choice([0.01, 0.2, 1.0, 4.0])).softmax(0)


def test_no_sentence_contradicts_another_one_or_the_numbers(answers: dict[str, Answer]) -> None:
    for seed in range(COUNT):
        draws = Random(seed)
        facts, p_values = generated(draws)
        answer = answers[draws.choice(METHODS)]
        plane = torch.rand(7, 7, generator=torch.Generator().manual_seed(seed)) ** draws.choice([1, 20])
        answer = replace(answer, map=plane, probabilities=probabilities(draws), share=draws.choice([1.0, 1.0, 0.03]))
        known = answer.facts
        known = replace(known, **{name: value for name, value in facts.items() if name != "range"})
        if draws.random() < 0.3:
            known = replace(known, range=facts["range"])
        found = judge_facts(known)
        check(found, p_values if facts["comparisons"] else {})

        sentences = headline.headline(answer, found)
        name = answer.settings.loaded.names[int(answer.probabilities.argmax())]
        even = verdicts.has_preference(known.probabilities) is False
        assert (name.lower() in " ".join(sentences).lower()) != even, sentences
        assert (sentences[0] == "No preference.") == even == sentences[1].endswith("so the network has no preference.")
        assert bool(POSITION.search(sentences[1])) == (found.shows_position and not even), (sentences, found)
        if sentences[1].startswith("The evidence"):
            assert found.mark == "good" and facts["comparisons"]
        if not found.shows_position and found.code != "planes" and not even:
            assert sentences[1] == found.sentence

        ranked = judge_facts(Facts(comparisons=facts["comparisons"])).sentence.rstrip(".")
        if facts["comparisons"] and found.code in ("better", "partly", "worse", "not_better", "few_images"):
            assert found.sentence.startswith(ranked), "the ranking and the check agree"
