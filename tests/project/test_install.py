"""No text tells people to install what is not there, and the Space and the container have exact versions.

Saliscope has no release on a package index, so commands install it from its repository or from a clone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from saliscope import install

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # a requirement of pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
PLACES = ("README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md Makefile Dockerfile compose.yaml app.py "
          "docs deploy explainers saliscope models assets").split()  # fmt: skip
KINDS = {".md", ".ipynb", ".yaml", ".yml", ".conf", ".py", ".js", ".html", ".json", ".txt", ""}
FROM_REPOSITORY = re.compile(rf'"saliscope\[(\w+)\] @ git\+{re.escape(install.REPOSITORY)}"')
CLONE = re.compile(r"-e '\.\[([\w,]+)\]'")
COMMAND = re.compile(r"(?:\bpip3?|\buv|\bpipx|\bconda|\bpoetry) (?:pip )?(?:install|add|run)\b[^\n`]*|\buvx [^\n`]*")
ITSELF = re.compile(r"(?<![\w/.-])saliscope(?:\[|(?![\w./-]))")
"""The distribution, not a path such as `/home/ray/saliscope`, a file or a longer name."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file that people read or that prints messages."""
    for place in PLACES:
        path = ROOT / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix in KINDS and "__pycache__" not in file.parts:
                text = file.read_text(encoding="utf-8")
                yield file.relative_to(ROOT).as_posix(), text.replace('\\"', '"') if file.suffix == ".ipynb" else text


def wrong(text: str) -> list[str]:
    """Return the commands of a text that install neither from the repository, nor from a clone, nor something else."""
    rest = FROM_REPOSITORY.sub("REPOSITORY", text)
    found = [line for line in COMMAND.findall(rest) if ITSELF.search(line)]
    return found + re.findall(r"(?<![\w/.])saliscope\[[^\n]*", rest)


def test_commands_install_from_the_repository_or_from_a_clone() -> None:
    found = {name: lines for name, text in texts() if name != "saliscope/install.py" and (lines := wrong(text))}

    assert found == {}


def test_all_extras_in_commands_and_messages_exist() -> None:
    named = set()
    for name, text in texts():
        named |= set(FROM_REPOSITORY.findall(text)) | {
            extra for some in CLONE.findall(text) for extra in some.split(",")
        }
        if name.endswith(".py"):
            named |= set(re.findall(r"install\.(?:hint|command)\(['\"](\w+)['\"]\)", text))
            named |= set(re.findall(r"hub\.missing\(\"\w+\", \"(\w+)\"\)", text))

    assert {"app", "data", "ray", "mcp", "monitoring", "timm", "hf"} <= named <= set(EXTRAS)


def test_a_command_is_one_argument_of_a_shell_and_a_valid_requirement() -> None:
    command = subprocess.run(
        ["sh", "-c", f"printf '%s|' {install.command('app')}"], capture_output=True, text=True, check=True
    ).stdout.split("|")
    requirement = Requirement(command[2])

    assert command[:2] == ["pip", "install"] and command[3:] == [""]
    assert (requirement.name, requirement.extras) == ("saliscope", {"app"})
    assert requirement.url == f"git+{install.REPOSITORY}"


def test_a_missing_package_is_reported_with_the_command() -> None:
    code = "import sys; sys.modules['PIL'] = None\nfrom saliscope import example"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert "ImportError: saliscope.example needs the package PIL, which is not installed" in done.stderr
    assert f"{install.hint('app')}." in done.stderr


# Exact versions

LOCK = (ROOT / "pre-requirements.txt").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^(\S+)==(\S+)[^\n]*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", LOCK, re.M)
VERSIONS = {canonicalize_name(name): version for name, version, _ in ENTRIES}


def test_every_line_of_the_lock_file_belongs_to_a_package_with_hashes() -> None:
    rest = "\n".join(line for line in LOCK.splitlines() if not line.startswith(("#", "    --hash=")))

    assert len(ENTRIES) == len(rest.split("\n")) == len(VERSIONS) > 50


def test_the_locked_versions_are_within_the_ranges() -> None:
    wanted = [
        Requirement(line)
        for name in ("requirements.txt", "deploy/requirements.txt")
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]

    for each in wanted:
        version = VERSIONS.get(canonicalize_name(each.name))
        assert version and each.specifier.contains(version), f"{each}: {version} is locked. Run make lock."


def test_a_space_starts_with_the_locked_gradio() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert f"sdk_version: {VERSIONS['gradio']}\n" in readme


def test_the_container_is_built_from_digests_and_hashes() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    images = re.findall(r"^FROM (\S+)", dockerfile, re.M) + re.findall(r"^\s*image: (\S+)", compose, re.M)

    assert len(images) == 2 and all(re.search(r"@sha256:[0-9a-f]{64}$", image) for image in images)
    assert re.findall(r"pip install ([^\n]*)", dockerfile) == ["--require-hashes -r pre-requirements.txt"]
