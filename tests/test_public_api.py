"""What users import stays name for name and signature for signature: the package against a list kept beside this test.

`python -m tests.test_public_api` writes the list anew, after a change that is meant.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import explainers

KEPT = Path(__file__).with_name("public_api.txt")


def described(name: str, value: object) -> list[str]:
    """A function with its signature; a class with its own, and those of its public methods and properties.

    The words of an option's tooltip are no part of a signature.
    """
    if not inspect.isclass(value):
        return [f"{name}{inspect.signature(value)}"] if callable(value) else [f"{name}: {type(value).__name__}"]
    lines = [f"class {name}" if issubclass(value, Exception) else f"class {name}{inspect.signature(value)}"]
    for member, found in sorted(vars(value).items()):
        if member.startswith("_") and member != "__call__":
            continue
        if isinstance(found, property):
            lines.append(f"    {member}: property")
        elif inspect.isfunction(found):
            lines.append(f"    {member}{inspect.signature(found)}")
    return lines


def without_tooltips(text: str) -> str:
    """Neither the tooltips, nor the quotes around them, which an apostrophe in a tooltip changes."""
    text = re.sub(r", help=('[^']*'|\"[^\"]*\")", "", text).replace("\\", "").replace('"', "'")
    return re.sub(r"Annotated\[bool, '.*?'\]", "Annotated[bool]", text)


def public_api() -> list[str]:
    lines = [line for name in sorted(explainers.__all__) for line in described(name, getattr(explainers, name))]
    return [*map(without_tooltips, lines), "", "METHODS in order: " + " ".join(explainers.METHODS)]


def test_names_and_signatures_are_those_of_the_list() -> None:
    """When a change is meant: `python -m tests.test_public_api`, and a line in CHANGELOG.md."""
    assert public_api() == without_tooltips(KEPT.read_text(encoding="utf-8")).splitlines()


if __name__ == "__main__":
    KEPT.write_text("\n".join(public_api()) + "\n", encoding="utf-8")
