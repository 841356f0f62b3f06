"""The layout: imports point one way, and nothing heavy is imported before the page."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import networkx as nx  # a requirement of torch

from tests.project.sources import ROOT, files, folder_graphs, imports, module_graph, module_of, parse

LEAVES = "errors nested options outputs probabilities targets derived_targets output_targets detections dtypes"
LEAVES += " default_targets findings placement students_t verdict"
FEATURES = "api batch channels erase lab maps methods rail ranking share trust"
"""Parts of the page that do not import each other."""


def within(package: str, names: str) -> list[str]:
    return [f"{package}.{name}" for name in names.split()]


ORDER = [
    *(
        within("explainers", names)
        for names in (
            *("hooks", "layers", "probe", "unusual", "call", "keywords blocks", "rules perturbation", "maps"),
            *("registry", "display", "methods explanation training", "checks metrics experiments", "concepts"),
        )
    ),
    ["explainers"],
    within("saliscope", "images zoo"),
    within("saliscope", "compute runs"),
    *(
        within("saliscope.page", names)
        for names in (
            *("elements files proxy shared", "wire serving", "components events operations", FEATURES),
            *("panel agents", "compare models overlay", "layout features first_paint", "build"),
        )
    ),
    ["saliscope.cli"],
]
"""Bottom to top: a package imports only packages of lines above its own, and files of itself."""
BASE = [*within("explainers", LEAVES), *within("saliscope", "errors hashes install limits names percentages resources")]
"""Files that every package of the same top level may import, and that import none of them."""
RANKS = {name: rank for rank, group in enumerate([BASE, *ORDER]) for name in group}
BATCH = "saliscope.page.batch"
"""The only part of the page that imports `runs`."""
LIBRARIES = {
    "explainers": {"explainers", "torch", "typing_extensions"},  # a requirement of torch
    "models": {"torch"},
    "app.py": {"saliscope"},
}
"""The packages that a folder may import besides the standard library."""
STANDARD = set(sys.stdlib_module_names) | {"__future__"}


def unit(module: str) -> str | None:
    """The package of ORDER or the file of BASE that a module belongs to."""
    parts = module.split(".")
    return next((name for k in range(len(parts), 0, -1) if (name := ".".join(parts[:k])) in RANKS), None)


def wrong_imports() -> list[str]:
    """Imports against ORDER."""
    wrong = []
    for path in [*files("explainers"), *files("saliscope")]:
        module = module_of(path)
        own = unit(module)
        for each in imports(path):
            target = unit(each.name)
            if target is None or own in (None, target) or (own in BASE and target in BASE):
                continue
            batch_only = target == "saliscope.runs" and own.startswith("saliscope.page") and own != BATCH
            if RANKS[target] >= RANKS[own] or batch_only:
                wrong.append(f"{module}:{each.line} imports {each.name}")
    return wrong


def test_packages_use_only_their_libraries() -> None:
    """No imports of packages that a folder does not depend on, and none of gradio below the page."""
    wrong = []
    for folder in ("explainers", "models", "app.py", "saliscope"):
        for path in files(folder):
            module = module_of(path)
            for each in imports(path):
                package = each.name.partition(".")[0]
                optional = folder == "explainers" and package == "PIL" and not each.at_once
                unknown = folder in LIBRARIES and package not in LIBRARIES[folder] | STANDARD and not optional
                ours = package in ("benchmarks", "tests", "models", "app")
                below = package == "gradio" and not module.startswith(("saliscope.page", "saliscope.cli"))
                if unknown or ours or below:
                    wrong.append(f"{module}:{each.line} imports {each.name}")
    assert wrong == []


def test_only_public_names_of_the_library_are_used() -> None:
    """What the page or a data set needs is public, with its docstring and example, or belongs to them."""
    import explainers

    public = {*explainers.__all__, "__version__", "__file__"}
    wrong = []
    for path in files("saliscope"):
        imported = [(each.name.partition("."), each.line) for each in imports(path)]
        used = [(name, line) for (package, _, name), line in imported if package == "explainers" and name]
        used += library_attributes(path)
        wrong += [f"{module_of(path)}:{line} uses explainers.{name}" for name, line in used if name not in public]
    assert wrong == []


def library_attributes(path: Path) -> list[tuple[str, int]]:
    """Return the attributes of `explainers` that a file reads, with their lines."""
    found = [node for node in ast.walk(parse(path)) if isinstance(node, ast.Attribute)]
    return [(node.attr, node.lineno) for node in found if ast.unparse(node.value) == "explainers"]


def cycles(folder: str) -> list[set[str]]:
    """Files that import each other, and for each package its files and packages that do."""
    graphs = [module_graph(folder), *folder_graphs(folder).values()]
    lists = [nx.DiGraph({name: list(targets) for name, targets in graph.items()}) for graph in graphs]
    return [found for each in lists for found in nx.strongly_connected_components(each) if len(found) > 1]


def test_imports_point_down() -> None:
    assert wrong_imports() == []
    packages = [f"{path.parent.parent.name}.{path.parent.name}" for path in ROOT.glob("*/*/__init__.py")]
    missing = [name for name in packages if name.startswith(("explainers.", "saliscope."))]
    assert {name for name in missing if name not in RANKS} == {"saliscope.page"}, "every package has its place"


def test_nothing_imports_itself_through_others() -> None:
    """Imports in functions and for types count too: two files that import each other are one."""
    for folder in ("explainers", "saliscope", "benchmarks"):
        assert cycles(folder) == []


def test_no_file_or_package_is_named_like_a_public_function() -> None:
    """A module `overlay.py` would overwrite the function `overlay` on the package when it is imported."""
    import explainers

    modules = {path.stem for path in (ROOT / "explainers").glob("*.py")}
    modules |= {path.parent.name for path in (ROOT / "explainers").glob("*/__init__.py")}
    assert modules & set(explainers.__all__) == set()
