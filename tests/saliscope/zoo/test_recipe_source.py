"""The recipes "Add a model" and "Add a model source" of CONTRIBUTING.md: models are listed, loaded and explained."""

from __future__ import annotations

import re
import textwrap
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import explainers
from saliscope import zoo
from saliscope.compute import messages, model_cache
from saliscope.zoo import catalog
from tests.support.catalog import isolate_catalog

ROOT = Path(__file__).resolve().parents[3]


def example(title: str) -> str:
    """Return the only block of code of a recipe."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    (block,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return textwrap.dedent("   " + block.lstrip())


@pytest.mark.parametrize(
    ("recipe", "title", "labels", "side"),
    [
        ("Add a model", "Stripes", ["horizontal", "vertical", "none"], 32),
        ("Add a model source", "Digits", [*"0123456789"], 28),
    ],
)
def test_a_recipe_is_found_everywhere(
    recipe: str, title: str, labels: list[str], side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is a file in a folder of the user; a source is a file whose name is in FILES, here in SOURCES."""
    isolate_catalog(monkeypatch, tmp_path)
    monkeypatch.setattr(model_cache, "_loaded", OrderedDict())  # the first model is the default one of later tests
    name = title.lower()
    if recipe == "Add a model":
        monkeypatch.setenv("SALISCOPE_MODELS_DIR", str(tmp_path))
        (tmp_path / f"{name}.py").write_text(example(recipe), encoding="utf-8")
    else:
        made: dict[str, Any] = {"__name__": "digits"}
        exec(example(recipe), made)
        monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, made["SOURCE"]))
        assert [info.name for info in zoo.list_models()][-1] == name, "the order of FILES"
    model = zoo.load_model(name)
    assert not model.network.training and not any(p.requires_grad for p in model.network.parameters())
    assert zoo.labels(name) == model.labels == labels
    image = model.prepare(Image.effect_noise((50, 40), 99))
    assert explainers.explain("grad_cam", model.network, image).raw.shape == (1, side, side)
    loaded = model_cache.load(name)
    assert loaded.title == title and loaded.default in {layer.name for layer in loaded.layers}
    (info,) = [info for info in model_cache.list_models() if info.name == name]
    assert title in messages.model_choice(info) and info.classes == len(labels) and info.cached
