"""The wheel, installed in a fresh environment: every command runs outside the clone, and nothing else is installed.

The environment sees the third-party packages of the environment that runs the tests, so nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from saliscope import install
from saliscope.page.first_paint import bundle
from tests.saliscope.browser.conftest import served

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "assets" / "examples"
VERSION = (ROOT / "explainers" / "version.txt").read_text(encoding="utf-8").strip()


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build a wheel or a source archive, without pip and its isolated environment."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, timeout=300, capture_output=True)
    (found,) = folder.glob("saliscope-*")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the unpacked source archive: everything that the build reads is in the archive."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(build("sdist", ROOT, folder / "sdist")) as content:
        content.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return build("wheel", source, folder / "wheel")


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as content:
        (name,) = [each for each in content.namelist() if each.endswith(".dist-info/METADATA")]
        return Parser().parsestr(content.read(name).decode("utf-8"))


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


PLACES = {
    "explainers": "explainers",
    "saliscope": "saliscope",
    "models": "saliscope/_models",
    "assets": "saliscope/_assets",
}


def test_the_wheel_has_the_files_of_its_packages_and_nothing_else(wheel: Path) -> None:
    """A missing script or example image breaks an installed page; a package called `models` would hide the user's."""
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    files = {f"{place}/{path.relative_to(ROOT / source).as_posix()}" for source, place in PLACES.items()
             for path in (ROOT / source).rglob("*") if path.is_file() and "__pycache__" not in path.parts
             and path.suffix != ".pyi"}  # fmt: skip

    assert names == files and {"explainers/py.typed", "saliscope/py.typed", "explainers/version.txt"} <= names


def test_the_metadata_says_who_what_and_where_and_links_are_absolute(wheel: Path) -> None:
    found = metadata_of(wheel)
    addresses = dict(line.split(", ", 1) for line in found.get_all("Project-URL", []))
    assert (found["Name"], found["Version"], found["Requires-Python"]) == ("saliscope", VERSION, ">=3.10")
    assert found["License-Expression"] == "MIT"
    assert addresses["Source"] == install.REPOSITORY and {"Documentation", "Changelog", "Issues"} <= set(addresses)
    needed = [line for line in found.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert [re.split(r"[<>=!~ ]", line)[0] for line in needed] == ["torch"]

    text, readme = str(found.get_payload()), (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]*)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL))
    assert found["Description-Content-Type"].startswith("text/markdown") and text.startswith("# Saliscope\n")
    assert links and [link for link in links if not link.startswith("https://")] == []
    paths = [link.split("/main/")[1].partition("#")[0] for link in links if link.startswith(install.REPOSITORY)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    settings, _, body = readme.partition("\n---\n")
    assert settings and re.findall(r"^#+ .*?$|```.*?```", text, re.S | re.M) == re.findall(
        r"^#+ .*?$|```.*?```", body, re.S | re.M
    )


COMMANDS = """
import sys
others = "torchvision", "PIL", "gradio", "typer", "pyarrow", "sklearn", "numpy.testing"
sys.modules |= dict.fromkeys(others)  # cannot be imported
import explainers, torch
assert "saliscope" not in sys.modules
import saliscope, importlib.metadata as metadata
network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(), torch.nn.Linear(4, 2))
print(tuple(explainers.grad_cam(network.eval(), torch.rand(1, 3, 8, 8), 0).shape), explainers.__file__)
print("versions:", saliscope.__version__, explainers.__version__, metadata.version("saliscope"))
for name in others:
    del sys.modules[name]

from saliscope.__main__ import main
explain = "explain source --out run --workers 0 --model efficientnet_lite0?size=128"
run = explain, "report run --out report.html", "evaluate run --steps 3"
exits = []
for line in "--version", *run, "models", "methods", "replay missing.zip":
    try:
        exits.append(main(line.split()) or 0)
    except SystemExit as end:
        exits.append(int(end.code or 0))
print("exits:", *exits)
"""
"""The library without other packages than torch, and several commands in one process: torch takes seconds to start."""


def test_the_library_needs_only_torch_and_the_commands_run(bin: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "coffee.jpg").write_bytes((EXAMPLES / "coffee.jpg").read_bytes())

    out = run(bin, tmp_path, "python", "-c", COMMANDS)

    assert "(1, 6, 6)" in out and str(ROOT) not in out and f"versions: {' '.join([VERSION] * 3)}\n" in out
    assert "espresso" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "run" / "evaluation.json").is_file()
    assert "efficientnet_lite0" in out and "grad_cam" in out and "missing.zip" in out
    assert VERSION in out and "exits: 0 0 0 0 0 0 1\n" in out, out


def test_the_page_is_served(bin: Path, tmp_path: Path) -> None:
    """With all scripts and styles of the clone, whose hash is in the name of the script."""
    start, script = ("-m", "saliscope", "serve"), bundle.load()
    with served(tmp_path, *start, program=bin / "python", cwd=tmp_path, PYTHONPATH="") as address:
        page = urllib.request.urlopen(address, timeout=30).read().decode()
        assert "Saliscope" in page and f'href="hl/{script.name}"' in page
        assert urllib.request.urlopen(f"{address}/hl/{script.name}", timeout=30).read() == script.script
