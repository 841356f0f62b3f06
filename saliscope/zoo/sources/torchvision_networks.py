"""Load torchvision's networks. This is the only file of the package that imports torchvision, see
`torchvision_models.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torchvision
from torchvision.models import WeightsEnum, get_model, get_model_weights

from saliscope.zoo.model import Model, Preparation, Task
from saliscope.zoo.sources.source import no_random_init
from saliscope.zoo.sources.torchvision_dense import WholeImage, detector_preparation


def load(name: str) -> Model:
    """Return a model whose weights are in the cache."""
    weights = weights_by_name()[name]
    with no_random_init():
        network = get_model(name.partition(":")[0], weights=weights, progress=False)
    return _model(name, network, [*labels(name)])


def build(name: str, classes: int | None) -> Model:
    """Return the network of a name without its weights, with `classes` outputs."""
    network = name.partition(":")[0]
    options: dict[str, Any] = {"num_classes": classes} if classes else {}
    if task_of(name) != "classification":
        options["weights_backbone"] = None
    elif network in ("googlenet", "inception_v3"):
        # These two initialize their weights with a slow distribution by default, which takes seconds.
        options["init_weights"] = False
    with no_random_init():
        built = get_model(network, weights=None, **options)
    return _model(name, built, [*labels(name)] if classes in (None, len(labels(name))) else [])


def _model(name: str, network: Any, labels: list[str]) -> Model:
    preparation = preparation_of(name)
    if isinstance(preparation, WholeImage) and preparation.longest is not None:
        network.transform.max_size = preparation.longest  # otherwise it would resize elongated images again
    return Model(name, network, labels, preparation, task_of(name))


def labels(name: str) -> Sequence[str]:
    """Return the class names in the order of the outputs."""
    return weights_by_name()[name].meta["categories"]


@cache
def weights_by_name() -> dict[str, WeightsEnum]:
    """Return the weights of every model: all weights of classifiers, the default ones first under the name of the
    network, and the default weights of the other networks."""
    table = {}
    for network in torchvision.models.list_models(module=torchvision.models):
        default = get_model_weights(network).DEFAULT
        for weights in sorted(get_model_weights(network), key=lambda member: member is not default):
            # Weights without categories (one set for VGG-16) are a detector's backbone, not a classifier.
            if weights.meta["categories"]:
                table[network if weights is default else f"{network}:{weights.name}"] = weights
    for module in (torchvision.models.segmentation, torchvision.models.detection):
        for network in torchvision.models.list_models(module=module):
            weights = get_model_weights(network).DEFAULT
            if "keypoint_names" not in weights.meta:
                table[network] = weights
    return table


def task_of(name: str) -> Task:
    """Return the task of a network from the folder in which torchvision defines it."""
    folder = type(weights_by_name()[name]).__module__.split(".")[2]
    return "segmentation" if folder == "segmentation" else "detection" if folder == "detection" else "classification"


def preparation_of(name: str) -> Preparation:
    """Return the preprocessing of the weights."""
    task = task_of(name)
    if task == "detection":
        return detector_preparation(name)
    preset = weights_by_name()[name].transforms()
    resize, mean, std = preset.resize_size[0], tuple(preset.mean), tuple(preset.std)
    if task == "segmentation":
        return WholeImage(resize, resize, mean, std, preset.interpolation)
    return Preparation(preset.crop_size[0], resize, mean, std, preset.interpolation)
