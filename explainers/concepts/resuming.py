"""Long fits: how they report, and results that continue an earlier one that was stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from explainers.call.current import outside_call
from explainers.call.loop import Partial, Progress, check_progress
from explainers.errors import BadOption, check_type


def check_resume(resume: Any, kind: type, function: str, settings: dict[str, Any]) -> None:
    """Check that `resume` is None, or a result of the function with the same settings.

    Errors   BadOption, WrongType
    """
    if resume is None:
        return
    check_type("resume", resume, kind, f"a result of {function}")
    other = [name for name, value in settings.items() if resume.state["settings"][name] != value]
    if other:
        raise BadOption(
            f"The result to continue was computed with another {' and '.join(other)}. Give the same arguments."
        )


def report_part(progress: Progress | None, start: float = 0.0, end: float = 1.0) -> Progress | None:
    """Return a function that reports a part of the work, from the fraction `start` of the whole to `end`.

    The caller's function, if there is one, runs outside of this call.

    Errors   BadOption
    """
    check_progress(progress)
    if progress is None:
        return None

    def report(partial: Partial) -> Any:
        map = partial.map if partial.map is not None and partial.map.numel() else None
        with outside_call():
            return progress(replace(partial, fraction=start + (end - start) * partial.fraction, map=map))

    return report
