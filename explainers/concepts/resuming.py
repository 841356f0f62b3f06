"""Results that continue an earlier one that was stopped."""

from __future__ import annotations

from typing import Any

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
