"""Import the user's Python modules, by path or by name. The user's packages take precedence over other packages."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from saliscope.zoo.sources.source import ModelUnavailable


def load(path: Path, name: str) -> ModuleType:
    """Return the module in a file, which can import the packages in its folder.

    Errors   ModelUnavailable
    """
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ModelUnavailable(f"File not found: {path}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, "a .py file has a loader"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look up their module
    try:
        with first_on_path(path.parent):
            spec.loader.exec_module(module)
    except Exception as error:  # the user's own code
        sys.modules.pop(name, None)
        raise ModelUnavailable(f"Cannot import {path.name}: {type(error).__name__}: {error}") from error
    return module


def import_by_name(name: str) -> ModuleType:
    """Return the module with this name, which may be in the working directory.

    Errors   ModelUnavailable
    """
    try:
        with first_on_path(Path.cwd()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ModelUnavailable(
                f"No module named {error.name!r}. Install it, or run the command in the folder that contains it"
            ) from error
        raise ModelUnavailable(f"Cannot import {name}: {type(error).__name__}: {error}") from error
    except Exception as error:  # the user's own code
        raise ModelUnavailable(f"Cannot import {name}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def first_on_path(folder: Path) -> Iterator[None]:
    """Put a folder first on the module search path inside the block, as Python does for a script's folder.

    A user's project may have packages with the names of folders in this repository (`models`, `tests`) or of an
    installed package. After the block the folder is last, so that its files do not hide packages imported later.
    """
    text = str(folder)
    sys.path.insert(0, text)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(text)
        if text not in sys.path and os.path.isdir(text):
            sys.path.append(text)
