"""The recipe "Add a backward rule" of CONTRIBUTING.md, run in a copy: the rule is accepted, listed and tested."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHECK = """
import torch
import explainers
from torch import nn
from saliscope.session import model_cache
from saliscope.page.serving import endpoints

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
model_cache.load("efficientnet_lite0")
model_cache.ready.set()
(entry,) = [entry for entry in endpoints.list_methods() if entry["name"] == "lrp"]
choices = {option["name"]: option["choices"] for option in entry["options"]}
assert "absolute" in choices["rule"] and "epsilon_absolute" in choices["composite"]
print("found everywhere")
"""


def section() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split("## Add a backward rule\n", 1)[1].split("\n## ", 1)[0]


def insert(path: Path, before: str, block: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, block + before), encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the recipe's four blocks inserted; library and tests are copied, everything else is linked."""
    folder = tmp_path_factory.mktemp("project")
    for path in ROOT.iterdir():
        if path.name not in ("explainers", "tests") and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    for name in ("explainers", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "browser"))
    rule, composite, *oracles = re.findall(r"```python\n(.*?)```", section(), re.DOTALL)
    parts, rules = oracles
    rules_file = folder / "explainers" / "backward" / "lrp_rules.py"
    insert(rules_file, "def excitation(", textwrap.dedent(rule) + "\n\n")
    insert(rules_file, '    "epsilon_plus": ', textwrap.indent(textwrap.dedent(composite), "    "))
    insert(
        folder / "tests" / "support" / "oracles" / "rules.py",
        '    elif rule == "z_plus":',
        textwrap.indent(textwrap.dedent(parts), "    "),
    )
    insert(
        folder / "tests" / "explainers" / "relevance" / "test_relevance.py",
        '        "epsilon_plus": (',
        textwrap.indent(textwrap.dedent(rules), "        "),
    )
    return folder


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_new_rule_and_composite_are_accepted_and_listed(copy: Path) -> None:
    code, output = run(copy, "-c", CHECK)

    assert code == 0 and "found everywhere" in output, output[-2000:]


ORACLES = ("-m", "pytest", "-q", "tests/explainers/relevance/test_relevance.py", "-k", "by_hand and absolute")
ORACLES += ("-p", "no:cacheprovider")


@pytest.mark.slow
def test_the_tests_compare_it_with_its_oracle(copy: Path) -> None:
    code, output = run(copy, *ORACLES)

    assert code == 0 and "2 passed" in output, output[-2000:]


@pytest.mark.slow
def test_a_rule_without_an_oracle_is_missed(copy: Path) -> None:
    oracle = copy / "tests" / "support" / "oracles" / "rules.py"
    text = oracle.read_text(encoding="utf-8")
    oracle.write_text(text.replace('"absolute"', '"none"'), encoding="utf-8")
    try:
        code, output = run(copy, *ORACLES)
    finally:
        oracle.write_text(text, encoding="utf-8")

    assert code == 1 and "2 failed" in output, output[-2000:]


def test_the_recipe_has_at_most_five_steps() -> None:
    steps = re.findall(r"^(\d)\. ", section(), re.M)

    assert steps == [str(number) for number in range(1, len(steps) + 1)] and 2 <= len(steps) <= 5
