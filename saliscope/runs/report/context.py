"""What the parts of a report share: its inputs, the columns and maps of the run, and what is on the page so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from saliscope.runs.report import images
from saliscope.runs.report.analysis.columns import Columns, distinct
from saliscope.runs.report.analysis.embedding import Features
from saliscope.runs.report.analysis.map_pass import MapPass
from saliscope.runs.report.analysis.maps import pack
from saliscope.runs.report.images import Read
from saliscope.runs.settings import WRONG

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL import Image

    from saliscope.runs.report.analysis.maps import Floats, Maps
    from saliscope.runs.run_data import RunData
    from saliscope.zoo import Model


@dataclass
class Report:
    """The inputs of a report, see `page.write`."""

    read: Read
    model: Model | None = None
    box: Sequence[float] | None = None
    mask: Image.Image | Callable[[str], Image.Image | None] | None = None
    link: str | None = None
    metadata: Mapping[str, pa.Array] | None = None
    source: str | None = None
    """The present location of the source, if it is not that in the manifest."""
    progress: Callable[[int, int], None] | None = None


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
    def settings(self) -> Mapping[str, Any]:
        settings: Mapping[str, Any] = self.data.manifest.get("settings", {})
        return settings

    @property
    def only_wrong(self) -> bool:
        """Whether the run contains only mistakes."""
        return self.settings.get("where") == WRONG

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
