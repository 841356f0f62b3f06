"""torchvision's classifiers, segmentation networks and detectors, with all their weights.

`resnet50` is the network with its default weights, `resnet50:IMAGENET1K_V1` the network with other weights. Keypoint
networks are not included; only the boxes of mask networks are used.

They are listed from a table, because importing torchvision takes longer than importing torch, and 150 MB. It is
imported when one of its networks is used (`torchvision_networks.py`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from saliscope.zoo import cache_limit, downloads
from saliscope.zoo.downloads import Progress
from saliscope.zoo.model import Model
from saliscope.zoo.settings import BadLimit
from saliscope.zoo.sources.source import ModelInfo, ModelUnavailable, Source

TABLE = Path(__file__).with_name("torchvision_models.csv")
"""Written by `python -m tests.saliscope.zoo.test_torchvision_table`."""


class TorchvisionModels(Source):
    """torchvision's networks; the weights are downloaded at the first use."""

    def list(self) -> Iterator[ModelInfo]:
        for name, row in table().items():
            size = int(row["bytes"])
            yield ModelInfo(
                name=name,
                title=row["title"],
                weights=row["weights"],
                classes=int(row["classes"]),
                megabytes=round(size / 1e6, 1),
                side=int(row["side"]),
                cached=downloads.cached(row["url"], size),
                fetched=True,
                accuracy=float(row["accuracy"]),
                task=row["task"],
                measure=row["measure"],
            )

    def load(self, name: str, progress: Progress | None = None) -> Model:
        row = table()[name]
        try:
            with cache_limit.in_use(downloads.path_of(row["url"])):
                downloads.fetch(row["title"], row["url"], progress)
                # The file is complete and verified: torchvision's builder reads it and downloads nothing.
                return _networks(name).load(name)
        except (downloads.FetchFailed, BadLimit) as error:
            raise ModelUnavailable(str(error)) from error

    def build(self, name: str, classes: int | None) -> Model:
        return _networks(name).build(name, classes)

    def names(self) -> Mapping[str, str]:
        """Return the listed names, and aliases with the default weights spelled out (`resnet50:IMAGENET1K_V2`)."""
        return {name: name for name in table()} | {
            f"{name}:{row['weights']}": name
            for name, row in table().items()
            if ":" not in name and row["task"] == "classification"
        }

    def labels(self, name: str) -> Sequence[str]:
        return _networks(name).labels(name)


SOURCE = TorchvisionModels()


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return the columns of every model by its name: the classifiers first, default weights before other ones."""
    with open(TABLE, encoding="utf-8", newline="") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def _networks(name: str) -> Any:
    """Return the module that imports torchvision.

    Errors   ModelUnavailable if the installed torchvision does not have the model
    """
    networks = import_module("saliscope.zoo.sources.torchvision_networks")
    if name not in networks.weights_by_name():
        raise ModelUnavailable(f"The installed torchvision does not have {name!r}. Update it")
    return networks
