"""Saliscope: visualize what an image model looks at.

`saliscope serve` starts the page, `saliscope explain` explains a whole data set, and `explainers` holds the methods.

    from saliscope import example, load_model
    model = load_model()                     # EfficientNet-Lite0, or the model that SALISCOPE_MODEL names
    logits = model.network(model.prepare(example("coffee")))
    print(model.labels[logits.argmax()])     # espresso
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saliscope import install, zoo

if TYPE_CHECKING:
    from saliscope import runs
    from saliscope.images.examples import example
    from saliscope.zoo import list_models, load_model


def _version() -> str:
    """Return the version of both packages, from a file of `explainers`, whose import takes seconds."""
    spec = importlib.util.find_spec("explainers")
    assert spec is not None and spec.origin is not None, "both packages are installed together"
    return Path(spec.origin).with_name("version.txt").read_text(encoding="utf-8").strip()


__version__ = _version()
__all__ = ["__version__", "example", "list_models", "load_model", "runs"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: `import saliscope` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "runs":
        return importlib.import_module("saliscope.runs")
    try:
        if name == "example":
            from saliscope.images import examples  # needs pillow, which is part of the extras

            return examples.example
        return getattr(zoo, name)  # imports torch
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        needed = f"saliscope.{name} needs the package {package}, which is not installed."
        raise ImportError(f"{needed} {install.hint('app')}.") from error


def __dir__() -> list[str]:
    return sorted(__all__)
