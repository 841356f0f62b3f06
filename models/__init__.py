"""Image classifiers with their weights, preparation and labels: what there is, what is here already, how to load it.

    model = load_model()                     # `embedded`, or a cached ResNet-50, or what HOOKLENS_MODEL names
    scores = model.network(model.prepare(photo))
    print(model.labels[scores.argmax()])
"""

from models.downloads import Fetch
from models.model import Model, Preparation
from models.zoo import ModelInfo, ModelUnavailable, default_name, fetch_better, labels, list_models, load_model

__all__ = [
    "Fetch",
    "Model",
    "ModelInfo",
    "ModelUnavailable",
    "Preparation",
    "default_name",
    "fetch_better",
    "labels",
    "list_models",
    "load_model",
]
