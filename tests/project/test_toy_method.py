"""One file, one import line: a new method is in the table, on the page, in the API, the benchmark and the contracts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TOY = '''
"""A method that the tests add to a copy of the library."""

from typing import Annotated

from torch import Tensor, nn

from explainers.options import Range
from explainers.passes.run import open_run
from explainers.registry import method
from explainers.targets import TargetLike


@method(family="gradient", returns="pixels", title="Toy gradient", paper="none")
def toy_gradient(
    model: nn.Module, images: Tensor, target: TargetLike = None, *, factor: Annotated[float, Range(1, 5)] = 2.0
) -> Tensor:
    """Toy gradient: the gradient times a factor.

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
from benchmarks.cases import every_method
from saliscope.session import model_cache
from saliscope.page.serving import endpoints

assert explainers.check_explainer(explainers.METHODS["toy_gradient"])
assert explainers.toy_gradient and explainers.toy_neighbor, "the decorator makes a name public"
assert {"toy_gradient", "toy_neighbor"} <= set(explainers.__all__)
loaded = model_cache.load("efficientnet_lite0")
model_cache.ready.set()
titles = [each.title for each in model_cache.list_methods(loaded, loaded.default)]
assert "Toy gradient" in titles, titles
(entry,) = [each for each in endpoints.list_methods() if each["name"] == "toy_gradient"]
assert [option["name"] for option in entry["options"]] == ["factor"] and entry["options"][0]["high"] == 5
assert "saliscope, toy_gradient" in every_method()
print("found everywhere")
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The project with an added file and an added line; library and tests are copied, everything else is linked."""
    folder = tmp_path_factory.mktemp("project")
    for path in ROOT.iterdir():
        if path.name in ("explainers", "tests") or path.name.startswith("."):
            continue
        (folder / path.name).symlink_to(path)
    skip = shutil.ignore_patterns("__pycache__", "browser")
    shutil.copytree(ROOT / "explainers", folder / "explainers", ignore=skip)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=skip)
    (folder / "explainers" / "methods" / "toy.py").write_text(TOY)
    imports = folder / "explainers" / "methods" / "__init__.py"
    last = "from explainers.registry import METHODS"
    imports.write_text(imports.read_text().replace(last, f"from explainers.methods.toy import *\n{last}", 1))
    beside = folder / "explainers" / "methods" / "gradients" / "plain_gradients.py"
    beside.write_text(beside.read_text() + NEXT_TO_OTHERS)
    return folder


def run(folder, *arguments):
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_new_method_is_on_the_page_in_the_api_and_in_the_benchmark(copy):
    code, output = run(copy, "-c", CHECK)
    assert code == 0 and "found everywhere" in output, output[-2000:]


@pytest.mark.slow
def test_the_contract_tests_cover_it(copy):
    code, output = run(
        copy,
        "-m",
        "pytest",
        "-q",
        "tests/explainers/contract/test_contracts.py",
        "-k",
        "toy_gradient",
        "--slow",
        "-p",
        "no:cacheprovider",
    )
    assert code == 0, output[-2000:]
    assert "4 passed" in output, "check_explainer and the tests of units, signs and precisions run on it"


@pytest.mark.slow
def test_a_method_without_an_oracle_is_reported(copy):
    code, output = run(
        copy,
        "-m",
        "pytest",
        "-q",
        "tests/explainers/contract/test_oracles.py",
        "-k",
        "has_an_oracle",
        "-p",
        "no:cacheprovider",
    )
    assert code == 1 and "toy_gradient" in output


@pytest.mark.slow
def test_a_method_without_an_example_is_reported(copy):
    code, output = run(
        copy, "-m", "pytest", "-q", "tests/explainers/contract/test_examples.py", "-k", "toy_", "-p", "no:cacheprovider"
    )
    assert code == 1 and "1 failed, 1 passed" in output and "output[toy_neighbor]" in output, output[-2000:]
