"""A wheel of the running code, which Ray installs for the workers of a cluster whose machines do not have it."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import explainers
import saliscope
from saliscope import resources

SECOND = (1980, 1, 1, 0, 0, 0)
"""The time of all files, so that equal code has an equal wheel."""


def build_wheel(folder: Path) -> Path:
    """Write the wheel to a folder, and return its path.

    It requires no other packages: pip would install another torch over that of the machine. Its version ends with a
    hash of the code, since Ray recognizes a wheel by its name and would use an old one.
    """
    files = dict(sorted(_files()))
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + content for name, content in files.items()))
    version = f"{saliscope.__version__}+{digest.hexdigest()[:12]}"
    info = f"saliscope-{version}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: saliscope\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: saliscope\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = b""  # pip lists what it installs
    path = folder / f"saliscope-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name, SECOND), content, zipfile.ZIP_DEFLATED)
    return path


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the files of both packages; the example images are not needed on a worker."""
    folders = {package.__name__: Path(str(package.__file__)).parent for package in (saliscope, explainers)}
    folders["saliscope/_models"] = resources.networks()
    for prefix, folder in folders.items():
        for path in folder.rglob("*"):
            inside = path.relative_to(folder)
            if path.is_file() and not {"__pycache__", "_models", "_assets"} & set(inside.parts):
                yield f"{prefix}/{inside.as_posix()}", path.read_bytes()
