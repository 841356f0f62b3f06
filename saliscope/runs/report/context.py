"""What the parts of a report share: its inputs, the columns and maps of the run, and what is on the page so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from PIL import Image

from saliscope.runs.report import images
from saliscope.runs.report.analysis.columns import Columns, distinct
from saliscope.runs.report.analysis.embedding import Features
from saliscope.runs.report.analysis.map_pass import MapPass
from saliscope.runs.report.analysis.maps import Maps, pack
from saliscope.runs.report.images import Read
from saliscope.runs.rows import Floats
from saliscope.runs.run_data import RunData
from saliscope.runs.settings import WRONG
from saliscope.zoo import Model


@dataclass(frozen=True)
class Report:
    """The inputs of a report."""

    read: Read
    """Returns the image of a path, or None if it is not available anymore."""
    model: Model | None = None
    """Determines the region that the network received, and computes the maps of the expected class of mistakes."""
    box: Sequence[float] | None = None
    """Left, top, right and bottom as fractions of that region. Its share of the relevance is reported."""
    mask: Image.Image | Callable[[str], Image.Image | None] | None = None
    """White is inside; one for all images, or a function of the path. Its share of the relevance is reported."""
    link: str | None = None
    """The URL of an app."""
    metadata: Mapping[str, pa.Array] | None = None
    """Columns with a value per row. By default the other columns of the list that the run explains."""
    source: str | None = None
    """The present location of the source, if it is not that in the manifest."""
    progress: Callable[[int, int], object] | None = None
    """Called with the number of finished images and the total number."""
    go_on: Callable[[], bool] = lambda: True
    """Called before each batch of images with another preprocessing; False ends these tests without a result."""


@dataclass
class Context:
    """Data shared by the parts of the page."""

    data: RunData
    report: Report
    columns: Columns
    all_maps: MapPass
    packed_maps: list[dict[str, Any]] = field(default_factory=list)
    """The maps on the page; everything else refers to them by index."""
    shown: dict[int, int] = field(default_factory=dict)
    """The index on the page of the image of a row."""
    shown_maps: dict[int, Floats] = field(default_factory=dict)
    """The maps of the images on the page, by row."""
    features: Features | None = None
    """The features of the images on the page; None without a network."""

    @property
    def maps(self) -> Maps:
        """The maps that are clustered."""
        return self.all_maps.sample

    @cached_property
    def classes(self) -> list[str]:
        """The explained class of each map that is clustered."""
        return [str(self.columns.target[int(row)]) for row in self.maps.rows]

    @property
    def only_wrong(self) -> bool:
        """Whether the run contains only mistakes."""
        return self.data.settings.get("where") == WRONG

    def add_map(self, values: Floats) -> int:
        """Add a map to the page, and return its index."""
        self.packed_maps.append(pack(values))
        return len(self.packed_maps) - 1

    def class_name(self, entry: Mapping[str, Any]) -> str:
        """Return the name of one of the top classes of a row."""
        names, index = self.names, entry["index"]
        return names[index] if index < len(names) else str(entry["class"])

    @cached_property
    def names(self) -> list[str]:
        """The names of all classes."""
        return distinct(self.data.manifest.get("classes", []))

    def image(self, row: int) -> Image.Image | None:
        """Return the image of a row, or None if it is not available anymore."""
        return self.report.read(self.columns.path(row))

    def crop(self, number: int) -> Image.Image | None:
        """Return the part of the image of a clustered map that the network received."""
        image = self.image(int(self.maps.rows[number]))
        return None if image is None else images.crop(image, self.report.model)
