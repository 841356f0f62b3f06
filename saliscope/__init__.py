"""Saliscope: visualize what an image model looks at.

`saliscope serve` starts the page, `saliscope explain` explains a whole data set, and `explainers` holds the methods.

    from saliscope import load_model
    model = load_model()                     # EfficientNet-Lite0, or the model that SALISCOPE_MODEL names
    logits = model.network(model.prepare(image))
    print(model.labels[logits.argmax()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saliscope.zoo import list_models, load_model

__version__ = "0.9.0"
__all__ = ["__version__", "list_models", "load_model"]


def __getattr__(name: str) -> Any:
    """Import the zoo at the first use of one of its functions: `import saliscope` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from saliscope import zoo  # torch takes seconds to start

    return getattr(zoo, name)
