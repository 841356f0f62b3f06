"""Image classifiers with their weights, preparation and labels: what there is, what is here already, how to load it.

model = load_model()                     # EfficientNet-Lite0, or what HOOKLENS_MODEL names
scores = model.network(model.prepare(photo))
print(model.labels[scores.argmax()])
"""

from models.model import Model, Preparation
from models.zoo import (
    ModelInfo,
    ModelUnavailable,
    default_name,
    first_ready,
    labels,
    list_models,
    load_model,
    missing_onboard,
)

__all__ = [
    "Model",
    "ModelInfo",
    "ModelUnavailable",
    "Preparation",
    "default_name",
    "first_ready",
    "labels",
    "list_models",
    "load_model",
    "missing_onboard",
]
