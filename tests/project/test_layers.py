"""The layout: imports point one way, two files register hooks, and nothing heavy is imported before the page."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STANDARD = set(sys.stdlib_module_names) | {"__future__"}
ALL = ("explainers", "saliscope", "benchmarks")
LAYERS = ("explainers", *(f"saliscope.{name}" for name in "images zoo session datasets page cli".split()))
"""Bottom to top; each layer imports only those before it."""
BASE = {"saliscope", *(f"saliscope.{name}" for name in "errors hashes imports install limits resources".split())}
"""Files that every layer of `saliscope` may import; they import nothing but the standard library."""
APART = {("saliscope.images", "saliscope.zoo"), ("saliscope.zoo", "saliscope.images")}
APART |= {("saliscope.session", "saliscope.datasets"), ("saliscope.datasets", "saliscope.session")}
"""Layers at the same height, which do not import each other."""
BATCH = "saliscope/page/batch/"
"""The only part of the page that imports `datasets`."""
PAGE_ORDER = [
    {"components"},
    {"methods"},
    {"panel"},
    {"shared"},
    {"channels", "maps", "rail", "trust", "ranking", "lab", "batch", "api", "share", "erase", "models"},
    {"compare"},
    {"overlay"},
    {"first_paint"},
    {"serving"},
    {"agents"},
    {"operations"},
    {"build"},
]
"""The packages of the page; a feature does not import the others, the last ones compose them."""
LIBRARIES = {
    "explainers": {"explainers", "torch"},
    "models": {"torch", "torchvision"},
    "app.py": {"saliscope"},
}
"""The packages that a folder may import besides the standard library."""
GRADIO = ("saliscope/page/", "saliscope/cli/")
"""The only folders that may import gradio."""
LAZY = {
    (f"explainers/{name}.py", "PIL")
    for name in (
        *(f"display/{file}" for file in ("channels", "charts", "display", "encoding", "figure")),
        *("maps/frames", "maps/overlays", "maps/pixels", "explanation/result"),
    )
}
"""Imported inside a function or for types only, so that the library needs only torch."""

ORDER = [
    {
        "errors",
        "nested",
        "options",
        "outputs",
        "probabilities",
        "class_indices",
        "targets",
        "output_targets",
        "detections",
        "default_targets",
        "findings",
        "verdict",
        "students_t",
    },
    {"hooks"},
    {"network"},
    {"layers"},
    {"passes"},
    {"backward", "perturbation"},
    {"maps"},
    {"registry"},
    {"display"},
    {"methods", "explanation", "training"},
    {"checks", "metrics", "experiments"},
]
"""The packages and root files of the library, each group importing only from groups above it and from itself."""
MOST_LINES = 430
GENERATED = {"explainers/display/map.js"}
"""Scripts that are joined from others, of any length."""

REGISTERING = ("register_hook", "register_prehook", "register_forward", "register_full_backward", "register_backward")
REGISTERING += ("register_module_", "register_multi_grad_hook", "register_post_accumulate_grad_hook")
HOOK_FILES = {f"explainers/hooks/{name}.py" for name in ("calls", "capture", "edit")}
HOOK_FILES |= {"explainers/network/batch_norm.py", "explainers/backward/rectifiers/relu_rules.py"}
MODULE_HOOK_FILES = {"explainers/hooks/calls.py"}
"""Hooks on modules are registered in one file; hooks on tensors and graph nodes in the files that need them."""

SLOW = ("torch", "explainers", "saliscope.zoo", "saliscope.images.edits.tensors")
"""What page files may import in functions and for types only: the page is served before torch is there."""
FAST = {"saliscope.zoo.settings"}
"""What they may import of these at module level; a test checks that it does not import torch."""


def files(folder: str) -> list[Path]:
    return [ROOT / folder] if folder.endswith(".py") else sorted((ROOT / folder).rglob("*.py"))


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
    return parsed_text(path.read_text(encoding="utf-8"))


@functools.cache
def parsed_text(text: str) -> ast.Module:
    return ast.parse(text)


def module_graph(folder: str) -> dict[str, set[str]]:
    """Which files of a folder import which, as paths without the suffix; imports for types and in functions count."""
    names = {}
    for path in files(folder):
        names[path.relative_to(ROOT).with_suffix("").as_posix().removesuffix("/__init__")] = path
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        graph[name] = set()
        for dotted, _ in imported(parsed(path)):
            whole = dotted.replace(".", "/")
            target = whole if whole in names else whole.rpartition("/")[0]
            if target in names and target not in (name, folder):
                graph[name].add(target)
    return graph


def folder_graphs(folder: str) -> dict[str, dict[str, set[str]]]:
    """For each folder, which of its files and subfolders import which of the others."""
    graphs: dict[str, dict[str, set[str]]] = {}
    for module, targets in module_graph(folder).items():
        for target in targets:
            pairs = enumerate(zip(module.split("/"), target.split("/"), strict=False))
            depth = next((k for k, (a, b) in pairs if a != b), None)
            if depth is None:  # the __init__ of a package, and a file in it
                continue
            source, goal = ("/".join(name.split("/")[: depth + 1]) for name in (module, target))
            graphs.setdefault(source.rpartition("/")[0], {}).setdefault(source, set()).add(goal)
    return graphs


def rank(module: str) -> int:
    """The rank of a module of the library in ORDER; the package itself, which lists the public names, comes last."""
    part = module.split("/")[1] if "/" in module else ""
    return next((place for place, group in enumerate(ORDER) if part in group), len(ORDER))


def layer(module: str) -> str | None:
    """The layer of a dotted module name; None for the files that all layers share, and for other packages."""
    return next((name for name in LAYERS if module == name or module.startswith(f"{name}.")), None)


def wrong_imports() -> list[str]:
    """Imports that point up, or between layers that do not know each other."""
    wrong = []
    for path in [path for folder in ("explainers", "saliscope") for path in files(folder)]:
        name = path.relative_to(ROOT).as_posix()
        own = layer(name.removesuffix(".py").replace("/", "."))
        for dotted, line in imported(parsed(path)):
            target = layer(dotted)
            upward = own is not None and target is not None and LAYERS.index(target) > LAYERS.index(own)
            apart = (own, target) in APART or (own == "explainers" and dotted.partition(".")[0] == "saliscope")
            batch_only = own == "saliscope.page" and target == "saliscope.datasets" and not name.startswith(BATCH)
            shared = f"saliscope.{path.stem}" in BASE and path.parent.name == "saliscope" and path.stem != "__init__"
            if upward or apart or batch_only or (shared and target):
                wrong.append(f"{name}:{line} imports {dotted}")
    return wrong


def wrong_libraries() -> list[str]:
    """Imports of packages that a folder does not depend on, and of gradio below the page."""
    wrong = []
    for folder in ("explainers", "models", "app.py", "saliscope"):
        for path in files(folder):
            name = path.relative_to(ROOT).as_posix()
            at_once = set(imports(parsed(path), top=True))
            for package, line in imports(parsed(path)):
                lazily = (name, package) in LAZY and (package, line) not in at_once
                allowed = LIBRARIES.get(folder)
                unknown = allowed is not None and package not in allowed | STANDARD and not lazily
                ours = package in ("benchmarks", "tests", "models", "app")
                if unknown or ours or (package == "gradio" and not name.startswith(GRADIO)):
                    wrong.append(f"{name}:{line} imports {package}")
    return wrong


def wrong_features() -> list[str]:
    """Imports between features of the page, and from the page's lower packages to its upper ones."""
    wrong = []
    place = {part: rank for rank, group in enumerate(PAGE_ORDER) for part in group}
    for source, targets in folder_graphs("saliscope").get("saliscope/page", {}).items():
        for target in sorted(targets):
            if place[target.split("/")[2]] >= place[source.split("/")[2]]:
                wrong.append(f"{source} imports {target}")
    return wrong


def test_imports_point_down() -> None:
    assert wrong_imports() == []
    assert wrong_features() == []


def test_packages_use_only_their_libraries() -> None:
    assert wrong_libraries() == []


def wrong_order() -> list[str]:
    """Imports against ORDER, and imports of one package from another of the same rank."""
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


@pytest.mark.parametrize("folder", ALL)
def test_no_file_imports_itself_through_others(folder: str) -> None:
    """Imports in functions and for types count too: two files that import each other are one."""
    assert cycle(module_graph(folder)) == []


@pytest.mark.parametrize("folder", ALL)
def test_no_folder_imports_itself_through_others(folder: str) -> None:
    assert {parent: found for parent, graph in folder_graphs(folder).items() if (found := cycle(graph))} == {}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The files of one cycle, or none."""
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as found:
        return list(found.args[1])
    return []


def plant(root: Path, **texts: str) -> None:
    """Write modules under a root; `a__b` is a/b.py."""
    for name, text in texts.items():
        path = root / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_a_planted_upward_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        tmp_path,
        explainers__maps__overlays="from PIL import Image\nimport torch\n\ndef f():\n    import PIL, saliscope\n",
        explainers__hooks__calls="def f():\n    import explainers.maps.overlays\n",
        saliscope__images__tiff="def f():\n    from saliscope.session import engine\n",
        saliscope__session__engine="import gradio\nfrom saliscope.images import tiff\n",
        saliscope__page__lab__tab="from saliscope.page.rail import tab\nfrom saliscope.datasets import run\n",
        saliscope__page__rail__tab="",
        saliscope__datasets__run="",
        app="import saliscope\n",
        models__net="import torch\n",
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)

    assert wrong_imports() == [
        "explainers/maps/overlays.py:5 imports saliscope",
        "saliscope/images/tiff.py:2 imports saliscope.session.engine",
        "saliscope/page/lab/tab.py:2 imports saliscope.datasets.run",
    ]
    assert wrong_libraries() == [
        "explainers/maps/overlays.py:1 imports PIL",
        "explainers/maps/overlays.py:5 imports saliscope",
        "saliscope/session/engine.py:1 imports gradio",
    ]
    assert wrong_features() == ["saliscope/page/lab imports saliscope/page/rail"]
    assert wrong_order() == ["explainers/hooks/calls imports explainers/maps/overlays"]


def test_a_planted_folder_cycle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file imports itself through others here, but the folders `a` and `b` do."""
    plant(
        tmp_path,
        saliscope__a__one="from saliscope.b import one\n",
        saliscope__a__two="",
        saliscope__b__one="",
        saliscope__b__two="def f():\n    from saliscope.a import two\n",
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)

    assert cycle(module_graph("saliscope")) == []
    assert set(cycle(folder_graphs("saliscope")["saliscope"])) == {"saliscope/a", "saliscope/b"}
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != [] and cycle({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize("folder", ["explainers", "models", "saliscope", "app.py"])
def test_an_import_inside_a_function_says_why(folder: str) -> None:
    """Optional packages and torch's start-up time are reasons; the library never defers imports of its own modules."""
    for path in files(folder):
        lines = path.read_text(encoding="utf-8").splitlines()
        for name, line in lazy_imports(path):
            where = f"{path.relative_to(ROOT).as_posix()}:{line} imports {name} inside a function"
            assert "  # " in lines[line - 1], f"{where} without a reason in the line"
            assert not (folder == "explainers" and name.startswith("explainers")), where


def test_no_file_is_long() -> None:
    long = []
    for folder in ("explainers", "models", "saliscope", "benchmarks"):
        for path in [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".js", ".css")]:
            count = len(path.read_text(encoding="utf-8").splitlines())
            if count > MOST_LINES and path.relative_to(ROOT).as_posix() not in GENERATED:
                long.append(f"{path.relative_to(ROOT).as_posix()} has {count} lines")

    assert long == []


def test_scripts_and_the_components_that_they_draw_are_found() -> None:
    """A wrong path is seen by nothing but the browser, and there as an empty area."""
    static, missing = ROOT / "saliscope" / "page" / "static", []
    for path in static.rglob("*.js"):
        for name in re.findall(r'^(?:import|export|} from)\b.*?"(\.[^"]+)";', path.read_text(encoding="utf-8"), re.M):
            if not (path.parent / name).is_file():
                missing.append(f"{path.relative_to(ROOT).as_posix()} imports {name}")
    for path in files("saliscope/page"):
        text = path.read_text(encoding="utf-8")
        drawn = [f"{name}.js" for name in re.findall(r'\bcanvas\(\s*"([^"]+)"', text)]
        for name in [*drawn, *re.findall(r"'hl/([^']+)'", text)]:
            if not (static / name).is_file():
                missing.append(f"{path.relative_to(ROOT).as_posix()} names {name}")

    assert missing == []


def test_every_package_says_what_is_in_it() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for folder in ("explainers", "models", "saliscope", "benchmarks")
        for path in files(folder)
        if not ast.get_docstring(parsed(path))
    ]

    assert silent == []


def registering(folder: str, names: tuple[str, ...]) -> set[str]:
    """The files that name one of PyTorch's functions that register hooks."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in files(folder)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr.startswith(names)
    }


def test_hooks_are_registered_in_few_files() -> None:
    folders = ("explainers", "models", "saliscope", "app.py")
    found = {name for folder in folders for name in registering(folder, REGISTERING)}
    on_modules = registering("explainers", ("register_forward", "register_full_backward", "register_module_"))

    assert found == HOOK_FILES, "and the rule must see what it forbids"
    assert on_modules == MODULE_HOOK_FILES


def test_methods_do_not_change_modes_devices_or_grads() -> None:
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
        f"{path.relative_to(ROOT).as_posix()}:{line} imports {name} at once"
        for folder in ("app.py", "saliscope/page", "saliscope/session", "saliscope/images", "saliscope/cli")
        for path in files(folder)
        if not path.is_relative_to(ROOT / "saliscope" / "images" / "edits" / "tensors")
        for name, line in imported(parsed(path), top=True)
        if name.startswith(SLOW) and name not in FAST
    ]
    code = f"import sys, {', '.join(FAST)}; sys.exit('torch' in sys.modules)"

    assert wrong == []
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_gradio_is_set_up_before_it_is_imported() -> None:
    """Analytics off, and no type stubs: writing them costs a second at every start, and leaves a file in the tree."""
    stub = ROOT / "saliscope" / "page" / "components" / "components.pyi"
    stub.unlink(missing_ok=True)
    code = "import os, sys, saliscope.page.build; sys.exit(os.environ.get('GRADIO_ANALYTICS_ENABLED') != 'False')"

    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
    assert not stub.exists()


def test_no_file_or_package_is_named_like_a_public_function() -> None:
    """A module `overlay.py` would overwrite the function `overlay` on the package when it is imported."""
    import explainers

    modules = {path.stem for path in (ROOT / "explainers").glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in (ROOT / "explainers").glob("*/__init__.py")}

    assert modules & set(explainers.__all__) == set()
