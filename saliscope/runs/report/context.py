"""The inputs of a report, and the page: the results of a run, and what is shown of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from saliscope.errors import Refused
from saliscope.runs import formats
from saliscope.runs.report import images, metadata
from saliscope.runs.report.analysis import label_errors, maps, shortcuts, slices, summary
from saliscope.runs.report.analysis.clusters import Features, find_clusters
from saliscope.runs.report.analysis.columns import Columns, distinct
from saliscope.runs.results import Progress
from saliscope.runs.rows import Floats, Integers, RunData
from saliscope.runs.settings import WRONG
from saliscope.zoo import Model

PAIRS = 200
"""Maximum number of confusions in the table."""
TYPICAL = 6
"""Typical images shown for a cluster."""


@dataclass(frozen=True)
class Report:
    """The inputs of a report."""

    read: Callable[[str], Image.Image | None]
    """Returns the image of a path, or None if it is not available anymore."""
    model: Model | None = None
    """Determines the region that the network received, and computes the maps of the expected class of mistakes."""
    box: Sequence[float] | None = None
    """Left, top, right and bottom as fractions of that region. Its share of the relevance is reported."""
    mask: Image.Image | str | Path | None = None
    """White is inside: an image, its file, or a folder with one per image. Its share of the relevance is reported."""
    link: str | None = None
    """The URL of an app."""
    metadata: Mapping[str, pa.Array] | str | Path | None = None
    """Columns with a value per row, or a list with them. By default the list that the run explains."""
    source: str | None = None
    """The present location of the source, if it is not that in the manifest."""
    progress: Progress | None = None
    go_on: Callable[[], bool] = lambda: True
    """Called before each batch of images with another preprocessing; False ends these tests without a result."""


class Page:
    """The results of a run, which the template reads, and the maps and images that it shows."""

    def __init__(self, data: RunData, report: Report) -> None:
        """Compute the results.

        Errors   Refused for a run without a readable image
        """
        self.data, self.report, self.manifest, self.settings = data, report, data.manifest, data.settings
        self.columns = columns = Columns(data)
        self.preparation = report.model.preparation if report.model else None
        self.only_wrong = self.settings.get("where") == WRONG
        if not columns.readable.any():
            reason = "could be read" if len(columns) or not self.only_wrong else "was predicted wrong"
            raise Refused(f"No image of {str(data.folder)!r} {reason}, so there is nothing to report.")
        self.names = distinct(self.manifest.get("classes", []))
        self.by_size = formats.by_size(self.settings.get("method", ""))
        self.slices, self.unreadable = self._slices()
        self.all_maps = maps.read_all(data, columns, columns.codes, self.by_size, self._regions())
        self.maps = self.all_maps.sample
        self.features = Features(report.model) if report.model else None
        """The features of the images on the page; None without a network."""
        self.clusters = find_clusters(self.maps)
        self.candidates = shortcuts.find_candidates(self.maps, self.clusters, self.crop)
        self.shortcuts = [candidate for candidate in self.candidates if candidate.is_shortcut]
        self.calibration = None if self.only_wrong else summary.calibrate(columns.probability, columns.correct)
        is_single = self.manifest.get("score") not in ("sigmoid", "logit") and not self.only_wrong
        self.errors = label_errors.find_label_errors(data, columns) if is_single else None
        self.confusions, self.different = summary.confusions(columns, PAIRS)
        self.packed_maps: list[dict[str, Any]] = []
        """The maps on the page; everything else refers to them by index."""
        self.shown: dict[int, int] = {}
        """The index on the page of the image of a row."""
        self.shown_maps: dict[int, Floats] = {}
        """The maps of the images on the page, by row."""

    def _regions(self) -> dict[str, maps.Coverage]:
        """Return the coverage of the regions whose share of the relevance is reported."""
        size, mask = self.columns.map_size, self.report.mask
        find = metadata.find_masks(Path(mask), self.columns.paths) if isinstance(mask, (str, Path)) else mask
        regions: dict[str, maps.Coverage] = {"border": maps.border_region(size)}
        if self.report.box is not None:
            regions["box"] = maps.box_region(size, self.report.box)
        if isinstance(find, Image.Image):
            regions["mask"] = maps.mask_region(size, find)
        elif find is not None:

            def cover(rows: Integers) -> Floats:
                found = map(find, self.columns.paths.take(rows).to_pylist())
                nothing = np.full(size, np.nan)  # an image without a mask has no share
                return np.stack([nothing if each is None else maps.mask_region(size, each) for each in found])

            regions["mask"] = cover
        return regions

    def _slices(self) -> tuple[slices.Slices | None, slices.Slices | None]:
        """Return the slices of folders and metadata, by accuracy and by the share of readable images.

        The first is None if nothing can be compared, the second if all images were read.
        """
        given, columns = self.report.metadata, self.columns
        if given is None:
            given = metadata.of_source(self.report.source or str(self.manifest.get("source", "")), columns.paths)
        elif isinstance(given, (str, Path)):
            given = metadata.read(str(given), columns.paths)
        every = {**slices.folders(columns.paths), **given}
        bad = None if columns.readable.all() else slices.find_slices(every, columns.readable.astype(np.int8))
        if not every or self.only_wrong or not columns.labeled:
            return None, bad
        found = slices.find_slices(every, columns.correct, columns.label_index)
        found.skipped = {name: why for name, why in found.skipped.items() if name in given}
        return (found if given or found.tested else None), bad

    def show(self, rows: list[int]) -> None:
        """Choose the rows of the images on the page, and read their maps."""
        chosen, size = sorted(rows), self.columns.map_size
        self.shown = {row: k for k, row in enumerate(chosen)}
        found = maps.read_maps(self.data.take(chosen, maps.MAPS), by_size=self.by_size, size=size)
        self.shown_maps = {chosen[k]: values for k, values in zip(found.rows, found.values, strict=True)}

    def add_map(self, values: Floats) -> int:
        """Add a map to the page, and return its index."""
        self.packed_maps.append(maps.pack(values))
        return len(self.packed_maps) - 1

    def images_of(self, rows: Sequence[int]) -> list[int]:
        """Return the indices of images on the page."""
        return [self.shown[row] for row in rows if row in self.shown]

    def typical(self, members: Integers) -> list[int]:
        """Return the rows of the first of some maps."""
        return [int(row) for row in self.maps.rows[members[:TYPICAL]]]

    def image(self, row: int) -> Image.Image | None:
        """Return the image of a row, or None if it is not available anymore."""
        return self.report.read(self.columns.path(row))

    def crop(self, number: int) -> Image.Image | None:
        """Return the part of the image of a clustered map that the network received."""
        image = self.image(int(self.maps.rows[number]))
        return None if image is None else images.crop(image, self.preparation)

    def share_correct(self, members: Integers) -> float | None:
        """Return the share of correct predictions among the images of some maps, or None if it is not known."""
        correct = self.columns.correct[self.maps.rows[members]]
        known = correct[correct >= 0]
        return float(known.mean()) if len(known) and not self.only_wrong else None

    def labeled_with(self, mark: shortcuts.Candidate) -> tuple[int, int] | None:
        """Return how many images that are labeled as the explained class have a mark, and how many there are.

        It is None for a run without such labels.
        """
        rows = self.maps.rows[mark.members]
        of_class = self.columns.label_index == self.columns.target_index[rows[0]]
        whole = int((of_class & self.columns.readable).sum())
        return (int(of_class[rows].sum()), whole) if whole else None
