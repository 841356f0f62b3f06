"""The recipes "Add a model" and "Add a model source" of CONTRIBUTING.md: models are listed, loaded and explained."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

EVERYWHERE = """
import explainers
from PIL import Image
from saliscope import zoo
from saliscope.page.serving import endpoints
from saliscope.session import messages, model_cache

name, title, names, side = {name!r}, {title!r}, {names!r}, {side!r}
model = zoo.load_model(name)
assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
assert zoo.labels(name) == model.labels == names
image = model.prepare(Image.effect_noise((50, 40), 99))
assert explainers.explain("grad_cam", model.network, image).raw.shape == (1, side, side)

model_cache.ready.set()
loaded = model_cache.load(name)
assert loaded.title == title and loaded.default in {{layer.name for layer in loaded.layers}}
(choice,) = [messages.model_choice(info) for info in model_cache.list_models() if info.name == name]
assert title in choice
(entry,) = [entry for entry in endpoints.list_models() if entry["name"] == name]
assert entry["classes"] == len(names) and entry["cached"] is True
print("found everywhere")
"""


def section(title: str) -> str:
    """Return the text of a recipe."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def example(title: str) -> str:
    """Return the only block of code of a recipe."""
    (block,) = re.findall(r"```python\n(.*?)```", section(title), re.DOTALL)
    return textwrap.dedent("   " + block.lstrip())


def run(code: str, folder: Path, **variables: str) -> None:
    """Run code in a folder, without settings of the user and without downloads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SALISCOPE_")}
    variables = {"SALISCOPE_OFFLINE": "1", "TORCH_HOME": str(folder / "torch")} | variables
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, env=kept | variables
    )
    assert done.returncode == 0 and "found everywhere" in done.stdout, done.stdout[-1000:] + done.stderr[-2000:]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project with the recipe's source and its entry in FILES; `saliscope` is copied, everything else is linked."""
    for path in ROOT.iterdir():
        if path.name != "saliscope" and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "saliscope", tmp_path / "saliscope", ignore=shutil.ignore_patterns("__pycache__"))
    sources = tmp_path / "saliscope" / "zoo" / "sources"
    (sources / "digits.py").write_text(example("Add a model source"), encoding="utf-8")
    register = sources / "__init__.py"
    text, count = re.subn(r"^(FILES = \(.*)\)$", r'\1, "digits")', register.read_text(encoding="utf-8"), flags=re.M)
    assert count == 1
    register.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_new_source_is_one_file_and_one_name(copy: Path) -> None:
    order = "\nassert [info.name for info in zoo.list_models()][-1] == 'digits', 'the order of FILES'"
    run(EVERYWHERE.format(name="digits", title="Digits", names=[*"0123456789"], side=28) + order, copy)


@pytest.mark.slow
def test_a_new_model_is_one_file_in_a_folder_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "stripes.py").write_text(example("Add a model"), encoding="utf-8")
    code = EVERYWHERE.format(name="stripes", title="Stripes", names=["horizontal", "vertical", "none"], side=32)
    run(code, ROOT, SALISCOPE_MODELS_DIR=str(tmp_path), TORCH_HOME=str(tmp_path))
