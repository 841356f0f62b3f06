"""Compare the names, signatures and types of the public API with public_api.txt and tests/data/typed_calls.py.

After an intended change, update the list: `python -m tests.explainers.contract.test_public_api`.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_origin

import pytest

import explainers

KEPT = Path(__file__).with_name("public_api.txt")


def described(name: str, value: object) -> list[str]:
    """Return a function with its signature, or a class with the signatures of its public methods and properties.

    Those that a result inherits together with its fields are included. Tooltips of options are not part of a signature.
    """
    if get_origin(value) is Literal:
        return [f"{name}: Literal"]
    if not inspect.isclass(value):
        return [f"{name}{inspect.signature(value)}"] if callable(value) else [f"{name}: {type(value).__name__}"]
    lines = [f"class {name}" if issubclass(value, Exception) else f"class {name}{inspect.signature(value)}"]
    fields = getattr(value, "__dataclass_fields__", {})
    bases = [
        each for each in value.__mro__[::-1] if each is value or fields.keys() & vars(each).get("__annotations__", {})
    ]
    for member, found in sorted({name: each for base in bases for name, each in vars(base).items()}.items()):
        if member.startswith("_") and member != "__call__":
            continue
        if isinstance(found, property):
            lines.append(f"    {member}: property")
        elif inspect.isfunction(found):
            lines.append(f"    {member}{inspect.signature(found)}")
    return lines


def without_tooltips(text: str) -> str:
    """Remove the tooltips and the quotes around them, which depend on apostrophes in a tooltip."""
    text = re.sub(r", help=('[^']*'|\"[^\"]*\")", "", text).replace("\\", "").replace('"', "'")
    return re.sub(r"Annotated\[bool, '.*?'\]", "Annotated[bool]", text)


def public_api() -> list[str]:
    lines = [line for name in sorted(explainers.__all__) for line in described(name, getattr(explainers, name))]
    return [*map(without_tooltips, lines), "", "METHODS in order: " + " ".join(explainers.METHODS)]


def test_names_and_signatures_are_those_of_the_list() -> None:
    """After an intended change, run `python -m tests.explainers.contract.test_public_api` and edit CHANGELOG.md."""
    assert public_api() == without_tooltips(KEPT.read_text(encoding="utf-8")).splitlines()


# Types: basedpyright is pyright in a package without downloads at run time

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "tests" / "data" / "typed_calls.py"


def test_pyright_accepts_correct_calls_and_rejects_wrong_ones(tmp_path: Path) -> None:
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed (pip install -e '.[check]')")
    settings = {
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "extraPaths": [str(ROOT)],
    }
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "-p", str(config), "--pythonpath", sys.executable, str(SAMPLE)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr


if __name__ == "__main__":
    KEPT.write_text("\n".join(public_api()) + "\n", encoding="utf-8")
