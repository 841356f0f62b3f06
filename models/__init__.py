"""Image networks with their weights, preprocessing and class names: list them, load them by name, or your own.

model = load_model()                     # EfficientNet-Lite0, or what HOOKLENS_MODEL names
logits = model.network(model.prepare(photo))
print(model.labels[logits.argmax()])

`sources/` holds where models come from, `settings` the environment variables. Nothing of a method is here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.model import Model, Preparation
    from models.sources.source import ModelInfo, ModelUnavailable
    from models.zoo import (
        add,
        default_name,
        first_ready,
        labels,
        list_models,
        load_model,
        load_offered,
        missing_onboard,
    )

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
    "missing_onboard",
]


def __getattr__(name: str) -> Any:
    """Every public name, at its first use: `import models` alone, for the settings, does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from models import model, zoo  # torch takes seconds to start

    return getattr(zoo if hasattr(zoo, name) else model, name)
