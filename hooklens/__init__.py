"""Hooklens: visualize what an image model looks at.

`hooklens serve` starts the page, `hooklens explain` explains a whole data set, and `explainers` holds the methods.

    from hooklens import load_model
    model = load_model()                     # EfficientNet-Lite0, or the model that HOOKLENS_MODEL names
    logits = model.network(model.prepare(image))
    print(model.labels[logits.argmax()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hooklens.zoo import list_models, load_model

__version__ = "0.9.0"
__all__ = ["__version__", "list_models", "load_model"]


def __getattr__(name: str) -> Any:
    """Import the zoo at the first use of one of its functions: `import hooklens` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hooklens import zoo  # torch takes seconds to start

    return getattr(zoo, name)
