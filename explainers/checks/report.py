"""`check_explainer`: check any `f(model, images, target=None, **options)` against the contract of the library.

The checks are in results.py and robustness.py. Each returns (number, message), raises `Fail`, or raises `Skip` if it
does not apply. Any other exception is a failure with its own message.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from explainers.checks import results, robustness  # noqa: F401 (importing them registers the checks)
from explainers.checks.context import CHECKS, Context, Fail, Skip
from explainers.errors import BadOption, no_module
from explainers.registry import METHODS


@dataclass(frozen=True)
class Check:
    """The result of one check: `passed` is None if it was skipped; `figure` is the measured value, if any."""

    name: str
    passed: bool | None
    sentence: str
    figure: float | None = None

    def __repr__(self) -> str:
        word = {True: "ok  ", False: "FAIL", None: "skip"}[self.passed]
        figure = "" if self.figure is None else f"{self.figure:.2g}"
        return f"{word}  {self.name:<32} {figure:>8}  {self.sentence}"


@dataclass(frozen=True)
class Report:
    """The results of all checks of one callable; true if none failed."""

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

    `model` defaults to a tiny residual network; a given model is copied and not modified. `images` `[N, C, H, W]`, with
    N >= 3 and different height and width, default to noise. `options` are passed to every call.

    Returns  a `Report`, true if no check failed; its repr is a table with the check, verdict, number and message

    Example
        >>> bool(check_explainer(grad_cam))
        True
    """
    if model is not None and not isinstance(model, nn.Module):
        raise no_module(model)
    if "forward" in options:
        raise BadOption(
            "forward= is not supported, because check_explainer copies the model and forward= would run the original. "
            "Give a module whose forward takes only images."
        )
    start = time.perf_counter()
    known = METHODS.get(getattr(function, "__name__", ""))
    if known is not None and known.function is function:
        function = known  # use the declaration of the method, which its plain function does not have
    context = Context(function, model, images, options)
    done: list[Check] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, check in CHECKS.items():
            try:
                if done and done[0].passed is False:
                    raise Skip("Skipped because the first check failed.")
                number, message = check(context, context.model(), context.images())
                done.append(Check(name, True, message, number))
            except Skip as skipped:
                done.append(Check(name, None, str(skipped)))
            except Fail as failed:
                done.append(Check(name, False, str(failed), failed.figure))
            except Exception as error:
                message = " ".join(str(error).split())[:300]
                done.append(Check(name, False, f"{type(error).__name__}: {message}"))
    return Report(context.name, tuple(done), time.perf_counter() - start)
