"""The rooms: imports go one way, hooks are registered in two files, and nothing heavy stands before the page."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"app", "ui", "models", "explainers", "dataset", "hooklens", "benchmarks", "tests"}
STANDARD = set(sys.stdlib_module_names) | {"__future__"}

ALLOWED = {
    "explainers": {"explainers", "torch"},
    "models": {"models", "torch", "torchvision", "PIL"},
    "app.py": {"ui"},
}
"""What a room may import besides the standard library; where nothing is said, anything but the rooms in FORBIDDEN."""
FORBIDDEN = {
    "dataset": {"ui", "app", "hooklens", "benchmarks", "tests"},
    "ui": {"benchmarks", "tests", "app", "hooklens"},
    "hooklens": {"benchmarks", "tests"},
    "benchmarks": {"tests", "app", "ui"},
}
LAZY = {(f"explainers/{name}.py", "PIL") for name in ("maps/overlays", "maps/photographs", "explanation/result")}
LAZY |= {("models/sources/timm_models.py", "timm"), ("models/sources/hf_models.py", "transformers")}
LAZY |= {("models/sources/hub.py", "huggingface_hub")}
"""Imported inside a function or for types alone, so that the library needs torch alone, and models no extra."""

ORDER = [
    {"errors", "options", "outputs", "targets", "output_targets", "findings"},
    {"hooks"},
    {"network"},
    {"layers"},
    {"passes"},
    {"backward", "perturbation"},
    {"maps"},
    {"registry"},
    {"methods", "explanation", "training"},
    {"checks", "metrics"},
]
"""The packages and root files of the library, each group importing only from groups above it and from itself."""
MOST_FILES = 10
MOST_LINES = 400

REGISTERING = ("register_hook", "register_prehook", "register_forward", "register_full_backward", "register_backward")
REGISTERING += ("register_module_", "register_multi_grad_hook", "register_post_accumulate_grad_hook")
HOOK_FILES = {f"explainers/hooks/{name}.py" for name in ("calls", "capture", "edit")}
HOOK_FILES |= {"explainers/network/batch_norm.py", "explainers/backward/relu_rules.py"}
MODULE_HOOK_FILES = {"explainers/hooks/calls.py"}
"""Hooks on modules begin in one file; hooks on tensors and on nodes of the graph in those that need them."""

SLOW = {"torch", "torchvision", "explainers", "models"}
"""What page files may import in functions and for types only: the page is served before torch is there."""
FAST = {"models.settings"}
"""What they may import of these at once; a test sees that it leaves torch alone."""


def files(room: str) -> list[Path]:
    return [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))


def imported(tree: ast.AST, top: bool = False) -> Iterator[tuple[str, int]]:
    """Dotted name and line of every import; with `top` only of those that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole path, so that a file can be moved"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif top and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        elif top and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported(ast.Module(node.orelse, []), top)
        else:
            yield from imported(node, top)


def imports(tree: ast.AST, top: bool = False) -> Iterator[tuple[str, int]]:
    """Package and line of every import."""
    return ((name.partition(".")[0], line) for name, line in imported(tree, top))


def lazy_imports(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted name and line of the imports inside functions."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imported(node)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_graph(room: str) -> dict[str, set[str]]:
    """Which files of a room import which, by their names without the suffix; imports for types alone count too."""
    names = {path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__"): path for path in files(room)}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        graph[name] = set()
        for dotted, _ in imported(parsed(path)):
            whole = dotted.replace(".", "/")
            target = whole if whole in names else whole.rpartition("/")[0]
            if target in names and target not in (name, room):
                graph[name].add(target)
    return graph


def rank(module: str) -> int:
    """The place of a module of the library in ORDER; the package itself, which lists the public names, comes last."""
    part = module.split("/")[1] if "/" in module else ""
    return next((place for place, group in enumerate(ORDER) if part in group), len(ORDER))


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


@pytest.mark.parametrize("room", ["explainers", "models", "dataset", "app.py", "ui", "hooklens", "benchmarks"])
def test_imports_go_one_way(room: str) -> None:
    assert wrong_imports(room) == []


def wrong_order() -> list[str]:
    """Imports against ORDER, and imports of one package from another that stands beside it."""
    wrong = []
    for module, targets in module_graph("explainers").items():
        for target in sorted(targets):
            same = module.split("/")[1:2] == target.split("/")[1:2]
            leaves = rank(module) == rank(target) == 0
            if rank(target) > rank(module) or (rank(target) == rank(module) and not same and not leaves):
                wrong.append(f"{module} imports {target}")
    return wrong


def test_packages_of_the_library_import_one_way() -> None:
    assert wrong_order() == []
    assert all(rank(module) < len(ORDER) for module in module_graph("explainers") if module != "explainers")


@pytest.mark.parametrize("room", ["explainers", "models", "dataset", "ui", "hooklens", "benchmarks"])
def test_no_file_imports_itself_by_way_of_others(room: str) -> None:
    """Also not inside a function or for types alone: a cycle is two files that are one."""
    graph = module_graph(room)

    assert cycle(graph) == []


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The files of one cycle, or none."""
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as found:
        return list(found.args[1])
    return []


def test_the_rules_find_violations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library file that imports the page, Pillow at once, or a package above it, is named; and so is a cycle."""
    (tmp_path / "explainers" / "maps").mkdir(parents=True)
    (tmp_path / "explainers" / "hooks").mkdir()
    (tmp_path / "explainers" / "maps" / "overlays.py").write_text(
        "from PIL import Image\nimport torch\n\ndef f():\n    import PIL\n    from ui import page\n", encoding="utf-8"
    )
    (tmp_path / "explainers" / "hooks" / "calls.py").write_text("def f():\n    import explainers.maps.overlays\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)

    assert wrong_imports("explainers") == [
        "explainers/maps/overlays.py:1 imports PIL",
        "explainers/maps/overlays.py:6 imports ui",
    ]
    assert wrong_order() == ["explainers/hooks/calls imports explainers/maps/overlays"]
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != [] and cycle({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize("room", ["explainers", "models", "ui", "hooklens", "app.py"])
def test_an_import_inside_a_function_says_why(room: str) -> None:
    """Optional packages and torch's start-up time are reasons; the library never defers one of its own."""
    for path in files(room):
        lines = path.read_text(encoding="utf-8").splitlines()
        for name, line in lazy_imports(path):
            where = f"{path.relative_to(ROOT).as_posix()}:{line} imports {name} inside a function"
            assert "  # " in lines[line - 1], f"{where} without a reason in the line"
            assert not (room == "explainers" and name.startswith("explainers")), where


def test_no_folder_is_crowded_and_no_file_is_long() -> None:
    crowded, long = [], []
    for room in ("explainers", "models", "dataset", "ui", "hooklens", "benchmarks"):
        sources = [path for path in sorted((ROOT / room).rglob("*")) if path.suffix in (".py", ".js", ".css")]
        for folder, count in sorted(Counter(path.parent for path in sources).items()):
            if count > MOST_FILES:
                crowded.append(f"{folder.relative_to(ROOT).as_posix()} holds {count} files")
        for path in sources:
            count = len(path.read_text(encoding="utf-8").splitlines())
            if count > MOST_LINES:
                long.append(f"{path.relative_to(ROOT).as_posix()} has {count} lines")

    assert crowded == [] and long == []


def test_scripts_and_the_components_that_they_draw_are_found() -> None:
    """A wrong path is seen by nothing but the browser, and there as an empty place."""
    static, missing = ROOT / "ui" / "static", []
    for path in static.rglob("*.js"):
        for name in re.findall(r'^(?:import|export|} from)\b.*?"(\.[^"]+)";', path.read_text(encoding="utf-8"), re.M):
            if not (path.parent / name).is_file():
                missing.append(f"{path.relative_to(ROOT).as_posix()} imports {name}")
    for path in files("ui"):
        text = path.read_text(encoding="utf-8")
        drawn = [f"{name}.js" for name in re.findall(r'\bcanvas\(\s*"([^"]+)"', text)]
        for name in [*drawn, *re.findall(r"'hl/([^']+)'", text)]:
            if not (static / name).is_file():
                missing.append(f"{path.relative_to(ROOT).as_posix()} names {name}")

    assert missing == []


def test_every_package_says_what_is_in_it() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for room in ("explainers", "models", "dataset", "ui", "hooklens", "benchmarks")
        for path in files(room)
        if not ast.get_docstring(parsed(path))
    ]

    assert silent == []


def registering(room: str, names: tuple[str, ...]) -> set[str]:
    """The files that name one of PyTorch's functions that register hooks."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in files(room)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr.startswith(names)
    }


def test_hooks_are_registered_in_few_files() -> None:
    found = {name for room in ("explainers", "models", "ui", "app.py") for name in registering(room, REGISTERING)}
    on_modules = registering("explainers", ("register_forward", "register_full_backward", "register_module_"))

    assert found == HOOK_FILES, "and the rule must see what it forbids"
    assert on_modules == MODULE_HOOK_FILES


def test_methods_leave_modes_devices_and_grads_alone() -> None:
    """A method changes no mode, moves nothing and writes no `.grad`: it asks passes/."""
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
        for name, line in imported(parsed(path), top=True)
        if (package := name.partition(".")[0]) in SLOW and name not in FAST
    ]
    code = f"import sys, {', '.join(FAST)}; sys.exit('torch' in sys.modules)"

    assert wrong == []
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_gradio_is_set_up_before_it_is_imported() -> None:
    """Analytics off, and no type stubs: writing them costs a second at every start, and leaves a file in the tree."""
    stub = ROOT / "ui" / "tabs" / "components.pyi"
    stub.unlink(missing_ok=True)
    code = "import os, sys, ui.page; sys.exit(os.environ.get('GRADIO_ANALYTICS_ENABLED') != 'False')"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    assert not stub.exists()


def test_no_file_or_package_is_named_like_a_public_function() -> None:
    """A module `overlay.py` would overwrite the function `overlay` on the package when it is imported."""
    import explainers

    modules = {path.stem for path in (ROOT / "explainers").glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in (ROOT / "explainers").glob("*/__init__.py")}

    assert modules & set(explainers.__all__) == set()
