"""The command line in a project folder: the user's packages are found, whatever their names, and errors exit with 1."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from saliscope.datasets.ray_engine import running
from saliscope.datasets.shards import open_run
from saliscope.session import model_cache
from tests.saliscope.session.test_share import made, packed

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("models", "ui", "dataset", "utils")
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
import dataset
import ui
from models.tiny import Tiny

def build():
    print(f"loaded {Tiny.__module__}, {dataset.NAME}, {ui.NAME}")
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


def saliscope(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m saliscope` in a folder, with this clone on the search path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SALISCOPE_")}
    variables = {"PYTHONPATH": str(ROOT), "SALISCOPE_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "saliscope", *arguments],
        cwd=folder,
        env=kept | variables,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    "model",
    ["my_net.py:build", *(pytest.param(name, marks=pytest.mark.slow) for name in ("my_net:build", "models.tiny:Tiny"))],
)
def test_explain_loads_the_packages_of_the_user(model: str, project: Path) -> None:
    done = saliscope(project, "explain", "images", "--model", model, "--out", "run", "--workers", "0", *SETTINGS)

    assert done.returncode == 0, done.stderr
    if "my_net" in model:
        assert "loaded models.tiny, my dataset, my ui" in done.stdout
    run = open_run(project / "run")
    assert run.table["path"].to_pylist() == ["a.png", "b.png"] and run.table["error"].null_count == 2
    assert run.manifest["classes"] == ["class 0", "class 1", "class 2"]


@pytest.mark.slow
def test_evaluate_and_report_load_the_same_packages(project: Path) -> None:
    explain = ("explain", "images", "--model", "my_net.py:build", "--weights", "w.pt", "--out", "run", *SETTINGS)
    save = "import torch; from my_net import build; torch.save(build().state_dict(), 'w.pt')"
    subprocess.run([sys.executable, "-c", save], cwd=project, check=True, timeout=120)
    assert saliscope(project, *explain, "--workers", "0").returncode == 0

    evaluate = saliscope(project, "evaluate", "run", "--images", "2", "--steps", "2", "--precision", "float32")
    report = saliscope(project, "report", "run", "--out", "report.html")

    assert evaluate.returncode == 0, evaluate.stderr
    assert json.loads((project / "run" / "evaluation.json").read_text(encoding="utf-8"))["images"] == 2
    assert report.returncode == 0 and (project / "report.html").is_file(), report.stderr


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.mark.slow
def test_serve_with_a_missing_model_file_exits_with_1(project: Path) -> None:
    done = saliscope(project, "serve", "--model", "missing.py:build", "--port", free_port())

    assert done.returncode == 1, done.stdout + done.stderr
    assert "File not found" in done.stderr and "missing.py" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_replay_with_a_missing_model_file_exits_with_1(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(model_cache, "wait", lambda *_: iter(()))
    model_cache.load("efficientnet_lite0")

    def upload(data: bytes) -> str:
        (tmp_path / "upload").write_bytes(data)
        return str(tmp_path / "upload")

    bundle = packed(tmp_path / "bundle.zip", made(upload, tmp_path))
    equal = saliscope(project, "replay", str(bundle))
    assert equal.returncode == 0, equal.stdout + equal.stderr

    done = saliscope(project, "replay", str(bundle), "--model", "missing.py:build")

    output = done.stdout + done.stderr
    assert done.returncode == 1 and "File not found" in output and "missing.py" in output, output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "images", "--out", "run", "--engine", "spark"),
        ("serve", "--port", "0"),
        ("replay",),
        ("unknown",),
        ("serve", "--size", "big"),
    ],
)
def test_usage_errors_exit_with_2(arguments: tuple[str, ...], project: Path) -> None:
    done = saliscope(project, *arguments)

    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs the extra ray")
def test_ray_workers_use_the_packages_of_the_project(project: Path) -> None:
    """Workers cannot import the project's packages, so the model is sent with their code."""
    done = saliscope(
        project, "explain", "images", "--model", "my_net.py:build", "--engine", "ray", "--out", "out", *SETTINGS
    )
    assert done.returncode == 0, done.stderr
    assert open_run(project / "out").manifest["counts"]["images"] == 2


def test_only_modules_of_the_user_are_sent_to_workers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    for name in ("models", "models.tiny", "utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module("models.tiny")

    names = {module.__name__ for module in running._user_modules()}

    assert {"models", "models.tiny", "utils"} <= names
    assert not {name for name in names if name.partition(".")[0] in ("torch", "numpy", "saliscope", "explainers", "os")}
