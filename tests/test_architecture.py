"""docs/architecture.md says what the code does: its drawing is made from the imports, its examples are counted.

`python -m tests.test_architecture` draws docs/rooms.svg anew.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections import defaultdict
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `python -m` looks for modules beside the folder, not in it
from test_rooms import ROOT, files, imported, parsed

PAGE = ROOT / "docs" / "architecture.md"
DRAWING = ROOT / "docs" / "rooms.svg"
LEAVES = ("errors", "options", "outputs", "targets", "output_targets", "findings")
WIDTH, BOX, HIGH, GAP, ROW = 960, 172, 62, 18, 100
ORDER_IN_ROW = "models checks explanation methods training registry maps backward".split()
"""Left to right, so that few arrows cross."""


def room(path: str) -> str:
    """The box of a file: packages of the library each by itself, its root files together, other rooms whole."""
    parts = path.removesuffix(".py").split("/")
    if parts[0] != "explainers":
        return parts[0]
    if parts[1:] in ([], ["__init__"]) or not [*(ROOT / "explainers").glob(f"{parts[1]}*")]:
        return "explainers"  # the package, or a name that it lists
    return "leaves" if parts[1] in LEAVES else parts[1]


def graph() -> dict[str, set[str]]:
    """Which box imports which; the package's own list of names, and imports for types alone, left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for top in ("explainers", "models", "dataset", "ui", "hooklens"):
        for path in files(top):
            own = room(path.relative_to(ROOT).as_posix())
            for dotted, _ in imported(parsed(path)):
                if (
                    dotted.split(".")[0] in ("explainers", "models", "dataset", "ui", "hooklens")
                    and own != "explainers"
                ):
                    found[own].add(room(dotted.replace(".", "/")))
            found[own].discard(own)
    boxes = {name: {target for target in targets if target != "explainers"} for name, targets in found.items()}
    boxes["ui"] |= {
        "explanation",
        "methods",
        "checks",
        "training",
    }  # `import explainers` loads what no other module imports
    del boxes["explainers"]
    return boxes


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Transitive reduction: without the edges that a longer path implies."""

    def reach(name: str) -> set[str]:
        return set().union(*({target} | reach(target) for target in edges.get(name, ())), set())

    return {
        name: {t for t in targets if not any(t in reach(other) for other in targets - {t})}
        for name, targets in edges.items()
    }


def levels(edges: dict[str, set[str]]) -> list[list[str]]:
    """Boxes by their distance from the top, the top row first."""

    def depth(name: str) -> int:
        return 1 + max((depth(other) for other, targets in edges.items() if name in targets), default=-1)

    rows: dict[int, list[str]] = defaultdict(list)
    for name in sorted(edges, key=lambda name: [*ORDER_IN_ROW, name].index(name)):
        rows[depth(name)].append(name)
    return [rows[key] for key in sorted(rows)]


def caption(name: str) -> list[str]:
    """A box's title and the first words of its docstring, in up to two lines."""
    if name == "leaves":
        return ["root files", *textwrap.wrap(", ".join(LEAVES), 28)]
    path = ROOT / "explainers" / name
    path = path if path.exists() else path.with_suffix(".py") if path.with_suffix(".py").exists() else ROOT / name
    text = ast.get_docstring(parsed(path / "__init__.py" if path.is_dir() else path)) or ""
    first = re.split(r"[:.;,(]| and ", text.replace("`", ""))[0]
    return [name if name == "registry" else f"{name}/", *textwrap.wrap(first, 28)[:2]]


def arrow(source: tuple[float, float], target: tuple[float, float]) -> str:
    """A curve from box to box; past other rows, a line down beside them and then to the target's side."""
    (x, y), (u, v) = source, target
    y += HIGH
    if v - y > ROW:
        side = u + BOX / 2 if x > u else u - BOX / 2
        return f"M{x:.0f} {y:.0f}V{v + HIGH / 2 - 12:.0f}q0 12 {-12 if x > u else 12} 12H{side:.0f}"
    bend = (v - y) / 2
    return f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} {u:.0f} {v:.0f}"


def drawing() -> str:
    edges = reduced(graph())
    rows = levels(edges)
    place: dict[str, tuple[float, float]] = {}
    for r, row in enumerate(rows):
        left = (WIDTH - len(row) * BOX - (len(row) - 1) * GAP) / 2
        for c, name in enumerate(row):
            place[name] = left + c * (BOX + GAP) + BOX / 2, 16 + r * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * ROW - ROW + HIGH + 32}" '
        'font-family="system-ui, sans-serif" role="img" aria-label="Rooms and the direction of imports">',
        "<style>rect{fill:#f3f3fb;stroke:#5b5bd6}text{fill:#1c1c28;text-anchor:middle}.s{fill:#55556a;font-size:11px}"
        "path{stroke:#8a8aa8;fill:none}@media(prefers-color-scheme:dark){rect{fill:#20202e;stroke:#8f8ff0}"
        "text{fill:#ececf4}.s{fill:#b3b3c6}path{stroke:#77778f}}</style>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M1 1 7 4 1 7"/></marker></defs>',
    ]
    for name, targets in sorted(edges.items()):
        for target in sorted(targets):
            lines.append(f'<path d="{arrow(place[name], place[target])}" marker-end="url(#a)"/>')
    for name, (x, y) in sorted(place.items()):
        title, *words = caption(name)
        lines.append(f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="6"/>')
        lines.append(f'<text x="{x:.0f}" y="{y + 22:.0f}" font-size="15">{escape(title)}</text>')
        for n, text in enumerate(words):
            lines.append(f'<text class="s" x="{x:.0f}" y="{y + 38 + 14 * n:.0f}">{escape(text)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def test_the_drawing_matches_the_imports() -> None:
    """When this fails: `python -m tests.test_architecture`."""
    assert DRAWING.read_text(encoding="utf-8") == drawing()
    assert "](rooms.svg)" in PAGE.read_text(encoding="utf-8")


def test_the_drawing_shows_every_package_once_and_no_arrow_upwards() -> None:
    edges = graph()
    packages = {path.parent.name for path in (ROOT / "explainers").glob("*/__init__.py")}
    rows = [set(row) for row in levels(reduced(edges))]

    assert packages | {"ui", "models", "dataset", "hooklens", "leaves", "registry"} == set().union(*rows) == set(edges)
    assert sum(map(len, rows)) == len(edges)
    below = {name: set().union(*rows[r + 1 :], set()) for r, row in enumerate(rows) for name in row}
    assert all(targets <= below[name] for name, targets in edges.items())


def test_every_file_that_the_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`((?:explainers|models|ui|dataset|hooklens|tests|benchmarks)/[\w/.]*)`", text)

    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


if __name__ == "__main__":
    DRAWING.write_text(drawing(), encoding="utf-8")
