"""check_explainer: all the library's promises, as small named checks on any `f(model, images, target=None, **options)`.

The checks stand in results.py and robustness.py. Each measures and returns (figure, sentence), or raises `Fail` where
the promise is broken and `Skip` where it does not apply; whatever else is raised is a failure, told as it is.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from explainers.checks import results, robustness  # noqa: F401  they fill CHECKS
from explainers.checks.context import CHECKS, Fail, Outcome, Skip, Trial
from explainers.registry import METHODS


@dataclass(frozen=True)
class Check:
    """One promise: `passed` is None where it was skipped; `figure` is what was measured, where it is a number."""

    name: str
    passed: bool | None
    sentence: str
    figure: float | None = None

    def __repr__(self) -> str:
        word = {True: "ok  ", False: "FAIL", None: "skip"}[self.passed]
        figure = "" if self.figure is None else f"{self.figure:.2g}"
        return f"{word}  {self.name:<26} {figure:>8}  {self.sentence}"


@dataclass(frozen=True)
class Report:
    """All checks of one callable; true where none failed."""

    name: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.passed is False)

    def __bool__(self) -> bool:
        return not self.failures

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def __repr__(self) -> str:
        passed, skipped = (sum(check.passed is word for check in self.checks) for word in (True, None))
        head = f"{self.name}: {passed} passed, {len(self.failures)} failed, {skipped} skipped in {self.seconds:.1f} s"
        return "\n".join([head, *map(repr, self.checks)])


def check_explainer(
    function: Callable[..., Tensor], *, model: nn.Module | None = None, images: Tensor | None = None, **options: Any
) -> Report:
    """Check every promise of the library on a callable of the form `f(model, images, target=None, **options)`.

    `model` defaults to a tiny residual network; a given one is copied, never used itself. `images` `[N, C, H, W]` with
    N >= 3 and height unequal to width default to noise that fits. `options` are handed to every call.

    Returns  a `Report`, true where nothing failed; its repr is a table of check, verdict, figure and sentence.

    Example
        >>> bool(check_explainer(grad_cam))
        True
    """
    began = time.perf_counter()
    known = METHODS.get(getattr(function, "__name__", ""))
    if known is not None and known.function is function:
        function = known  # what the method declares of itself counts, whichever way it is handed over
    trial = Trial(function, model, images, options)
    done: list[Check] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, check in CHECKS.items():
            if done and done[0].passed is False:
                done.append(Check(name, None, "The plain call already failed."))
                continue
            done.append(_run(name, check, trial))
    return Report(trial.name, tuple(done), time.perf_counter() - began)


def _run(name: str, check: Callable[[Trial], Outcome], trial: Trial) -> Check:
    try:
        figure, sentence = check(trial)
    except Skip as skipped:
        return Check(name, None, str(skipped))
    except Fail as failed:
        return Check(name, False, str(failed), failed.figure)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return Check(name, True, sentence, figure)
