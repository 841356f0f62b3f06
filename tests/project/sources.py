"""The Python files of the project and their imports, which all tests read once: parsing takes seconds."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Import:
    """A dotted name that a file imports, its line, and whether this happens when the file is imported."""

    name: str
    line: int
    at_once: bool


def files(folder: str) -> list[Path]:
    return [ROOT / folder] if folder.endswith(".py") else sorted((ROOT / folder).rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path) -> tuple[Import, ...]:
    """All imports of a file; those in functions and for types only are not `at_once`."""
    return tuple(_imports(parse(path), True))


def _imports(tree: ast.AST, at_once: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole path, so that a file can be moved"
            yield from (Import(f"{node.module}.{alias.name}", node.lineno, at_once) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(ast.Module(node.body, []), False)
            yield from _imports(ast.Module(node.orelse, []), at_once)
        elif isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):  # expressions import nothing
            runs = not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _imports(node, at_once and runs)


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def module_graph(folder: str) -> dict[str, set[str]]:
    """Which modules of a folder import which; imports for types and in functions count."""
    names = {module_of(path): path for path in files(folder)}
    graph = {}
    for name, path in names.items():
        targets = {each.name if each.name in names else each.name.rpartition(".")[0] for each in imports(path)}
        graph[name] = (targets & names.keys()) - {name, folder}
    return graph


def folder_graphs(folder: str) -> dict[str, dict[str, set[str]]]:
    """For each package, which of its modules and packages import which of the others."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for module, targets in module_graph(folder).items():
        for target in targets:
            pairs = enumerate(zip(module.split("."), target.split("."), strict=False))
            depth = next((k for k, (a, b) in pairs if a != b), None)
            if depth is None:  # the __init__ of a package, and a file in it
                continue
            source, goal = (".".join(name.split(".")[: depth + 1]) for name in (module, target))
            graphs.setdefault(source.rpartition(".")[0], {}).setdefault(source, set()).add(goal)
    return graphs
