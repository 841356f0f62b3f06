"""The notebooks of docs/notebooks run without errors, and are stored with the outputs of all their cells.

`python -m tests.project.test_notebooks` runs them, or those that are named, and stores their outputs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import explainers
import saliscope
from saliscope.__main__ import main
from tests.project.test_docs import dead_links

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST, MOST_OF_ALL = 300_000, 3_000_000
"""The largest size of one notebook, and of all together, in bytes."""
SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL)
SMALLER = {
    "2_which_method": {"metrics=[": "steps=4, metrics=[", "target=shepherd)": r"target=shepherd, order=\"logit\")"},
    "3_your_model": {"range(120)": "range(40)", "make_images(300)": "make_images(100)"},
    "5_data_sets": {r"\"alp\", \"brushes\", ": "", r"\"goldfish\", \"hopper\", \"macaw\", ": ""},
    "6_detection": {"range(16)": "range(10)"},
    "9_shortcut": {
        "range(150)": "range(40)",
        "make_images(400)": "make_images(100)",
        "(classes == number).nonzero()[:40, 0]": "(classes == number).nonzero()[:4, 0]",
        "(classes == 0).nonzero()[:40, 0]": "(classes == 0).nonzero()[:4, 0]",
        "make_images(600,": "make_images(200,",
    },
    "10_text": {"range(150)": "range(10)"},
    "11_videos": {"range(120)": "range(4)"},
    "12_own_model_page": {"range(120)": "range(5)"},
    "13_training_gradients": {"steps=400": "steps=40"},
    "14_two_checkpoints": {"*head), 120,": "*head), 60,", "train(third, 120,": "train(third, 20,"},
    "15_million_images": {"range(90)": "range(60)", "make_images(300)": "make_images(120)", "images=40": "images=8"},
    "7_segmentation": {"range(200)": "range(20)"},
    "8_vision_transformer": {"range(120)": "range(12)", "make_images(200)": "make_images(20)"},
}
"""Shorter training and fewer images for the tests. The detector of notebook 6 must find objects, and the checkpoints of
notebook 14 must differ.
"""


def run(path: Path, folder: Path, smaller: dict[str, str] | None = None) -> dict[str, Any]:
    """Run all cells in an empty folder, and return the notebook with their outputs; `smaller` replaces code."""
    text = path.read_text(encoding="utf-8")
    for code, other in (smaller or {}).items():
        assert text.count(code) == 1, f"{path.name} has no {code}"
        text = text.replace(code, other)
    notebook: dict[str, Any] = json.loads(text)
    names: dict[str, Any] = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)  # as a notebook finds the modules next to it
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(cells, 1):
            cell["execution_count"], cell["outputs"] = number, _run_cell("".join(cell["source"]), names, number)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]  # another notebook or test may have a module of the same name
    return notebook


def run_command(arguments: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m saliscope ...` as `subprocess.run` with `capture_output`, in this process and without workers."""
    assert arguments[:3] == [sys.executable, "-m", "saliscope"]
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as end:
        main([*arguments[3:], *(["--workers", "0"] if arguments[3] == "explain" else [])])
    code = end.value.code
    return subprocess.CompletedProcess(arguments, int(code or 0), output.getvalue(), errors.getvalue())


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
    """Return what a notebook stores of a value: its text, and HTML or a JPEG file in base64.

    The HTML of a map keeps its static image and what is said about it. Its scripts and numbers would be twice as large.
    """
    found: dict[str, Any] = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_"):
        found |= {"text/html": SCRIPT.sub("", value._repr_html_())}
    elif hasattr(value, "_repr_jpeg_"):  # an image of Pillow, whose repr has its address in memory
        found = {"text/plain": "an image", "image/jpeg": base64.b64encode(value._repr_jpeg_()).decode("ascii")}
    return found


@pytest.mark.sample
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_stored_with_its_outputs(path, tmp_path, monkeypatch):
    """It runs in an empty folder. If outputs are missing, run `python -m tests.project.test_notebooks`.

    The kinds of outputs do not depend on the size of the images: the built-in network runs at half of its resolution.
    Commands run in this process, because torch takes seconds to start.
    """
    monkeypatch.setattr(saliscope, "load_model", functools.partial(saliscope.load_model, size=112))
    monkeypatch.setattr(explainers, "keep_freed_memory", lambda: None)  # it would affect all tests in this process
    monkeypatch.setattr(subprocess, "run", run_command)
    stored, found = json.loads(path.read_text(encoding="utf-8")), run(path, tmp_path, SMALLER.get(path.stem))
    assert [kinds(cell) for cell in stored["cells"]] == [kinds(cell) for cell in found["cells"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_all_outputs_and_no_script(path):
    """Hosts show stored outputs without scripts, and photos are stored as JPEG."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert str(ROOT) not in path.read_text(encoding="utf-8")
    assert f"({path.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")
    for output in (output for cell in stored["cells"] for output in cell.get("outputs", [])):
        data = output.get("data", {})
        html = "".join(data.get("text/html", ""))
        assert "<script" not in html and set(re.findall(r"data:(image/\w+)", html)) <= {"image/jpeg", "image/webp"}
        assert "text/plain" in data or output["output_type"] == "stream", "an error"
    assert path.stat().st_size <= MOST
    counts = [cell["execution_count"] for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_the_notebooks_together_are_small() -> None:
    assert sum(path.stat().st_size for path in NOTEBOOKS) <= MOST_OF_ALL


def test_linked_files_and_headings_exist() -> None:
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert dead_links(path, text) == []


def kinds(cell: dict[str, Any]) -> list[list[str]]:
    """Return the types of a cell's outputs; their numbers differ between machines."""
    return [sorted(each.get("data", {"stream": ""})) for each in cell.get("outputs", [])]


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(2)
    for each in [path for path in NOTEBOOKS if not sys.argv[1:] or path.stem in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(run(each, Path(folder)), indent=1, ensure_ascii=False) + "\n"
        each.write_text(text, encoding="utf-8")
