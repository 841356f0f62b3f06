"""The user's own networks: `package.module:factory`, or `folder/file.py:factory`.

`factory` is a function without arguments, or a class, that gives an `nn.Module` or a `models.Model`; or the network
itself. Modules are found as Python finds them, and in the working directory.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from models.downloads import Progress
from models.model import Model
from models.own import UNKNOWN
from models.sources import timm_models
from models.sources.source import ModelUnavailable, OpenSource
from models.transforms import BadTransform

NAME = re.compile(r"(?:(?P<file>(?:[A-Za-z]:)?[^:]*\.py)|(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*)):(?P<of>[\w.]+)")


class Factories(OpenSource):
    """Networks that the user's own code builds."""

    def accepts(self, name: str) -> bool:
        return NAME.fullmatch(name) is not None

    def load(self, name: str, progress: Progress | None = None) -> Model:
        return self.build(name, None)

    def build(self, name: str, classes: int | None) -> Model:
        parts = NAME.fullmatch(name)
        assert parts, "`accepts` has seen it"
        module = _of_file(Path(parts["file"])) if parts["file"] else _of_name(parts["module"])
        factory: Any = module
        for attribute in parts["of"].split("."):
            if not hasattr(factory, attribute):
                where = parts["file"] or parts["module"]
                raise ModelUnavailable(f"{where} has no {parts['of']!r}. Name a function that gives a network")
            factory = getattr(factory, attribute)
        made = factory if isinstance(factory, (nn.Module, Model)) else _made(name, factory)
        if isinstance(made, Model):
            return made
        if not isinstance(getattr(made, "pretrained_cfg", None), dict):
            return Model(name, made, [], UNKNOWN)
        try:
            preparation = timm_models.preparation_of(made)
        except BadTransform:
            return Model(name, made, [], UNKNOWN)
        note = f"The preprocessing of {name!r} is that of its configuration in timm."
        return Model(name, made, [], preparation, notes=(note,))


SOURCE = Factories()


def _made(name: str, factory: Any) -> nn.Module | Model:
    """What the factory gives.

    Errors   ModelUnavailable where it fails or gives something else
    """
    if not callable(factory):
        raise ModelUnavailable(f"{name!r} is {type(factory).__name__}. Name a function that gives a network")
    try:
        made = factory()
    except Exception as error:  # the user's own code
        raise ModelUnavailable(f"{name!r} failed with {type(error).__name__}: {error}") from error
    if not isinstance(made, (nn.Module, Model)):
        raise ModelUnavailable(f"{name!r} gave {type(made).__name__}. It must give an nn.Module or a models.Model")
    return made


def _of_name(name: str) -> ModuleType:
    """The module of that name; the working directory comes last, so that it hides no package.

    Errors   ModelUnavailable
    """
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            ours = ": this name is taken by Hooklens itself; name the file, as folder/file.py:factory"
            hint = ours if name.partition(".")[0] in ("models", "ui", "explainers", "benchmarks", "app") else ""
            raise ModelUnavailable(f"There is no module {error.name!r} here{hint}") from error
        raise ModelUnavailable(f"{name} cannot be imported ({type(error).__name__}: {error})") from error
    except Exception as error:  # the user's own code
        raise ModelUnavailable(f"{name} cannot be imported ({type(error).__name__}: {error})") from error


def _of_file(path: Path) -> ModuleType:
    """The module in a file; the files beside it can be imported from it.

    Errors   ModelUnavailable
    """
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ModelUnavailable(f"There is no file {path}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"_own_{path.stem}"  # a file may be called models.py
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, "a .py file has a loader"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code
        raise ModelUnavailable(f"{path.name} cannot be imported ({type(error).__name__}: {error})") from error
    return module
