"""The recipes "Add a method" and "Add a backward rule" of docs/recipes.md, run in a copy of the project.

One file and one import line make a method known to the page, the API, the benchmark and the contract tests.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TOY = '''
"""A method that the tests add to a copy of the library."""

from typing import Annotated

from torch import Tensor, nn
from typing_extensions import Unpack

from explainers.call.run import open_run
from explainers.keywords import Call
from explainers.options import Range
from explainers.registry import method
from explainers.targets import TargetLike

Factor = Annotated[float, Range(1, 5)]


@method(family="gradient", returns="pixels", title="Toy gradient", paper="none")
def toy_gradient(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, factor: Factor = 2.0, **call: Unpack[Call]
) -> Tensor:
    """Toy gradient: the gradient times a factor.

    `forward` and `through` are as in `explain`.

    Returns  (n, c, h, w)
    Errors   BadTarget
    Source   none

    Example
        >>> toy_gradient(model, images, 281).shape
        torch.Size([1, 3, 224, 224])
    """
    with open_run(model, images, target) as run:
        return factor * run.backward.gradient(run.images)
'''

CHECK = """
import explainers
from benchmarks.cases import every_method
from saliscope.page.serving import endpoints
from saliscope.compute import model_cache

assert explainers.check_explainer(explainers.METHODS["toy_gradient"])
assert "toy_gradient" in explainers.__all__, "the decorator makes a name public"
loaded = model_cache.load("efficientnet_lite0")
model_cache.ready.set()
assert "Toy gradient" in [each.title for each in model_cache.list_methods(loaded)]
offered = {each["name"]: {option["name"]: option for option in each["options"]} for each in endpoints.list_methods()}
assert list(offered["toy_gradient"]) == ["factor"] and offered["toy_gradient"]["factor"]["high"] == 5
assert "saliscope, toy_gradient" in every_method()
assert "absolute" in offered["lrp"]["rule"]["choices"]
assert "epsilon_absolute" in offered["lrp"]["composite"]["choices"]
print("found everywhere")
"""


def insert(path: Path, before: str, block: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, block + before), encoding="utf-8")


def copy_project(folder: Path, *names: str) -> None:
    """Copy folders of the project, and link everything else."""
    for path in ROOT.iterdir():
        if path.name in names:
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__", "browser"))
        elif not path.name.startswith("."):
            (folder / path.name).symlink_to(path)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with a method and the blocks of the recipe of a rule; what they do not change is linked."""
    folder = tmp_path_factory.mktemp("project")
    copy_project(folder, "explainers", "tests")
    methods, oracles = folder / "explainers" / "methods", folder / "tests" / "support" / "oracles" / "rules.py"
    (methods / "toy.py").write_text(TOY)
    insert(methods / "__init__.py", "from explainers.registry import METHODS", "from explainers.methods.toy import *\n")
    guide = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    recipe = guide.split("## Add a backward rule\n")[1].split("\n## ")[0]
    blocks = [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", recipe, re.DOTALL)]
    rule, composite, parts, rules = blocks
    rules_file = folder / "explainers" / "rules" / "lrp_rules.py"
    relevance = folder / "tests" / "explainers" / "relevance" / "test_relevance.py"
    insert(rules_file, "@dataclass(frozen=True)\nclass Composite", f"{rule}\n\n")
    insert(rules_file, '    "epsilon_plus": ', textwrap.indent(composite, "    "))
    insert(oracles, '    elif rule == "z_plus":', textwrap.indent(parts, "    "))
    insert(relevance, '    ({"composite": "epsilon_plus"}', textwrap.indent(rules, "    "))
    return folder


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


def run_tests(folder: Path, path: str, selected: str) -> tuple[int, set[str], str]:
    """Return the number of tests that pass, the names of those that fail, and the output."""
    _, output = run(folder, "-m", "pytest", "-q", path, "-k", selected, "--slow", "-p", "no:cacheprovider")
    passed = re.search(r"(\d+) passed", output)
    return int(passed[1]) if passed else 0, set(re.findall(r"^FAILED \S+::(\S+)", output, re.M)), output[-3000:]


@pytest.mark.slow
def test_a_new_method_and_a_new_rule_are_found_and_tested(copy: Path) -> None:
    """The contract tests miss the oracle of the method, and other tests that of the rule."""
    code, output = run(copy, "-c", CHECK)
    assert code == 0 and "found everywhere" in output, output[-2000:]
    passed, failed, output = run_tests(copy, "tests/explainers/contract", "toy_gradient or has_an_oracle")
    assert passed >= 4 and failed == {"test_every_method_has_an_oracle"} and "toy_gradient" in output, output
    by_hand = "tests/explainers/relevance/test_relevance.py", "by_hand"
    passed, failed, output = run_tests(copy, *by_hand)
    assert passed >= 1 and not failed, output
    oracle = copy / "tests" / "support" / "oracles" / "rules.py"
    oracle.write_text(oracle.read_text(encoding="utf-8").replace('"absolute"', '"none"'), encoding="utf-8")
    _, failed, output = run_tests(copy, *by_hand)
    assert failed, output
