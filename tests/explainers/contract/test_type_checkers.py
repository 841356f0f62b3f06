"""Correct calls of the public API pass mypy and pyright, and wrong ones fail: tests/data/typed_calls.py.

basedpyright is pyright in a package without downloads at run time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "tests" / "data" / "typed_calls.py"


def check(module: str, *arguments: str) -> None:
    """Run a type checker on the sample and show its errors."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (pip install -e '.[check]')")
    command = [sys.executable, "-m", module, *arguments, str(SAMPLE)]
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, env={**os.environ, "MYPYPATH": str(ROOT)}
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_pyright_accepts_correct_calls_and_rejects_wrong_ones(tmp_path: Path) -> None:
    settings = {
        "typeCheckingMode": "standard",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "extraPaths": [str(ROOT)],
    }
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings), encoding="utf-8")
    check("basedpyright", "-p", str(config), "--pythonpath", sys.executable)


@pytest.mark.slow
def test_mypy_accepts_correct_calls_and_rejects_wrong_ones(tmp_path: Path) -> None:
    options = ("--config-file=", "--strict", "--follow-imports=silent", "--explicit-package-bases")
    check("mypy", *options, "--cache-dir", str(tmp_path))
