"""The recipes "Add a method" and "Add a backward rule" of CONTRIBUTING.md, run in a copy of the project.

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

from explainers.network.forward_wrapper import Forward
from explainers.options import Range
from explainers.passes.run import open_run
from explainers.registry import method
from explainers.targets import TargetLike, ThroughLike


@method(family="gradient", returns="pixels", title="Toy gradient", paper="none")
def toy_gradient(
    model: nn.Module,
    images: Tensor,
    target: TargetLike = None,
    *,
    factor: Annotated[float, Range(1, 5)] = 2.0,
    forward: Forward | None = None,
    through: ThroughLike | None = None,
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

NEXT_TO_OTHERS = '''

@method(family="gradient", returns="pixels", title="Toy neighbor", paper="none")
def toy_neighbor(model: nn.Module, images: Tensor, target: TargetLike = None) -> Tensor:
    """Toy neighbor: a method in an existing file."""
    with open_run(model, images, target) as run:
        return run.backward.gradient(run.images)
'''

CHECK = """
import torch, explainers
from torch import nn
from benchmarks.cases import every_method
from saliscope.session import model_cache
from saliscope.page.serving import endpoints

assert explainers.check_explainer(explainers.METHODS["toy_gradient"])
assert explainers.toy_gradient and explainers.toy_neighbor, "the decorator makes a name public"
assert {"toy_gradient", "toy_neighbor"} <= set(explainers.__all__)
loaded = model_cache.load("efficientnet_lite0")
model_cache.ready.set()
titles = [each.title for each in model_cache.list_methods(loaded)]
assert "Toy gradient" in titles, titles
(entry,) = [each for each in endpoints.list_methods() if each["name"] == "toy_gradient"]
assert [option["name"] for option in entry["options"]] == ["factor"] and entry["options"][0]["high"] == 5
assert "saliscope, toy_gradient" in every_method()

torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)).double().eval()
images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
found = explainers.lrp(network, images, 1, composite="epsilon_absolute")
mixed = explainers.lrp(network, images, 1, rule={"0": "absolute", "Linear": "epsilon"})
torch.testing.assert_close(found, mixed, rtol=0, atol=0)
assert found.any() and not torch.allclose(found, explainers.lrp(network, images, 1))
assert not torch.allclose(found, explainers.lrp(network, images, 1, rule="absolute"))
message = ""
try:
    explainers.lrp(network, images, 1, rule="absolut")
except explainers.BadOption as error:
    message = str(error)
assert "Did you mean 'absolute'" in message, message

options = explainers.METHODS["lrp"].options
assert "absolute" in options["rule"].choices and "epsilon_absolute" in options["composite"].choices
(entry,) = [entry for entry in endpoints.list_methods() if entry["name"] == "lrp"]
choices = {option["name"]: option["choices"] for option in entry["options"]}
assert "absolute" in choices["rule"] and "epsilon_absolute" in choices["composite"]
print("found everywhere")
"""


def insert(path: Path, before: str, block: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, block + before), encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with two methods and the blocks of the recipe of a rule; what they do not change is linked."""
    folder = tmp_path_factory.mktemp("project")
    for path in ROOT.iterdir():
        if path.name not in ("explainers", "tests") and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    for name in ("explainers", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "browser"))
    methods, oracles = folder / "explainers" / "methods", folder / "tests" / "support" / "oracles" / "rules.py"
    (methods / "toy.py").write_text(TOY)
    insert(methods / "__init__.py", "from explainers.registry import METHODS", "from explainers.methods.toy import *\n")
    with (methods / "gradients" / "plain_gradients.py").open("a") as neighbor:
        neighbor.write(NEXT_TO_OTHERS)
    recipe = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Add a backward rule\n")[1].split("\n## ")[0]
    )
    blocks = [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", recipe, re.DOTALL)]
    rule, composite, parts, rules = blocks
    rules_file = folder / "explainers" / "backward" / "lrp_rules.py"
    relevance = folder / "tests" / "explainers" / "relevance" / "test_relevance.py"
    insert(rules_file, "def excitation(", f"{rule}\n\n")
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
def test_a_new_method_and_a_new_rule_are_found_everywhere(copy: Path) -> None:
    code, output = run(copy, "-c", CHECK)

    assert code == 0 and "found everywhere" in output, output[-2000:]


@pytest.mark.slow
def test_the_contract_tests_cover_a_new_method_and_miss_its_oracle_and_its_example(copy: Path) -> None:
    passed, failed, output = run_tests(copy, "tests/explainers/contract", "toy_gradient or has_an_oracle")
    assert passed >= 4 and failed == {"test_every_method_has_an_oracle"} and "toy_gradient" in output, output
    passed, failed, output = run_tests(copy, "tests/explainers/contract/test_examples.py", "toy_")
    assert passed == 1 and "toy_neighbor" in " ".join(failed) and len(failed) == 1, output


@pytest.mark.slow
def test_the_tests_compare_a_new_rule_with_its_oracle(copy: Path) -> None:
    """Without the oracle, they fail."""
    by_hand = "tests/explainers/relevance/test_relevance.py", "by_hand"
    passed, failed, output = run_tests(copy, *by_hand)
    assert passed >= 2 and not failed, output
    oracle = copy / "tests" / "support" / "oracles" / "rules.py"
    oracle.write_text(oracle.read_text(encoding="utf-8").replace('"absolute"', '"none"'), encoding="utf-8")
    passed, failed, output = run_tests(copy, *by_hand)
    assert len(failed) == 2, output
