"""The user's own networks: `package.module:factory`, or `folder/file.py:factory`.

`factory` is a function without arguments or a class that returns an `nn.Module` or a `zoo.Model`, or the network
itself. Modules are found on Python's search path and in the working directory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import nn

from hooklens.zoo.downloads import Progress
from hooklens.zoo.model import Model
from hooklens.zoo.overrides import UNKNOWN
from hooklens.zoo.sources import python_files, timm_models
from hooklens.zoo.sources.source import ModelUnavailable, OpenSource
from hooklens.zoo.transforms import BadTransform

NAME = re.compile(r"(?:(?P<file>(?:[A-Za-z]:)?[^:]*\.py)|(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*)):(?P<of>[\w.]+)")


class Factories(OpenSource):
    """Networks that the user's own code builds."""

    def accepts(self, name: str) -> bool:
        return NAME.fullmatch(name) is not None

    def load(self, name: str, progress: Progress | None = None) -> Model:
        return self.build(name, None)

    def build(self, name: str, classes: int | None) -> Model:
        parts = NAME.fullmatch(name)
        assert parts, "`accepts` has checked the name"
        folder = Path(parts["file"]).expanduser().resolve().parent if parts["file"] else Path.cwd()
        if parts["file"]:
            path = Path(parts["file"])
            module = python_files.load(path, f"_own_{path.stem}")  # the prefix avoids name clashes (models.py)
        else:
            module = python_files.import_by_name(parts["module"])
        factory: Any = module
        for attribute in parts["of"].split("."):
            if not hasattr(factory, attribute):
                where = parts["file"] or parts["module"]
                raise ModelUnavailable(f"{where} has no {parts['of']!r}. Name a function that returns a network")
            factory = getattr(factory, attribute)
        result = factory if isinstance(factory, (nn.Module, Model)) else _call(name, factory, folder)
        if isinstance(result, Model):
            return result
        if not isinstance(getattr(result, "pretrained_cfg", None), dict):
            return Model(name, result, [], UNKNOWN)
        try:
            preparation = timm_models.preparation_of(result)
        except BadTransform:
            return Model(name, result, [], UNKNOWN)
        note = f"The preprocessing of {name!r} was read from its timm configuration."
        return Model(name, result, [], preparation, notes=(note,))


SOURCE = Factories()


def _call(name: str, factory: Any, folder: Path) -> nn.Module | Model:
    """Return the result of the factory.

    Errors   ModelUnavailable if it fails or returns something else
    """
    if not callable(factory):
        raise ModelUnavailable(f"{name!r} is {type(factory).__name__!r}. Name a function that returns a network")
    try:
        with python_files.first_on_path(folder):
            result = factory()
    except Exception as error:  # the user's own code
        raise ModelUnavailable(f"{name!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(result, (nn.Module, Model)):
        raise ModelUnavailable(f"{name!r} returned {type(result).__name__}. Return an nn.Module or a zoo.Model")
    return result
