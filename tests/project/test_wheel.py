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
import time
import urllib.request
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from saliscope import install
from saliscope.datasets.ray_engine import wheel as wheels

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "assets" / "examples"


VERSION = (ROOT / "explainers" / "version.txt").read_text(encoding="utf-8").strip()


def build_wheel(source: Path, folder: Path) -> Path:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(folder), str(source)], check=True, timeout=300)
    (found,) = folder.glob("saliscope-*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=300, capture_output=True)
    (found,) = folder.glob("saliscope-*.tar.gz")
    return found


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


def test_only_two_names_are_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()

    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"explainers", "saliscope"}
    assert "explainers/py.typed" in names and "explainers/version.txt" in names
    for needed in ("py.typed", "_models/efficientnet_lite0.py", "_assets/examples.json", "page/static/wire.js"):
        assert f"saliscope/{needed}" in names, needed
    assert not [name for name in names if name.endswith((".pyc", ".pth")) or "/tests/" in name]


def test_the_metadata_says_who_what_and_where(wheel: Path) -> None:
    found = metadata_of(wheel)
    addresses = dict(line.split(", ", 1) for line in found.get_all("Project-URL", []))

    assert (found["Name"], found["Version"], found["Requires-Python"]) == ("saliscope", VERSION, ">=3.10")
    assert found["Author"] == "Saliscope developers" and found["License-Expression"] == "MIT"
    assert addresses["Source"] == install.REPOSITORY and {"Documentation", "Changelog", "Issues"} <= set(addresses)
    assert all(address.startswith(install.REPOSITORY) for address in addresses.values())
    assert len(found.get_all("Classifier", [])) >= 8 and len(found["Keywords"].split(",")) >= 5
    needed = [line for line in found.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert [re.split(r"[<>=!~ ]", line)[0] for line in needed] == ["torch"]


def test_the_long_description_is_the_readme_with_absolute_addresses(wheel: Path) -> None:
    found = metadata_of(wheel)
    text, readme = str(found.get_payload()), (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]*)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL))

    assert found["Description-Content-Type"].startswith("text/markdown") and text.startswith("# Saliscope\n")
    assert "sdk_version" not in text and links
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"{install.REPOSITORY}/raw/main/assets/screenshot.png" in links
    paths = [link.split("/main/")[1].partition("#")[0] for link in links if link.startswith(install.REPOSITORY)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    for pattern in (r"```.*?```", r"^#+ .*?$"):
        settings, _, body = readme.partition("\n---\n")
        assert settings and re.findall(pattern, text, re.S | re.M) == re.findall(pattern, body, re.S | re.M)


def test_the_source_archive_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """Also without the clone: everything that the build reads is in the archive."""
    with tarfile.open(sdist) as content:
        content.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    other = build_wheel(source, tmp_path / "wheel")

    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(other) as two:
        assert sorted(one.namelist()) == sorted(two.namelist())
    assert (source / "README.md").is_file() and metadata_of(other).as_string() == metadata_of(wheel).as_string()


USER = """
from pathlib import Path

from torch import Tensor
from typing_extensions import assert_type

import explainers
from explainers import METHODS, Explanation, MethodName, explain
from saliscope import __version__, example, list_models, load_model

model = load_model("efficientnet_lite0")
image = example("coffee")
batch: Tensor = model.prepare(image)
name: MethodName = "grad_cam"
assert_type(explain(name, model.network, batch), Explanation)
assert_type(explain("any registered name", model.network, batch), Explanation)
assert_type(explain(explainers.grad_cam, model.network, batch), Explanation)
assert_type(explain(METHODS["lrp"], model.network, batch, 281), Explanation)
names: list[str] = [info.name for info in list_models()]
versions: tuple[str, str] = (explainers.__version__, __version__)
"""
WRONG = """
from explainers import MethodName
from saliscope import load_model

name: MethodName = "grad_can"
load_model(3)
"""


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_type_checkers_know_the_types_of_an_installed_package(checker: str, bin: Path, tmp_path: Path) -> None:
    """Without py.typed, mypy reports missing types, and both checkers accept the wrong calls."""
    pytest.importorskip(checker)
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    python = str(bin / "python")
    if checker == "mypy":
        command = ["mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path / "cache")]
        command += ["--python-executable", python]
    else:
        (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}', encoding="utf-8")
        command = ["basedpyright", "--pythonpath", python]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}

    def check(file: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-P" if sys.version_info >= (3, 11) else "-E", "-m", *command, file],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    assert check("user.py")[0] == 0, check("user.py")[1]
    code, text = check("wrong.py")
    assert code == 1 and "wrong.py:5" in text and "wrong.py:6" in text, text


def test_the_version_is_the_same_everywhere(bin: Path, tmp_path: Path) -> None:
    code = "import saliscope, explainers, importlib.metadata as m\n"
    code += "print(saliscope.__version__, explainers.__version__, m.version('saliscope'))"

    assert run(bin, tmp_path, "python", "-c", code).split() == [VERSION] * 3
    assert run(bin, tmp_path, "saliscope", "--version").split() == [VERSION]


def test_the_wheel_for_the_workers_of_ray_has_the_version_too(tmp_path: Path) -> None:
    """Its own version ends with a hash of the code; pip unpacks it on the machines of a cluster."""
    found = wheels.build_wheel(tmp_path)
    with zipfile.ZipFile(found) as content:
        content.extractall(tmp_path / "site")
    code = "import saliscope, explainers; print(saliscope.__version__, explainers.__version__, explainers.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "site", capture_output=True, text=True, check=True, timeout=300
    )

    assert found.name.startswith(f"saliscope-{VERSION}+")
    assert done.stdout.split() == [VERSION, VERSION, str(tmp_path / "site" / "explainers" / "__init__.py")]


def test_the_library_needs_only_torch(bin: Path, tmp_path: Path) -> None:
    code = """
import sys
for name in ("torchvision", "PIL", "gradio", "typer", "pyarrow", "sklearn", "numpy.testing"):
    sys.modules[name] = None
import explainers, torch
assert "saliscope" not in sys.modules and explainers.__version__
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
