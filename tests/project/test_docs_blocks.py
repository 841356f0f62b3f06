"""Every Python block of README.md and docs/ runs as it is written, after the earlier ones of its page.

A block that needs what is not there is skipped, and its name and its need are in the summary of the tests.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

import saliscope
from saliscope.cli import commands
from tests.support.documents import PAGES, ROOT, Block, Reader, blocks

BLOCKS = [block for page in PAGES for block in blocks(page)]
SMALLER = ("metrics.md-2", "experiments.md")
"""Blocks for which the built-in network runs at half of its resolution: no number of theirs is in the text."""
SLOW = {"metrics.md-1"}
ReadPage = Callable[[Path], Reader]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadPage]:
    """Return the reader of a page, always the same one."""
    known: dict[Path, Reader] = {}

    def reader(page: Path) -> Reader:
        return known.setdefault(page, Reader(tmp_path_factory.mktemp(page.stem), make_folder))

    yield reader
    assert not torch.distributed.is_initialized(), "the process group of docs/training.md would affect other tests"


def make_folder(name: str) -> None:
    """Write run/ with the first command of docs/data_sets.md, with five of the example images as `images/`."""
    assert name == "run/"
    Path("images").mkdir()
    for image in ("alp", "brushes", "cat", "coffee", "dog"):
        os.symlink(ROOT / "assets" / "examples" / f"{image}.jpg", f"images/{image}.jpg")
    commands.app(["explain", "images/", "--out", "run", "--workers", "0"], standalone_mode=False)


@pytest.mark.parametrize(
    "block", [pytest.param(each, id=str(each), marks=[pytest.mark.slow] * (str(each) in SLOW)) for each in BLOCKS]
)
def test_a_block_runs(block: Block, readers: ReadPage, monkeypatch: pytest.MonkeyPatch) -> None:
    if block.missing:
        pytest.skip(f"{block} needs {', '.join(block.missing)}")
    monkeypatch.setenv("SALISCOPE_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(readers(block.page).folder / "hub"))
    monkeypatch.setattr(commands, "_keep_freed_memory", lambda: None)  # it would affect all tests in this process
    if str(block).startswith(SMALLER):
        monkeypatch.setattr(saliscope, "load_model", functools.partial(saliscope.load_model, size=112))

    printed = readers(block.page).run(block)

    check_result(block, readers(block.page), printed)


def check_result(block: Block, reader: Reader, printed: str) -> None:
    """Check what the text around a block, or a comment in it, says."""
    names = reader.names
    if str(block) in ("README.md-1", "training.md-1"):
        assert printed.splitlines() == re.findall(r"^print\(.*\)\s+# (.*)$", block.code, re.M)
    if str(block) == "README.md-1":
        assert (reader.folder / "coffee.png").stat().st_size > 10_000
    elif str(block) == "metrics.md-1":  # the last digit depends on the machine
        found, written = (re.findall(r"(\w+) (0\.\d+): (.*)", each) for each in (printed, block.code))
        assert found and [(name, words) for name, _, words in found] == [(name, words) for name, _, words in written]
        assert [float(n) for _, n, _ in found] == pytest.approx([float(n) for _, n, _ in written], abs=0.002)
    elif str(block) == "experiments.md-1":
        assert "espresso" in printed
    elif str(block) == "experiments.md-3":
        assert not names["before"].equal(names["after"])
    elif block.page.name == "data_sets.md":
        assert names["paths"] == ["alp.jpg", "brushes.jpg", "cat.jpg", "coffee.jpg", "dog.jpg"]
    elif str(block) == "your_model.md-3":
        assert printed.strip() in ("fox", "owl", "elk") and names["model"].notes == ()
    elif str(block) == "your_model.md-4":
        assert names["explanation"].score == names["model"].score_kind == "sigmoid"
        assert names["evaluation"].unit("deletion") == "mean sigmoid probability"
    elif str(block) == "your_model.md-10":
        assert names["images"].shape == (1, 13, 64, 64)
    elif str(block) == "your_model.md-13":
        assert names["explanation"].map.shape == (1, 8, 16, 24)
        with Image.open(reader.folder / "map.gif") as drawn:
            assert drawn.n_frames == 8 and drawn.size == (48, 32)


def test_needs_name_a_package_a_folder_or_what_is_not_here() -> None:
    """Only such blocks may be skipped: those of packages outside a plain installation, downloads and a server."""
    needs = {need for block in BLOCKS for need in block.needs}
    optional = {"duckdb", "pandas", "polars", "datasets", "transformers", "open_clip"}
    assert needs == {"run/", "a running page", "a download of weights"} | optional
    assert len([block for block in BLOCKS if not block.needs]) >= 20
    # No Python block has another mark, which would hide it from the tests.
    for page in PAGES:
        assert len(re.findall(r"^ *```(?:python|py)\b", page.read_text(encoding="utf-8"), re.M)) == len(blocks(page))


def test_a_broken_block_fails_and_a_missing_package_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n# own.py\nvalue = 3\n```\n<!-- needs: no_such_package, a server -->\n```python\n1 / 0\n```\n"
        "```python\nfrom own import value\nprint(value + undefined)\n```\n```python\nprint(value)\n```\n"
    )
    file, needing, broken, good = blocks(page)
    assert file.file == "own.py" and needing.missing == ["no_such_package", "a server"]
    reader = Reader(tmp_path, make_folder)
    with pytest.raises(NameError, match="undefined"):
        reader.run(broken)
    reader.printed[3] = ""
    assert reader.run(good) == "3\n"
