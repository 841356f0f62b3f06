"""The user's own networks: `package.module:factory`, or `folder/file.py:factory`.

`factory` is a function without arguments or a class that returns an `nn.Module`, a pair of a network with a text
encoder and its tokenizer, or a `zoo.Model`; or the network itself. Modules are found on Python's search path and in the
working directory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import nn

from saliscope.zoo import text
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model, Preparation, Tokenize
from saliscope.zoo.overrides import UNKNOWN
from saliscope.zoo.sources import python_files, timm_models
from saliscope.zoo.sources.source import ModelUnavailable, OpenSource
from saliscope.zoo.transforms import BadTransform

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
        is_built = isinstance(factory, (nn.Module, Model))
        result, tokenize = (factory, None) if is_built else _call(name, factory, folder)
        if isinstance(result, Model):
            return result
        if tokenize is not None:
            return _with_text(name, result, tokenize)
        if not isinstance(getattr(result, "pretrained_cfg", None), dict):
            return Model(name, result, [], UNKNOWN)
        try:
            preparation = timm_models.preparation_of(result)
        except BadTransform:
            return Model(name, result, [], UNKNOWN)
        note = f"The preprocessing of {name!r} was read from its timm configuration."
        return Model(name, result, [], preparation, notes=(note,))


SOURCE = Factories()


def _with_text(name: str, network: nn.Module, tokenize: Tokenize) -> Model:
    """Return a network with a text encoder; its preprocessing is read from the configuration of open_clip, if any."""
    found = getattr(getattr(network, "visual", None), "preprocess_cfg", None)
    if not isinstance(found, dict) or found.get("resize_mode") not in ("shortest", "squash"):
        return Model(name, network, [], UNKNOWN, tokenize=tokenize)
    sides = (found["size"],) * 2 if isinstance(found["size"], int) else tuple(found["size"])
    side = sides[0] if sides[0] == sides[1] else sides
    resize = sides if found["resize_mode"] == "squash" else min(sides)
    preparation = Preparation(side, resize, tuple(found["mean"]), tuple(found["std"]), found["interpolation"])
    note = f"The preprocessing of {name!r} was read from its open_clip configuration."
    return Model(name, network, [], preparation, notes=(note,), tokenize=tokenize)


def _call(name: str, factory: Any, folder: Path) -> tuple[Any, Tokenize | None]:
    """Return the result of the factory, a network or a model, and its tokenizer if it returned one.

    Errors   ModelUnavailable if it fails or returns something else
    """
    if not callable(factory):
        raise ModelUnavailable(f"{name!r} is {type(factory).__name__!r}. Name a function that returns a network")
    try:
        with python_files.first_on_path(folder):
            result, tokenize = text.with_tokenizer(factory())
    except Exception as error:  # the user's own code
        raise ModelUnavailable(f"{name!r} raised {type(error).__name__}: {error}") from error
    if not isinstance(result, (nn.Module, Model)):
        raise ModelUnavailable(
            f"{name!r} returned {type(result).__name__}. Return an nn.Module, a pair (network, tokenize), or a "
            "zoo.Model"
        )
    return result, tokenize
