"""The command line in a project folder: the user's packages are found, whatever their names, and errors exit with 1."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from saliscope.runs.shards import open_run

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("models", "benchmarks", "utils")
TINY = """
from torch import nn

from utils import CHANNELS

class Tiny(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, CHANNELS, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 3)
        )
"""
FACTORY = """
import benchmarks
from models.tiny import Tiny

def build():
    print(f"loaded {Tiny.__module__}, {benchmarks.NAME}")
    return Tiny()
"""
SETTINGS = ("--size", "32", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project folder whose packages have the names of folders of this repository, and two images."""
    folder = tmp_path / "project"
    for name in PACKAGES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"NAME = 'my {name}'\nCHANNELS = 8\n", encoding="utf-8")
    (folder / "models" / "tiny.py").write_text(TINY, encoding="utf-8")
    (folder / "my_net.py").write_text(FACTORY, encoding="utf-8")
    (folder / "images").mkdir()
    for name in ("a", "b"):
        Image.effect_noise((60, 50), 80).convert("RGB").save(folder / "images" / f"{name}.png")
    return folder


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m saliscope` in a folder, with this clone on the search path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SALISCOPE_")}
    variables = {"PYTHONPATH": str(ROOT), "SALISCOPE_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "saliscope", *arguments]
    return subprocess.run(words, cwd=folder, env=kept | variables, capture_output=True, text=True, timeout=240)


def test_explain_loads_the_packages_of_the_user(project: Path) -> None:
    own = ("--model", "my_net.py:build", "--out", "run", "--workers", "0", *SETTINGS)
    done = command(project, "explain", "images", *own)
    assert done.returncode == 0, done.stderr
    assert "loaded models.tiny, my benchmarks" in done.stdout
    run = open_run(project / "run")
    assert run.table["path"].to_pylist() == ["a.png", "b.png"] and run.table["error"].null_count == 2
    assert run.manifest["classes"] == ["class 0", "class 1", "class 2"]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs the extra ray")
@pytest.mark.parametrize("model", ["my_net:build", "models.tiny:Tiny"])
def test_ray_workers_and_evaluate_use_the_packages_of_the_project(model: str, project: Path) -> None:
    """Workers cannot import the project's packages, so the model is sent with their code."""
    done = command(project, "explain", "images", "--model", model, "--engine", "ray", "--out", "out", *SETTINGS)
    assert done.returncode == 0, done.stderr
    assert open_run(project / "out").manifest["counts"]["images"] == 2
