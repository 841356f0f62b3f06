"""`Facts`: what is known about one map, and the limits from which a verdict follows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from explainers.probabilities import ROUNDING

TINY = 1e-4
"""A map whose values add up to less than this share of the score is too small to interpret.

The rounding of a score in float32 is about 1e-7 of it, and in gradients of many layers it grows to 1e-5. Over the
methods and layers of EfficientNet-Lite0, maps below this share had a few cells left that a ReLU did not remove.
"""
SIGNAL = 0.5
"""A map is mostly noise if less than this share of its variance is common to both halves of its samples."""
ODDS, EVEN = 3.0, 0.97
"""A network has no preference if the odds of its top class are below `ODDS` times those of equal classes, and the
entropy of the probabilities is above `EVEN` of the largest possible one. For two classes, that is 60%."""
UNDECIDED = 0.1
"""Independent labels have no preference if all probabilities are this close to one half."""

CONTROLS = {"random": "random maps", "edge": "edge maps", "center": "a centered blob"}
"""The controls in sentences."""


@dataclass(frozen=True)
class Facts:
    """What is known about one map. The defaults mean that nothing is known against it.

    `total` is the size of the map in the unit of the `score`: the sum of its magnitudes, or its largest one if the
    values do not add up (`adds_up`). `score` is the score of the target, or the standard deviation of all scores if it
    is larger. `done` of `planned` `samples` (their name) were computed; `stability` is the correlation of the maps of
    two halves of them. `probabilities` are those of the network, of exclusive classes or not. `comparisons` are the
    results of the tests by metric and control ("better", "worse", "level", "few", "unknown"), adjusted for their
    number. `correlation` is that with the map of the runner-up class; `depends_on_weights` the result of the
    randomization test. `caution` is the warning of the method.
    """

    ALIKE: ClassVar[float] = 0.99
    PARTLY: ClassVar[float] = 0.5
    """Rank correlation with the runner-up's map above which a map hardly, or only partly, depends on the class."""

    is_control: bool = False
    has_planes: bool = False
    is_finite: bool = True
    range: tuple[float, float] = (0.0, 1.0)
    total: float | None = None
    adds_up: bool = True
    score: float | None = None
    unit: str = "logit"
    done: int = 1
    planned: int = 1
    samples: str = "samples"
    stability: float | None = None
    probabilities: Sequence[float] = field(default=(), repr=False)
    exclusive: bool = True
    comparisons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reads_class: bool = True
    correlation: float | None = None
    depends_on_weights: bool | None = None
    caution: str = ""

    @property
    def share(self) -> float | None:
        """The size of the map as a share of the score, or None if it is unknown."""
        if self.total is None or not self.score or not math.isfinite(self.total) or not math.isfinite(self.score):
            return None
        return self.total / abs(self.score)

    def with_probabilities(self, probabilities: Sequence[float], score: str | None) -> Facts:
        """Return a copy with the probabilities of a network, whose scores are converted as `score` says.

        The classes are exclusive if the probabilities sum to 1. Those of a sigmoid are not, whatever their sum.
        """
        exclusive = score != "sigmoid" and abs(sum(probabilities) - 1) < ROUNDING
        return replace(self, probabilities=probabilities, exclusive=exclusive)

    @property
    def class_dependence(self) -> str:
        """How the map depends on the class: "hardly", "partly", "depends", or an empty string if it is unknown."""
        r = self.correlation
        if not self.reads_class or r is None or math.isnan(r):
            return ""
        return "hardly" if r > self.ALIKE else "partly" if r > self.PARTLY else "depends"

    @property
    def is_stopped(self) -> bool:
        """Whether some samples are missing."""
        return self.done < self.planned

    @property
    def is_noisy(self) -> bool:
        """Whether most of the variance of the map is noise: its share 1 - 2r / (1 + r) for halves of correlation r."""
        r = self.stability
        return r is not None and (math.isnan(r) or r <= 0 or 2 * r / (1 + r) < SIGNAL)

    @property
    def results(self) -> dict[str, str]:
        """The comparison with each control over all metrics: "better", "worse", "divided", "level", "few", "unknown".

        Better: better by one metric or more, and worse by none.
        """
        by_control: dict[str, set[str]] = {}
        for each in self.comparisons.values():
            for control, result in each.items():
                by_control.setdefault(control, set()).add(result)
        order = ("better", "worse", "few", "level", "unknown")
        first = {control: next(each for each in order if each in found) for control, found in by_control.items()}
        divided = [control for control, found in by_control.items() if {"better", "worse"} <= found]
        return first | dict.fromkeys(divided, "divided")

    @property
    def is_tested(self) -> bool:
        """Whether a comparison with a control has a result."""
        return any(result != "unknown" for result in self.results.values())


def has_preference(probabilities: Sequence[float], exclusive: bool = True) -> bool | None:
    """Return whether a network prefers some class (see `ODDS`, `EVEN`, `UNDECIDED`), None if it is unknown."""
    if not probabilities or not all(math.isfinite(p) for p in probabilities):
        return None
    if not exclusive or len(probabilities) == 1:
        return any(abs(p - 0.5) > UNDECIDED for p in probabilities)
    count, total = len(probabilities), sum(probabilities)
    shares = [p / total for p in probabilities] if total > 0 else [1 / count] * count
    top = max(shares)
    entropy = -sum(p * math.log(p) for p in shares if p > 0) / math.log(count)
    return top * (count - 1) >= ODDS * (1 - top) or entropy <= EVEN
