"""All classifiers of torchvision, with all their weights.

`resnet50` is the network with its default weights, `resnet50:IMAGENET1K_V1` the network with other weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torchvision
from torchvision.models import WeightsEnum, get_model, get_model_weights

from saliscope.zoo import cache_limit, downloads
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model, Preparation
from saliscope.zoo.settings import BadLimit
from saliscope.zoo.sources.source import ModelInfo, ModelUnavailable, Source, no_random_init
from saliscope.zoo.sources.torchvision_titles import title_of


class TorchvisionClassifiers(Source):
    """torchvision's classifiers; the weights are downloaded at the first use."""

    def list(self) -> Iterator[ModelInfo]:
        for name, weights in weights_by_name().items():
            yield ModelInfo(
                name=name,
                title=title_of(name),
                weights=weights.name,
                classes=len(weights.meta["categories"]),
                megabytes=round(_file_size(weights) / 1e6, 1),
                side=weights.transforms().crop_size[0],
                cached=downloads.cached(weights.url, _file_size(weights)),
                fetched=True,
                accuracy=weights.meta["_metrics"]["ImageNet-1K"]["acc@1"],
            )

    def load(self, name: str, progress: Progress | None = None) -> Model:
        weights = weights_by_name()[name]
        try:
            with cache_limit.in_use(downloads.path_of(weights.url)):
                downloads.fetch(title_of(name), weights.url, progress)
                # The file is complete and verified: torchvision's builder reads it and downloads nothing.
                with no_random_init():
                    network = get_model(name.partition(":")[0], weights=weights, progress=False)
        except (downloads.FetchFailed, BadLimit) as error:
            raise ModelUnavailable(str(error)) from error
        return Model(name, network, [*self.labels(name)], preparation_of(weights))

    def build(self, name: str, classes: int | None) -> Model:
        weights, network = weights_by_name()[name], name.partition(":")[0]
        outputs = {"num_classes": classes} if classes else {}
        # These two initialize their weights with a slow distribution by default, which takes seconds.
        plain = {"init_weights": False} if network in ("googlenet", "inception_v3") else {}
        with no_random_init():
            built = get_model(network, weights=None, **outputs, **plain)
        known = classes in (None, len(weights.meta["categories"]))
        return Model(name, built, [*self.labels(name)] if known else [], preparation_of(weights))

    def names(self) -> Mapping[str, str]:
        """Return the listed names, and aliases with the default weights spelled out (`resnet50:IMAGENET1K_V2`)."""
        table = weights_by_name()
        return {name: name for name in table} | {
            f"{name}:{weights.name}": name for name, weights in table.items() if ":" not in name
        }

    def labels(self, name: str) -> Sequence[str]:
        return weights_by_name()[name].meta["categories"]


SOURCE = TorchvisionClassifiers()


@cache
def weights_by_name() -> dict[str, WeightsEnum]:
    """Return the weights of every classifier. The default weights come first, under the name of the network."""
    table = {}
    for network in torchvision.models.list_models(module=torchvision.models):
        default = get_model_weights(network).DEFAULT
        for weights in sorted(get_model_weights(network), key=lambda member: member is not default):
            # Weights without categories (one set for VGG-16) are a detector's backbone, not a classifier.
            if weights.meta["categories"]:
                table[network if weights is default else f"{network}:{weights.name}"] = weights
    return table


def preparation_of(weights: WeightsEnum) -> Preparation:
    """Return the preprocessing of the weights."""
    preset = weights.transforms()
    return Preparation(
        preset.crop_size[0], preset.resize_size[0], tuple(preset.mean), tuple(preset.std), preset.interpolation
    )


def _file_size(weights: WeightsEnum) -> int:
    """Return the approximate size in bytes; the table has MiB."""
    return round(weights.meta["_file_size"] * 2**20)
