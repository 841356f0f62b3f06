"""`check_explainer`: the library's contract as small named checks of any `f(model, images, target=None, **options)`.

The checks are in results.py and robustness.py. Each returns (figure, sentence), or raises `Fail` or, where it does not
apply, `Skip`; any other exception is a failure with its own message.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from explainers.checks import results, robustness  # noqa: F401  they enter the checks
from explainers.checks.context import CHECKS, Context, Fail, Outcome, Skip
from explainers.errors import BadOption, no_module
from explainers.registry import METHODS


@dataclass(frozen=True)
class Check:
    """The result of one check: `passed` is None where it was skipped; `figure` is the measured number, if any."""

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
    """All checks of one callable; true if none failed."""

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
    """Check a callable of the form `f(model, images, target=None, **options)` against the contract of the library.

    `model` defaults to a tiny residual network; a given one is copied and not used itself. `images` `[N, C, H, W]` with
    N >= 3 and height unequal to width default to noise. `options` are passed to every call.

    Returns  a `Report`, true if nothing failed; its repr is a table of check, verdict, figure and sentence

    Example
        >>> bool(check_explainer(grad_cam))
        True
    """
    if model is not None and not isinstance(model, nn.Module):
        raise no_module(model)
    if "forward" in options:
        raise BadOption(
            "check_explainer copies the model, which forward= would not run. Give a module that runs it so."
        )
    began = time.perf_counter()
    known = METHODS.get(getattr(function, "__name__", ""))
    if known is not None and known.function is function:
        function = known  # the plain function of a method has its declaration too
    context = Context(function, model, images, options)
    done: list[Check] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, check in CHECKS.items():
            if done and done[0].passed is False:
                done.append(Check(name, None, "The first check already failed."))
                continue
            done.append(_run(name, check, context))
    return Report(context.name, tuple(done), time.perf_counter() - began)


def _run(name: str, check: Callable[[Context], Outcome], context: Context) -> Check:
    try:
        figure, sentence = check(context)
    except Skip as skipped:
        return Check(name, None, str(skipped))
    except Fail as failed:
        return Check(name, False, str(failed), failed.figure)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return Check(name, True, sentence, figure)
