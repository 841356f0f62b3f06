"""What imports torch, and what `import saliscope` offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import saliscope
from tests.project.sources import ROOT, files, module_of

SESSION = (
    "saliscope.compute.api_messages saliscope.compute.text_messages saliscope.compute.request "
    "saliscope.compute.bundles.links saliscope.compute.lab.experiments "
    "saliscope.compute.lab.expressions saliscope.compute.methods.costs "
    "saliscope.compute.methods.explanations saliscope.compute.methods.lines saliscope.compute.methods.papers"
).split()
"""Texts, requests and plans that are not in `jobs` and not called `messages`."""
LIGHT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "torch" not in sys.modules, f"{name} imports torch"
"""


def run(code: str, *names: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_texts_jobs_and_requests_do_not_import_torch() -> None:
    modules = [module_of(path) for folder in ("compute", "images", "cli") for path in files(f"saliscope/{folder}")]
    names = [name for name in modules if name.endswith("messages") or name.startswith("saliscope.compute.jobs.")]
    names += [name for name in modules if name.startswith(("saliscope.images", "saliscope.cli"))]
    assert len(names) > 40
    run(LIGHT, "saliscope", "saliscope.limits", "saliscope.zoo.settings", "saliscope.zoo.names", *SESSION, *names)


def test_dir_lists_the_public_names_and_importing_them_does_not_import_torch() -> None:
    code = "import sys, saliscope; print(dir(saliscope)); assert not {'torch', 'PIL'} & set(sys.modules)"
    assert run(code) == str(["__version__", "example", "list_models", "load_model", "runs"])
    assert all(hasattr(saliscope, name) for name in dir(saliscope))


def test_an_example_is_an_image_of_the_installed_package() -> None:
    image = saliscope.example("coffee")
    path = Path(image.filename)  # type: ignore[attr-defined]
    assert image.mode == "RGB" and path.name == "coffee.jpg" and Image.open(path).size == image.size
    with pytest.raises(ValueError, match=r"Unknown example 'cofee'.*dog, coffee"):
        saliscope.example("cofee")
