"""The wheel, installed in a fresh environment: every command runs outside the clone, and nothing else is installed.

The environment sees the third-party packages of the environment that runs the tests, so nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "assets" / "examples"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(folder), str(ROOT)], check=True, timeout=300)
    (found,) = folder.glob("saliscope-*.whl")
    return found


@pytest.fixture(scope="module")
def bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a fresh environment with the wheel; the clone is not on its path."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=300)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, timeout=300)
    (site,) = (home / "lib").glob("python*/site-packages")
    paths = dict.fromkeys([sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]])
    (site / "third_party.pth").write_text("\n".join(paths), encoding="utf-8")  # their own .pth files are not read
    return home / "bin"


def run(bin: Path, folder: Path, program: str, *arguments: str, code: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"SALISCOPE_OFFLINE": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(
        [str(bin / program), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_only_two_names_are_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()

    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"explainers", "saliscope"}
    for needed in ("_models/efficientnet_lite0.py", "_assets/examples.json", "page/static/wire.js"):
        assert f"saliscope/{needed}" in names, needed
    assert not [name for name in names if name.endswith((".pyc", ".pth")) or "/tests/" in name]


def test_the_library_needs_only_torch(bin: Path, tmp_path: Path) -> None:
    code = """
import sys
for name in ("torchvision", "PIL", "gradio", "typer", "pyarrow", "sklearn", "numpy.testing"):
    sys.modules[name] = None
import explainers, torch
import saliscope
network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(), torch.nn.Linear(4, 2))
print(tuple(explainers.grad_cam(network.eval(), torch.rand(1, 3, 8, 8), 0).shape), explainers.__file__)
"""
    out = run(bin, tmp_path, "python", "-c", code)

    assert "(1, 6, 6)" in out and str(ROOT) not in out


COMMANDS = """
from saliscope.__main__ import main

run = "explain source --out run --workers 0", "report run --out report.html", "evaluate run --steps 3"
exits = []
for line in *run, "models", "methods", "replay missing.zip":
    try:
        exits.append(main(line.split()) or 0)
    except SystemExit as end:
        exits.append(int(end.code or 0))
print("exits:", *exits)
"""
"""Several commands in one process, because torch takes seconds to start."""


def test_a_data_set_is_explained_reported_and_evaluated(bin: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("coffee.jpg", "dog.jpg"):
        (source / name).write_bytes((EXAMPLES / name).read_bytes())

    out = run(bin, tmp_path, "python", "-c", COMMANDS)

    assert "espresso" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "run" / "evaluation.json").is_file()
    assert "efficientnet_lite0" in out and "grad_cam" in out and "missing.zip" in out
    assert "exits: 0 0 0 0 0 1\n" in out, out


def test_the_page_is_served(bin: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(bin / "saliscope"), "serve"],
            cwd=tmp_path,
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONPATH": ""},
        )
    try:
        address = ""
        for _ in range(600):
            found = [word for word in log.read_text(encoding="utf-8").split() if word.startswith("http://")]
            if found or server.poll() is not None:
                address = found[0].rstrip(".") if found else ""
                break
            time.sleep(0.1)
        assert address, log.read_text(encoding="utf-8")
        page = urllib.request.urlopen(address, timeout=30).read().decode()
        script = urllib.request.urlopen(f"{address.rstrip('/')}/hl/wire.js", timeout=30).read()
    finally:
        server.terminate()
        server.wait(30)

    assert "Saliscope" in page and script
