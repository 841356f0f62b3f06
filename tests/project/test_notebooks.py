"""The notebooks of docs/notebooks run without errors, and are stored with the outputs of all their cells.

`python -m tests.project.test_notebooks` runs them and stores their outputs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import saliscope
from saliscope.__main__ import main
from saliscope.cli import commands

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 1_500_000
"""Size of a notebook with its outputs."""


def run(path: Path, folder: Path, images: int | None = None) -> dict[str, Any]:
    """Run all cells in a folder that has the example images, and return the notebook with their outputs.

    `images` limits a notebook that explains all of them to the first few.
    """
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    (folder / "images").mkdir()
    for image in sorted((ROOT / "assets" / "examples").iterdir())[:images]:
        (folder / "images" / image.name).symlink_to(image)
    names: dict[str, Any] = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(cells, 1):
            cell["execution_count"], cell["outputs"] = number, _run_cell("".join(cell["source"]), names, number)
    return notebook


def run_command(arguments: list[str], **_: Any) -> None:
    """Run `python -m saliscope ...` as `subprocess.run` with `capture_output`, in this process and without workers."""
    assert arguments[:3] == [sys.executable, "-m", "saliscope"]
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as end:
        main([*arguments[3:], *(["--workers", "0"] if arguments[3] == "explain" else [])])
    assert not end.value.code, arguments


def _run_cell(code: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run a cell as a notebook does: what it prints, then the value of its last expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data = {name: text.splitlines(True) for name, text in _texts(value).items()}
        outputs.append({"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}})
    return outputs


def _texts(value: Any) -> dict[str, str]:
    found = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_"):
        found["text/html"] = value._repr_html_()
    elif hasattr(value, "_repr_png_"):  # an image of Pillow, whose repr has its address in memory
        found = {"text/plain": "an image", "image/png": base64.b64encode(value._repr_png_()).decode("ascii")}
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_stored_with_its_outputs(path, tmp_path, monkeypatch):
    """If outputs are missing, run `python -m tests.project.test_notebooks`.

    The kinds of outputs do not depend on the size of the images, so the network runs at half of its resolution.
    Commands run in this process, because torch takes seconds to start.
    """
    monkeypatch.setattr(saliscope, "load_model", functools.partial(saliscope.load_model, size=112))
    monkeypatch.setattr(commands, "_keep_freed_memory", lambda: None)  # it would affect all tests in this process
    monkeypatch.setattr(subprocess, "run", run_command)
    stored = json.loads(path.read_text(encoding="utf-8"))
    found = run(path, tmp_path, images=3 if "data_sets" in path.stem else None)
    assert [_kinds(cell) for cell in stored["cells"]] == [_kinds(cell) for cell in found["cells"]]
    assert path.stat().st_size < MOST_BYTES
    assert str(ROOT) not in path.read_text(encoding="utf-8")
    text = " ".join("".join(cell["source"]) for cell in stored["cells"] if cell["cell_type"] == "markdown")
    assert text.startswith("# ")


def _kinds(cell: dict[str, Any]) -> list[list[str]]:
    """Return the types of a cell's outputs; their numbers differ between machines."""
    return [sorted(each.get("data", {"stream": ""})) for each in cell.get("outputs", [])]


def test_every_notebook_is_listed_in_the_documents():
    listed = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 5
    assert [path.name for path in NOTEBOOKS if f"({path.name})" not in listed] == []


if __name__ == "__main__":
    import tempfile

    os.environ["OMP_NUM_THREADS"] = "1"
    for each in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(run(each, Path(folder)), indent=1, ensure_ascii=False) + "\n"
        each.write_text(text, encoding="utf-8")
