"""The rooms: imports go one way, hooks are registered in two files, and nothing heavy stands before the page."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"app", "ui", "models", "explainers", "benchmarks", "tests"}
STANDARD = set(sys.stdlib_module_names) | {"__future__"}

ALLOWED = {
    "explainers": {"explainers", "torch"},
    "models": {"models", "torch", "torchvision", "PIL"},
    "app.py": {"ui"},
}
"""What a room may import besides the standard library; where nothing is said, anything but the rooms in FORBIDDEN."""
FORBIDDEN = {"ui": {"benchmarks", "tests", "app"}, "benchmarks": {"tests", "app", "ui"}}
LAZY = {("explainers/overlays.py", "PIL"), ("explainers/explanation.py", "PIL")}
"""Imported inside a function or for types alone, so that the library needs torch and nothing else."""

REGISTERING = ("register_hook", "register_prehook", "register_forward", "register_full_backward", "register_backward")
REGISTERING += ("register_module_", "register_multi_grad_hook", "register_post_accumulate_grad_hook")
HOOK_FILES = {"explainers/hooks.py", "explainers/backward_rules.py"}

SLOW = {"torch", "torchvision", "explainers", "models"}
"""What page files may import in functions and for types only: the page is served before torch is there."""


def files(room: str) -> list[Path]:
    return [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))


def imports(tree: ast.AST, top: bool = False) -> Iterator[tuple[str, int]]:
    """Package and line of every import; with `top` only of those that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:  # a relative import stays in its room
                yield (node.module or "").split(".")[0], node.lineno
        elif top and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        elif top and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(ast.Module(node.orelse, []), top)
        else:
            yield from imports(node, top)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def wrong_imports(room: str) -> list[str]:
    wrong = []
    for path in files(room):
        name = path.relative_to(ROOT).as_posix()
        at_once = set(imports(parsed(path), top=True))
        for package, line in imports(parsed(path)):
            lazily = (name, package) in LAZY and (package, line) not in at_once
            unknown = room in ALLOWED and package not in ALLOWED[room] | STANDARD
            if (unknown and not lazily) or package in FORBIDDEN.get(room, ()):
                wrong.append(f"{name}:{line} imports {package}")
    return wrong


@pytest.mark.parametrize("room", ["explainers", "models", "app.py", "ui", "benchmarks"])
def test_imports_go_one_way(room: str) -> None:
    assert wrong_imports(room) == []


def test_the_rule_bites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library file that imports the page, or Pillow at once, is named with its line."""
    (tmp_path / "explainers").mkdir()
    (tmp_path / "explainers" / "overlays.py").write_text(
        "from PIL import Image\nimport torch\n\ndef f():\n    import PIL\n    from ui import page\n", encoding="utf-8"
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)

    assert wrong_imports("explainers") == [
        "explainers/overlays.py:1 imports PIL",
        "explainers/overlays.py:6 imports ui",
    ]


def test_hooks_are_registered_in_two_files() -> None:
    found = set()
    for room in ("explainers", "models", "ui", "app.py"):
        for path in files(room):
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.Attribute) and node.attr.startswith(REGISTERING):
                    found.add(path.relative_to(ROOT).as_posix())

    assert found <= HOOK_FILES
    assert "explainers/hooks.py" in found, "the rule must see what it forbids"


def test_methods_leave_modes_devices_and_grads_alone() -> None:
    """A method changes no mode, moves nothing and writes no `.grad`: it asks passes.py."""
    wrong = [
        f"{path.name}:{node.lineno} calls .{node.func.attr}()"
        for path in files("explainers/methods")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in {"backward", "eval", "train", "cpu", "cuda", "requires_grad_", "zero_grad"}
    ]

    assert wrong == []


def test_serving_does_not_wait_for_torch() -> None:
    """Torch takes two seconds to import, so page files name it in functions and for types only."""
    wrong = [
        f"{path.relative_to(ROOT).as_posix()}:{line} imports {package} at once"
        for room in ("app.py", "ui")
        for path in files(room)
        for package, line in imports(parsed(path), top=True)
        if package in SLOW
    ]

    assert wrong == []


def test_no_file_is_named_like_a_public_function() -> None:
    """A module `overlay.py` would overwrite the function `overlay` on the package when it is imported."""
    import explainers

    modules = {path.stem for path in (ROOT / "explainers").glob("*.py")} - {"__init__"}
    modules |= {path.name for path in (ROOT / "explainers").iterdir() if (path / "__init__.py").exists()}
    public = set(explainers.__all__)

    assert modules & public == set()
