"""The recipe "Add a model source" of CONTRIBUTING.md, done in a copy: its model is listed, loaded and explained."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SEEN = """
import torch
import explainers, models
from PIL import Image
from ui import words
from ui.engine import model_cache
from ui.serving import endpoints

infos = models.list_models()
assert [info.name for info in infos][0] != "digits" == infos[-1].name, "the order of FILES"
model = models.load_model("digits")
assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
assert models.labels("digits") == model.labels == [*"0123456789"]
image = model.prepare(Image.effect_noise((50, 40), 99))
assert explainers.explain("grad_cam", model.network, image).raw.shape == (1, 28, 28)

model_cache.ready.set()
loaded = model_cache.load("digits")
assert loaded.title == "Digits" and loaded.default in {layer.name for layer in loaded.layers}
(choice,) = [words.model_choice(info) for info in model_cache.list_models() if info.name == "digits"]
assert "Digits" in choice
(entry,) = [entry for entry in endpoints.list_models() if entry["name"] == "digits"]
assert entry["classes"] == 10 and entry["cached"] is True
print("seen everywhere")
"""


def section() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split("## Add a model source\n", 1)[1].split("\n## ", 1)[0]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project with the recipe's file and its entry in FILES; everything but the models is linked."""
    for path in ROOT.iterdir():
        if path.name != "models" and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "models", tmp_path / "models", ignore=shutil.ignore_patterns("__pycache__"))
    (block,) = re.findall(r"```python\n(.*?)```", section(), re.DOTALL)
    sources = tmp_path / "models" / "sources"
    (sources / "digits.py").write_text(textwrap.dedent(block), encoding="utf-8")
    register = sources / "__init__.py"
    text, count = re.subn(r"^(FILES = \(.*)\)$", r'\1, "digits")', register.read_text(encoding="utf-8"), flags=re.M)
    assert count == 1
    register.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_new_source_is_one_file_and_one_name(copy: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEEN], cwd=copy, capture_output=True, text=True, timeout=300, env=_offline(copy)
    )

    assert done.returncode == 0 and "seen everywhere" in done.stdout, done.stdout[-1000:] + done.stderr[-2000:]


def _offline(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOOKLENS_")}
    return kept | {"HOOKLENS_OFFLINE": "1", "TORCH_HOME": str(folder / "torch")}


def test_the_recipe_has_at_most_five_steps() -> None:
    steps = re.findall(r"^(\d)\. ", section(), re.M)

    assert steps == [str(number) for number in range(1, len(steps) + 1)] and 2 <= len(steps) <= 5
