"""docs/architecture.md describes the code: its drawing is made from the imports, and the files that it names exist.

`python -m tests.project.test_architecture` writes docs/packages.svg again.
"""

from __future__ import annotations

import re
from collections import defaultdict

import networkx as nx  # a requirement of torch

from tests.project.sources import ROOT, files, imports, module_of
from tests.project.test_layers import LEAVES

PAGE = ROOT / "docs" / "architecture.md"
DRAWING = ROOT / "docs" / "packages.svg"
PACKAGES = {path.parent.name for path in (ROOT / "explainers").glob("*/__init__.py")}
"""The packages of the library."""
APPLICATION = {f"saliscope.{path.parent.name}" for path in (ROOT / "saliscope").glob("*/__init__.py")}
"""The packages of the application. The files next to them (errors, limits, resources) import none of them."""
WIDTH, BOX, HIGH, GAP, ROW = 960, 172, 32, 18, 70
ORDER_IN_ROW = (
    "saliscope.page saliscope.runs saliscope.compute training checks metrics experiments saliscope.zoo".split()
)
ORDER_IN_ROW += "saliscope.images explanation methods registry maps backward".split()
"""Left to right, so that few arrows cross."""


def box(dotted: str) -> str | None:
    """Return the box of a module; "explainers" for a public name of the library, None for a module without a box."""
    top, part = [*dotted.split("."), "", ""][:2]
    if top == "saliscope":
        return f"saliscope.{part}" if f"saliscope.{part}" in APPLICATION else None
    if top != "explainers":
        return None
    if part in LEAVES.split() and part not in PACKAGES:
        return "leaves"
    if part in ("registry", "keywords"):
        return "registry"
    return part if part in PACKAGES else "explainers"


def graph() -> dict[str, set[str]]:
    """Return the boxes that each box imports.

    An import of `explainers` itself counts as an import of every package that `explainers/__init__.py` imports.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for path in [*files("explainers"), *files("saliscope")]:
        own = box(module_of(path))
        if own is not None:
            found[own] |= {target for each in imports(path) if (target := box(each.name)) is not None}
    public = found.pop("explainers")
    return {
        name: (targets | (public if "explainers" in targets else set())) - {name, "explainers"}
        for name, targets in found.items()
    }


def arrow(source: tuple[float, float], target: tuple[float, float]) -> str:
    """Return a curve between boxes; if rows lie between them, a line down next to them and to the target's side."""
    (x, y), (u, v) = source, target
    y += HIGH
    if v - y > ROW and x != u:
        side = u + BOX / 2 if x > u else u - BOX / 2
        return f"M{x:.0f} {y:.0f}V{v + HIGH / 2 - 12:.0f}q0 12 {-12 if x > u else 12} 12H{side:.0f}"
    bend = (v - y) / 2
    return f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} {u:.0f} {v:.0f}"


def drawing() -> str:
    """Return the drawing of all packages as SVG."""
    edges = nx.transitive_reduction(nx.DiGraph({name: list(targets) for name, targets in graph().items()}))
    order = [*ORDER_IN_ROW, *sorted(edges)]
    rows = [sorted(row, key=order.index) for row in nx.topological_generations(edges)]
    position: dict[str, tuple[float, float]] = {}
    for r, row in enumerate(rows):
        left = (WIDTH - len(row) * BOX - (len(row) - 1) * GAP) / 2
        for c, name in enumerate(row):
            position[name] = left + c * (BOX + GAP) + BOX / 2, 16 + r * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * ROW - ROW + HIGH + 32}" '
        'font-family="system-ui, sans-serif" role="img" aria-label="Packages and the direction of their imports">',
        "<style>rect{fill:#f3f3fb;stroke:#5b5bd6}text{fill:#1c1c28;text-anchor:middle}"
        "path{stroke:#8a8aa8;fill:none}@media(prefers-color-scheme:dark){rect{fill:#20202e;stroke:#8f8ff0}"
        "text{fill:#ececf4}path{stroke:#77778f}}</style>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M1 1 7 4 1 7"/></marker></defs>',
    ]
    for name, target in sorted(edges.edges):
        lines.append(f'<path d="{arrow(position[name], position[target])}" marker-end="url(#a)"/>')
    for name, (x, y) in sorted(position.items()):
        title = {"leaves": "root files", "registry": "registry"}.get(name, f"{name.replace('.', '/')}/")
        lines.append(f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="6"/>')
        lines.append(f'<text x="{x:.0f}" y="{y + 21:.0f}" font-size="15">{title}</text>')
    return "\n".join([*lines, "</svg>", ""])


def test_the_drawing_matches_the_imports() -> None:
    """If this fails, run `python -m tests.project.test_architecture`."""
    assert DRAWING.read_text(encoding="utf-8") == drawing()
    assert "](packages.svg)" in PAGE.read_text(encoding="utf-8")


def test_every_file_that_the_document_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`((?:explainers|models|saliscope|tests|benchmarks|assets)/[\w/.]*)`", text)

    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


if __name__ == "__main__":
    DRAWING.write_text(drawing(), encoding="utf-8")
