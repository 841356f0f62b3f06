"""The papers of the methods as BibTeX. `Method.paper` names them by an arXiv number, a DOI, or authors and year."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explainers import Method

FILE = Path(__file__).with_suffix(".bib")


@cache
def entries() -> dict[str, str]:
    """Return the entries of papers.bib by the name above each, such as "arXiv:1610.02391"."""
    blocks = FILE.read_text(encoding="utf-8").strip().split("\n\n")
    return {name: entry for name, _, entry in (block.partition("\n") for block in blocks)}


def bibtex(method: Method) -> str:
    """Return the BibTeX entries of the papers of a method, with an empty line between two; "" if none is known."""
    return "\n\n".join(entry for part in (method.paper or "").split(";") if (entry := _entry(part.strip())))


def _entry(paper: str) -> str:
    names = [*re.findall(r"arXiv:\d{4}\.\d{4,5}|doi:\S+", paper), paper.partition(",")[0]]
    return next((entries()[name] for name in names if name in entries()), "")
