"""Model files: every `.py` file with a function build() in SALISCOPE_MODELS_DIR is a model; recipes for models."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import explainers
from saliscope import errors, zoo
from saliscope.compute import messages, model_cache
from saliscope.zoo import ModelInfo, ModelUnavailable, catalog
from tests.support.catalog import isolate_catalog

TINY = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
"""
DESCRIBED = f"""{TINY}
TITLE = "Tiny network"
WEIGHTS = "random"
CLASSES = 3
PREPROCESSING = dict(size=32, resize=40, mean=(0.5,) * 3, std=(0.25,) * 3)

def labels():
    return ["fox", "owl", "elk"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder of model files; downloads are forbidden."""
    isolate_catalog(monkeypatch, tmp_path)
    monkeypatch.setenv("SALISCOPE_MODELS_DIR", str(tmp_path))
    return tmp_path


def find(name: str) -> ModelInfo:
    (info,) = [info for info in zoo.list_models() if info.name == name]
    return info


def test_broken_file_is_listed_with_its_error_and_read_again(folder: Path) -> None:
    for code, message in (
        ("import no_such_package", "Cannot import broken.py: ModuleNotFoundError: No module named 'no_such_package'"),
        ("def build(:", "Cannot import broken.py: SyntaxError"),
        ("x = 1", "broken.py has no function build(). Add one that returns an nn.Module"),
    ):
        (folder / "broken.py").write_text(code, encoding="utf-8")
        info = find("broken")
        assert message in info.error and not info.cached
        with pytest.raises(ModelUnavailable, match=re.escape(info.error.rstrip("."))):
            zoo.load_model("broken")
        assert find("efficientnet_lite0").cached
    for body, message in (("raise KeyError('no data')", "KeyError: 'no data'"), ("return None", "returned NoneType")):
        (folder / f"fails{len(body)}.py").write_text(f"def build():\n    {body}\n", encoding="utf-8")
        with pytest.raises(ModelUnavailable, match=message):
            zoo.load_model(f"fails{len(body)}")
    (folder / "broken.py").write_text(DESCRIBED + "\nTITLE = 'Another title'\n", encoding="utf-8")
    info = find("broken")
    assert (info.title, info.weights, info.error) == ("Another title", "random", "")


def test_visitors_of_a_public_page_read_no_texts_of_exceptions(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    causes = (
        "raise RuntimeError('no /secret/a.pt.')",
        "raise OSError(2, 'No file', '/secret/b.pt')",
        "{}['/secret/c']",
    )
    own = ("class Own(Exception): pass", "raise Own('/secret/d\\nline 2')")
    codes = [f"def build():\n    {cause}\n" for cause in causes] + ["\n".join(own)]
    for public, number in itertools.product((False, True), range(len(codes))):
        monkeypatch.setattr(errors, "is_public", public)
        (folder / f"fails{number}.py").write_text(codes[number], encoding="utf-8")
        with pytest.raises(ModelUnavailable) as caught:
            zoo.load_offered(f"fails{number}")
        kind = ("RuntimeError", "FileNotFoundError", "KeyError", "Own")[number]
        for text in (errors.told(caught.value), *([find("fails3").error] if number == 3 else [])):
            assert ("secret" in text) is not public and f"fails{number}.py" in text and (kind in text or not public)


def test_file_name_may_be_that_of_a_package_or_of_a_project_file(folder: Path) -> None:
    """A file of the project takes precedence."""
    for name in ("models", "saliscope", "torch", "page", "efficientnet_lite0"):
        (folder / f"{name}.py").write_text(DESCRIBED, encoding="utf-8")
    for name in ("models", "saliscope", "torch", "page"):
        assert zoo.load_model(name).labels == ["fox", "owl", "elk"]
    assert len(zoo.load_model("efficientnet_lite0").labels) == 1000


def test_file_can_import_its_neighbors_and_names_with_an_underscore_are_ignored(folder: Path) -> None:
    (folder / "_blocks.py").write_text(TINY, encoding="utf-8")
    (folder / "uses_blocks.py").write_text("from _blocks import build\n", encoding="utf-8")

    names = [info.name for info in zoo.list_models()]

    assert "uses_blocks" in names and "_blocks" not in names
    assert zoo.load_model("uses_blocks", size=32, mean=[0.5] * 3, std=[0.5] * 3).notes == ()


ROOT = Path(__file__).resolve().parents[3]


def example(title: str) -> str:
    """Return the only block of code of a recipe."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
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
    # The first model is the default one of later tests.
    monkeypatch.setattr(
        model_cache, "loaded_models", OrderedDict()
    )  # the first model is the default one of later tests
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
    assert zoo.labels(name) == model.labels == labels and model.notes == ()
    image = model.prepare(Image.effect_noise((50, 40), 99))
    assert explainers.explain("grad_cam", model.network, image).raw.shape == (1, side, side)
    loaded = model_cache.load(name)
    assert loaded.title == title and loaded.default in {layer.name for layer in loaded.layers}
    (info,) = [info for info in zoo.list_models() if info.name == name]
    assert title in messages.model_choice(info) and (info.classes, info.side) == (len(labels), side)
    assert info.cached and not info.fetched and not info.error
