"""Image models with their weights, preprocessing and class names: list them, load them by name, or load your own.

    model = load_model()                     # EfficientNet-Lite0, or the model that SALISCOPE_MODEL names
    logits = model.network(model.prepare(image))
    print(model.labels[logits.argmax()])

The sources of models are in `sources/`, the environment variables in `settings`. No attribution method is defined here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saliscope.zoo.catalog import (
        add,
        default_name,
        first_ready,
        labels,
        list_models,
        load_model,
        load_offered,
        missing_built_in,
    )
    from saliscope.zoo.model import Model, Preparation
    from saliscope.zoo.sources.source import ModelInfo, ModelUnavailable

__all__ = [
    "Model",
    "ModelInfo",
    "ModelUnavailable",
    "Preparation",
    "add",
    "default_name",
    "first_ready",
    "labels",
    "list_models",
    "load_model",
    "load_offered",
    "missing_built_in",
]


def __getattr__(name: str) -> Any:
    """Import the public names at their first use, so that `saliscope.zoo.settings` can be imported without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from saliscope.zoo import catalog, model  # torch takes seconds to start

    return getattr(catalog if hasattr(catalog, name) else model, name)
