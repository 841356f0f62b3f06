"""The packages of the Space and the container: exact versions with hashes, within the ranges of the project."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
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
