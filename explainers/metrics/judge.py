"""`judge`: the verdict on each map of an explanation, with the tests that were made of it."""

from __future__ import annotations

from dataclasses import replace

from explainers.errors import BadImages, check_type
from explainers.explanation.result import Explanation
from explainers.metrics.evaluation import Evaluation
from explainers.metrics.randomization import Randomization
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
    check_type("explanation", explanation, Explanation, "the result of explain")
    count = len(explanation.map)
    tests = {"evaluation": (evaluation, Evaluation), "randomization": (randomization, Randomization)}
    for name, (tested, wanted) in tests.items():
        if tested is None:
            continue
        check_type(name, tested, wanted, f"one {wanted.__name__} of all images")
        if len(tested) != count:
            raise BadImages(f"The {name} is of {len(tested)} images, the explanation of {count}. Give the same ones.")
    found = []
    for index in range(count):
        facts = explanation.facts(index)
        if evaluation is not None:
            facts = replace(facts, comparisons=evaluation[index].results)
        if randomization is not None:
            facts = replace(facts, depends_on_weights=randomization[index].depends_on_weights(facts.reads_class))
        found.append(judge_facts(facts))
    return found
