"""`Verdict`: what the numbers about one map support, as a code and one sentence. `RULES` is the table of all of them.

The rules are tried in order, and the first one that holds is the verdict, so that a map that is too small, stopped or
of a network without a preference is not called good or bad by tests that mean nothing for it. `Facts` holds the
numbers. Everything that judges a map shows this sentence. `python -m tests.project.test_verdict_table` writes the table
to docs/verdicts.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from explainers.errors import check_type
from explainers.verdict.facts import CONTROLS, EVEN, ODDS, SIGNAL, TINY, UNDECIDED, Facts, has_preference


@dataclass(frozen=True)
class Verdict:
    """What the numbers about one map support.

    `code` is one of `RULES`, `sentence` says it in words, with the numbers. `mark` is "good", "mixed", "bad" or
    "unknown". `shows_position` says whether the position of the map may be described: not if it is too small, noise,
    stopped, without a preference of the network, or no better than a centered blob. `is_evidence`: the map is better
    than every control, so that it may be called evidence for the class. `facts` are the numbers.
    """

    code: str
    sentence: str
    mark: str
    shows_position: bool
    is_evidence: bool
    facts: Facts = field(repr=False)

    @property
    def follows_tests(self) -> bool:
        """Whether tests decide, or would: nothing else is known against the map."""
        codes = [rule.code for rule in RULES]
        return codes.index(self.code) > codes.index("no_preference")

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Rule:
    """One row of the table: the sentence, and the condition under which it is said.

    `template` has names of `VALUES` in braces; `mark` is that of the verdict.
    """

    code: str
    condition: str
    holds: Callable[[Facts], bool]
    template: str = "{controls}{dependence}."
    mark: str = "bad"

    def sentence(self, facts: Facts) -> str:
        """Return the sentence about a map with these facts."""
        return re.sub(r"{(\w+)}", lambda name: VALUES[name[1]](facts), self.template)


def judge_facts(facts: Facts) -> Verdict:
    """Return the verdict on a map about which these facts are known.

    Errors   WrongType

    Example
        >>> judge_facts(Facts(probabilities=[0.26, 0.25, 0.25, 0.24])).code
        'no_preference'
    """
    check_type("facts", facts, Facts, "Facts(...), or Explanation.facts(index)")
    rule = next(rule for rule in RULES if rule.holds(facts))
    results, sentence, mark = facts.results, rule.sentence(facts), rule.mark
    fails = facts.depends_on_weights is False or facts.class_dependence == "hardly"
    tested = rule.code in ("better", "partly")
    if fails and (tested or rule.code in ("not_better", "untested")):
        mark = "bad"
    elif rule.code == "better" and not facts.reads_class:
        mark = "mixed"
    worse = {"worse", "divided"} & {*results.values()}
    beats_blob = tested and results.get("center", "better") == "better" and not worse
    return Verdict(
        rule.code,
        sentence[:1].upper() + sentence[1:],
        mark,
        shows_position=(beats_blob or rule.code == "untested") and not fails,
        is_evidence=rule.code == "better" and facts.reads_class and not fails,
        facts=facts,
    )


def describe_results(comparisons: Mapping[str, str]) -> str:
    """Return the results by control in words. A result is the `verdict` of a `Comparison`.

    Errors   WrongType

    Example
        >>> describe_results({"random": "better", "edge": "level", "center": "level"})
        'better than random maps, not than edge maps or a centered blob'
    """
    check_type("comparisons", comparisons, Mapping, "a mapping from controls to results")
    return _controls(Facts(comparisons={"": comparisons}))


# Values of the templates


CLAUSES = {
    "better": ("Better by one metric or more, and worse by none; the metrics if only some.", "better than {names}"),
    "level": ("Not significantly different by any metric, and better than another control.", "not than {names}"),
    "level_only": ("Not significantly different by any metric, and better than none.", "not better than {names}"),
    "worse": ("Worse by one metric or more, and better by none; the metrics if only some.", "worse than {names}"),
    "divided": ("Better by one metric and worse by another.", "better and worse than {names}, depending on the metric"),
    "few": ("With so few images, no difference could be significant.", "too few images to compare with {names}"),
    "unknown": ("A value is missing.", "not compared with {names}"),
    "same": ("The method does not use the class.", "is the same for every class"),
    "hardly": (
        f"The rank correlation with the runner-up's map is above {Facts.ALIKE:g}; of the weights: the randomization "
        "test fails.",
        "hardly depends on {names}",
    ),
    "partly": (
        f"The rank correlation with the runner-up's map is above {Facts.PARTLY:g}.",
        "partly depends on {names}",
    ),
    "depends": ("It is lower; of the weights: the randomization test passes.", "depends on {names}"),
}
"""The clauses of {controls} and {dependence}: by name, the condition and the words."""


def _clause(name: str, names: str = "") -> str:
    return CLAUSES[name][1].format(names=names)


def _controls(facts: Facts) -> str:
    """Return the comparison with the controls, with the metrics if only some of them differ."""
    groups: dict[str, list[str]] = {}
    for name, result in facts.results.items():
        groups.setdefault(result, []).append(name)
    parts = []
    for result in ("better", "level", "worse", "divided", "few", "unknown"):
        if names := groups.get(result, []):
            clause = "level_only" if result == "level" and "better" not in groups else result
            if result in ("better", "worse"):
                words = _with_metrics(facts, names, result)
            else:
                words = _join(
                    [CONTROLS.get(each, each) for each in names], "or" if result in ("level", "unknown") else "and"
                )
            parts.append(_clause(clause, words))
    return ", ".join(parts)


def _with_metrics(facts: Facts, controls: Sequence[str], result: str) -> str:
    """Return the names of controls with this result, with the metrics if only some of several have it."""
    by_metrics: dict[str, list[str]] = {}
    for control in controls:
        measured = [name for name, each in facts.comparisons.items() if control in each]
        found = [name.replace("_", " ") for name in measured if facts.comparisons[name][control] == result]
        by = "" if len(found) == len(measured) else f" by {_join(found)}"
        by_metrics.setdefault(by, []).append(CONTROLS.get(control, control))
    return " and than ".join(f"{_join(names)}{by}" for by, names in by_metrics.items())


def _dependence(facts: Facts) -> str:
    """Return the clause about class and weights, which starts with "; ", or an empty string if neither is known."""
    on: dict[str, list[str]] = {}
    if clause := facts.class_dependence:
        on.setdefault(clause, []).append("the class")
    if facts.depends_on_weights is not None:
        on.setdefault("depends" if facts.depends_on_weights else "hardly", []).append("the weights")
    parts = [_clause(name, _join(names)) for name, names in on.items()]
    if not facts.reads_class:
        parts.insert(0, _clause("same"))
    return "".join(f"{'; ' if k == 0 else ', '}{part}" for k, part in enumerate(parts))


def _join(names: Sequence[str], word: str = "and") -> str:
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else names[0]


def _percent(share: float) -> str:
    """Return a share with one decimal below 10%, and "less than 0.01%" for very small ones."""
    value = 100 * share
    if 0 < value < 0.01:
        return "less than 0.01%"
    return f"{value:.0f}%" if value >= 10 else f"{float(f'{value:.1f}' if value >= 0.1 else f'{value:.1g}'):g}%"


def _number(value: float | None) -> str:
    known = value is not None and not math.isnan(value)
    return f"{value:.2f}".replace("-", "−") if known else "0"


def _reached(facts: Facts) -> str:
    share = f"{_percent(facts.done / facts.planned)} of the" if facts.is_stopped else f"all {facts.planned:,}"
    return f"{share} {facts.samples}"


def _stability(facts: Facts) -> str:
    if facts.stability is None:
        return ", and its stability is not known"
    return f"; two halves of them agree with a correlation of {_number(facts.stability)}"


def _preference(facts: Facts) -> str:
    values = facts.probabilities
    if facts.exclusive and len(values) > 1:
        even = f"each of {len(values):,} equal classes would have {_percent(1 / len(values))}"
        return f"The top class has {_percent(max(values))}, and {even}"
    what = "The probability is" if len(values) == 1 else f"Each of the {len(values):,} probabilities is"
    return f"{what} between {_percent(0.5 - UNDECIDED)} and {_percent(0.5 + UNDECIDED)}"


def _warning(facts: Facts) -> str:
    warning = facts.caution.partition(". ")[0].rstrip(".")
    return warning[:1].lower() + warning[1:]


VALUES: dict[str, Callable[[Facts], str]] = {
    "controls": _controls,
    "dependence": _dependence,
    "what": lambda facts: "its values add up to" if facts.adds_up else "its largest value is",
    "size": lambda facts: f"{facts.total:.2g} {facts.unit}".strip(),
    "share": lambda facts: _percent(facts.share or 0.0),
    "score": lambda facts: f"{facts.score:.3g}",
    "reached": _reached,
    "correlation": lambda facts: _number(facts.stability),
    "stability": _stability,
    "why": _preference,
    "caution": _warning,
}
"""The values of names in templates."""


def _all(facts: Facts, *wanted: str) -> bool:
    known = [result for result in facts.results.values() if result != "unknown"]
    return bool(known) and all(result in wanted for result in known)


def _any(facts: Facts, result: str) -> bool:
    return result in facts.results.values()


RULES: tuple[Rule, ...] = (
    Rule(
        "control",
        "The method is one of the controls.",
        lambda facts: facts.is_control,
        "This control map does not use the network.",
        "unknown",
    ),
    Rule(
        "planes",
        "The method returns several planes.",
        lambda facts: facts.has_planes,
        "The method returns several maps, which are not judged.",
        "unknown",
    ),
    Rule(
        "not_finite",
        "A value of the map is NaN or infinite.",
        lambda facts: not facts.is_finite,
        "The map is not finite, so it cannot be interpreted.",
    ),
    Rule(
        "constant",
        "The highest and the lowest value are equal.",
        lambda facts: facts.range[0] == facts.range[1],
        "The map has the same value everywhere, so it shows no position.",
    ),
    Rule(
        "nothing_positive", "No value is above 0.", lambda facts: facts.range[1] <= 0, "The map has no positive values."
    ),
    Rule(
        "too_small",
        f"The values add up to less than {_percent(TINY)} of the score (of a map whose values are no shares of the "
        "score, as RISE: the largest value).",
        lambda facts: facts.share is not None and facts.share < TINY,
        "Too small to interpret: {what} {size}, {share} of the score ({score}).",
    ),
    Rule(
        "noise",
        f"Less than {_percent(SIGNAL)} of the variance of the map is common to both halves of its samples: "
        "2r / (1 + r) for halves of correlation r.",
        lambda facts: facts.is_noisy,
        "After {reached}, the map is mostly noise: two halves of them agree with a correlation of {correlation}.",
    ),
    Rule(
        "stopped",
        "Samples are missing, and their halves agree, or cannot be compared.",
        lambda facts: facts.is_stopped,
        "Stopped after {reached}{stability}.",
        "mixed",
    ),
    Rule(
        "no_preference",
        f"The odds of the top class are below {ODDS:g} times those of equal classes, and the entropy is over "
        f"{_percent(EVEN)} of the largest one. Of independent labels, all are within {_percent(UNDECIDED)} of half.",
        lambda facts: has_preference(facts.probabilities, facts.exclusive) is False,
        "{why}, so the network has no preference.",
    ),
    Rule(
        "better",
        "Significantly better than every control by one metric or more, and worse by none (p < 0.05, Holm).",
        lambda facts: _all(facts, "better"),
        mark="good",
    ),
    Rule("partly", "Significantly better than some controls.", lambda facts: _any(facts, "better"), mark="mixed"),
    Rule(
        "few_images",
        "With so few images, no comparison with a control could be significant.",
        lambda facts: _all(facts, "few"),
        mark="unknown",
    ),
    Rule("worse", "Significantly worse than some controls, and better than none.", lambda facts: _any(facts, "worse")),
    Rule(
        "not_better",
        "Not significantly better than any control. On one image, that may be chance.",
        lambda facts: facts.is_tested,
        mark="mixed",
    ),
    Rule(
        "doubtful",
        "Not compared with the controls, and the method has a caution: its maps were not better than controls.",
        lambda facts: bool(facts.caution),
        "Not compared with controls; {caution}.",
        "unknown",
    ),
    Rule(
        "untested",
        "Not compared with the controls.",
        lambda facts: True,
        "Not compared with controls{dependence}.",
        "unknown",
    ),
)
"""Every verdict, the first that holds first."""
