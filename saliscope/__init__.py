"""Saliscope: visualize what an image model looks at.

`saliscope serve` starts the page, `saliscope explain` explains a whole data set, and `explainers` holds the methods.

    from saliscope import example, load_model
    model = load_model()                     # EfficientNet-Lite0, or the model that SALISCOPE_MODEL names
    logits = model.network(model.prepare(example("coffee")))
    print(model.labels[logits.argmax()])     # espresso
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saliscope.images.examples import example
    from saliscope.zoo import list_models, load_model

__version__ = "0.9.0"
__all__ = ["__version__", "example", "list_models", "load_model"]


def __getattr__(name: str) -> Any:
    """Import a public function at its first use: `import saliscope` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "example":
        from saliscope.images import examples  # needs pillow, which is part of the extras

        return examples.example
    from saliscope import zoo  # torch takes seconds to start

    return getattr(zoo, name)


def __dir__() -> list[str]:
    return sorted(__all__)
