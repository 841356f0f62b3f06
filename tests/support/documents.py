"""The Python blocks of a document, run in order in an empty folder, as a reader copies them.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- needs: (.*?) -->\n)?```python\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Block:
    """A Python block: its page, its number on the page from 1, its code, and what it needs."""

    page: Path
    number: int
    code: str
    needs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}-{self.number}"

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if it is one."""
        found = FILE.match(self.code)
        return found[1] if found else None

    @property
    def packages(self) -> list[str]:
        return [need for need in self.needs if need.isidentifier()]

    @property
    def folders(self) -> list[str]:
        return [need for need in self.needs if need.endswith("/")]

    @property
    def missing(self) -> list[str]:
        """What the block needs and this installation does not have."""
        others = [need for need in self.needs if need not in (*self.packages, *self.folders)]
        return [name for name in self.packages if importlib.util.find_spec(name) is None] + others


def blocks(page: Path) -> list[Block]:
    """Return the Python blocks of a page."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [
        Block(page, number, code, tuple(filter(None, needs.split(", "))))
        for number, (needs, code) in enumerate(found, 1)
    ]


@dataclass
class Reader:
    """Somebody who copies the blocks of a page in order, in one folder and one interpreter."""

    folder: Path
    make_folder: Callable[[str], None]
    """Makes a folder, such as "run/", in the working directory."""
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: dict[int, str] = field(default_factory=dict)

    def run(self, block: Block) -> str:
        """Run a block after the earlier ones of its page, each once, and return what it prints."""
        with self._in_folder():
            for each in blocks(block.page)[: block.number]:
                if each.number not in self.printed and (each == block or not each.missing):
                    self.printed[each.number] = self._run(each)
        return self.printed[block.number]

    def _run(self, block: Block) -> str:
        for folder in block.folders:
            if not Path(folder).exists():
                self.make_folder(folder)
        if block.file:
            Path(block.file).write_text(block.code, encoding="utf-8")
            return ""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block.code, str(block), "exec"), self.names)
        return output.getvalue()

    @contextlib.contextmanager
    def _in_folder(self) -> Iterator[None]:
        """Run in the folder, whose files can be imported, as in an interpreter that was started there."""
        home, path = Path.cwd(), list(sys.path)
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder))
        try:
            yield
        finally:
            os.chdir(home)
            sys.path[:] = path
            for name in (path.stem for path in self.folder.glob("*.py")):
                sys.modules.pop(name, None)
