"""`judge`: the verdict on each map of an explanation, with the tests that were made of it."""

from __future__ import annotations

import math
from dataclasses import replace

from explainers.errors import BadImages, WrongType, kind_of
from explainers.explanation.facts import facts_of
from explainers.explanation.result import Explanation
from explainers.metrics.comparison import results_of
from explainers.metrics.evaluation import Evaluation
from explainers.metrics.randomization import ALL_LAYERS, Randomization
from explainers.verdict.rules import Verdict, judge_facts


def judge(
    explanation: Explanation, evaluation: Evaluation | None = None, randomization: Randomization | None = None
) -> list[Verdict]:
    """Return what the numbers of each map support, as one sentence.

    `evaluation` and `randomization` are the results of `evaluate` and `randomization_test` for the same images; each
    image is compared with the controls by itself. Without them, the verdict follows from the size of the map, its
    samples, its dependence on the class, and the network's preference for some class. docs/verdicts.md lists all
    sentences and their conditions.

    Returns  a `Verdict` for each image
    Errors   WrongType, BadImages if a test is of another number of images

    Example
        >>> e = explain("grad_cam", model, images, 281)
        >>> [verdict] = judge(e, evaluate(model, images, e, steps=8))
        >>> verdict.mark in ("good", "mixed", "bad", "unknown")
        True
    """
    if not isinstance(explanation, Explanation):
        raise WrongType(f"explanation is {kind_of(explanation)}; give the result of explain.")
    count = len(explanation.map)
    tests = {"evaluation": (evaluation, Evaluation), "randomization": (randomization, Randomization)}
    for name, (tested, wanted) in tests.items():
        if tested is None:
            continue
        if not isinstance(tested, wanted):
            raise WrongType(f"{name} is {kind_of(tested)}; give one {wanted.__name__} of all images.")
        if len(tested) != count:
            raise BadImages(f"The {name} is of {len(tested)} images, the explanation of {count}. Give the same ones.")
    found = []
    for index in range(count):
        facts = facts_of(explanation, index)
        if evaluation is not None:
            facts = replace(facts, comparisons=results_of(evaluation[index].comparisons))
        if randomization is not None:
            facts = replace(facts, depends_on_weights=depends_on_weights(randomization[index], facts.reads_class))
        found.append(judge_facts(facts))
    return found


def depends_on_weights(test: Randomization, reads_class: bool = True) -> bool | None:
    """Return the result of the randomization test, None if it has none.

    A class-agnostic method does not depend on the last layer, so only the end of a cascade counts.
    """
    if reads_class or test.order != "cascade":
        return test.passes
    correlation = test.after_all_layers
    return None if math.isnan(correlation) else abs(correlation) < ALL_LAYERS
