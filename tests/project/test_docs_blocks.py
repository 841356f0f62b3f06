"""Every Python block of README.md and docs/ runs as it is written, after the earlier ones of its page.

A block whose first line is `# NAME.py` is a file with this name. `<!-- needs: duckdb, run/, a download -->` before a
block lists what an installation may not have: packages, folders that commands of the same page write, and others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import explainers
from saliscope.cli import commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES.remove(ROOT / "docs" / "recipes.md")  # test_recipes.py and others run its blocks
SLOW = ("coming_from", "concepts", "data_sets", "experiments", "metrics")
"""Pages with many passes of large networks: their blocks run with --slow, and by `make docs`."""
BLOCK = re.compile(r"^(?:<!-- needs: (.*?) -->\n)?```python\n(?:# (\w+\.py)\n)?(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A Python block: its page and number on the page, its code, its name if it is a file, and what it needs."""

    name: str
    code: str
    file: str
    needs: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """What the block needs and this installation does not have."""
        there = {need for need in self.needs if need.isidentifier() and importlib.util.find_spec(need)} | {"run/"}
        return [need for need in self.needs if need not in there]


def blocks(page: Path) -> list[Block]:
    """Return the Python blocks of a page."""
    return [
        Block(f"{page.name}-{number}", code, file, tuple(filter(None, needs.split(", "))))
        for number, (needs, file, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
    ]


def make_run() -> None:
    """Write run/ with the first command of docs/data_sets.md, with three of the example images as `images/`."""
    Path("images").mkdir()
    for image in ("cat", "coffee", "dog"):
        os.symlink(ROOT / "assets" / "examples" / f"{image}.jpg", f"images/{image}.jpg")
    commands.app(["explain", "images/", "--out", "run", "--workers", "0"], standalone_mode=False)


def run(block: Block, names: dict[str, Any]) -> str:
    """Run a block in the working directory, as somebody who copies it, and return what it prints."""
    if "run/" in block.needs and not Path("run").exists():
        make_run()
    if block.file:
        Path(block.file).write_text(block.code, encoding="utf-8")
        sys.modules.pop(Path(block.file).stem, None)
        return ""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(block.code, block.name, "exec"), names)
    return output.getvalue()


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem in SLOW)) for p in PAGES if blocks(p)],
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that fails is in the traceback."""
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr(explainers, "keep_freed_memory", lambda: None)  # it would affect all tests in this process
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for name in {Path(block.file).stem for block in blocks(page) if block.file}:
        monkeypatch.setitem(sys.modules, name, None)  # its former value comes back after the test
        del sys.modules[name]
    for block in blocks(page):
        if block.missing:
            continue
        check_result(block, run(block, names))


def check_result(block: Block, printed: str) -> None:
    """Check what the text around a block, or a comment in it, says."""
    if block.name in ("README.md-1", "training.md-1"):
        assert printed.splitlines() == re.findall(r"^print\(.*\)\s+# (.*)$", block.code, re.M)
    elif block.name == "metrics.md-1":  # the last digit depends on the machine
        found, written = (re.findall(r"(\w+) (0\.\d+): (.*)", each) for each in (printed, block.code))
        assert found and [(name, words) for name, _, words in found] == [(name, words) for name, _, words in written]
        assert [float(n) for _, n, _ in found] == pytest.approx([float(n) for _, n, _ in written], abs=0.002)
    elif block.name == "your_model.md-13":
        with Image.open("map.gif") as drawn:
            assert drawn.n_frames == 8 and drawn.size == (48, 32)


def test_needs_name_a_package_a_folder_or_what_is_not_here() -> None:
    """Only such blocks may be skipped: those of packages outside a plain installation, downloads and a server."""
    needs = {need for page in PAGES for block in blocks(page) for need in block.needs}
    optional = {"duckdb", "pandas", "polars", "datasets", "transformers", "open_clip"}
    optional |= {"captum", "pytorch_grad_cam", "torchcam", "zennit"}
    assert needs == {"run/", "a running page", "a download of weights"} | optional
    # No Python block has another mark, which would hide it from the tests.
    for page in PAGES:
        assert len(re.findall(r"^ *```(?:python|py)\b", page.read_text(encoding="utf-8"), re.M)) == len(blocks(page))
