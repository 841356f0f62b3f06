"""Files that are installed with the package: the example images and the networks of the project.

In a clone they are next to the package, in `assets/` and `models/`. A wheel contains both inside the package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def assets() -> Path:
    """Return the folder of example images."""
    return _folder("assets", "examples.json")


def networks() -> Path:
    """Return the folder of the networks that ship with the project."""
    return _folder("models", "efficientnet_lite0.py")


def _folder(name: str, content: str) -> Path:
    installed = _PACKAGE / f"_{name}"
    return installed if (installed / content).is_file() else _PACKAGE.parent / name
