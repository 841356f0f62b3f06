"""Labels from the names of folders: the first folder below the common folder of all images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from saliscope.runs.items import Item
from saliscope.runs.sources.location import Location, is_image

SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


def folder_labels(paths: list[str]) -> dict[str, str]:
    """Return labels from the names of folders, ignoring common parents and splits such as train, val and test.

    Returns  an empty dictionary if an image is not in a folder, or if all images are in the same one
    """
    depth = label_depth({path.rpartition("/")[0] for path in paths})
    return {} if depth is None else {path: path.split("/")[depth] for path in paths}


def label_depth(folders: Iterable[str]) -> int | None:
    """Return the index of the folder that is the label, for images in these folders; None if there are no labels."""
    parts = [folder.split("/") if folder else [] for folder in folders]
    depth = 0
    while parts and all(len(own) > depth for own in parts):
        first = {own[depth] for own in parts}
        if _are_labels(first):
            return depth
        depth += 1
    return None


def _are_labels(names: set[str]) -> bool:
    return len(names) > 1 and not all(name.lower() in SPLITS for name in names)


def find_label_depth(location: Location) -> tuple[int | None, list[str]]:
    """Return `label_depth` of a folder without listing it completely, and the files above the labels.

    Lists the folders above the labels, and some below until an image is found: as many as are needed to know that two
    folders have images.
    """
    level, depth, above = [""], 0, list[str]()
    while level:
        found = [location.entries(folder) for folder in level]
        files = [name for names, _ in found for name in names]
        above += files
        if any(map(is_image, files)):
            return None, above
        folders = [folder for _, names in found for folder in names]
        with_images: list[str] = []
        # Splits last: two folders with images decide, if one of them is not a split.
        for folder in sorted(folders, key=lambda name: _last(name).lower() in SPLITS):
            if any(map(is_image, location.walk(folder))):
                with_images.append(folder)
                if _are_labels({_last(name) for name in with_images}):
                    return depth, above
        level, depth = sorted(with_images), depth + 1
    return None, above


def _last(folder: str) -> str:
    return folder.rstrip("/").rpartition("/")[2]


def with_folder_labels(items: Iterable[Item], inside: Mapping[str, str] | None = None) -> list[Item]:
    """Return the members of tars, labeled by their folder if none has a label file; `inside` maps to paths in tars."""
    items = list(items)
    if any(item.label is not None for item in items):
        return items
    inner = {item.path: (inside or {}).get(item.path, item.path).removeprefix("./").lstrip("/") for item in items}
    labels = folder_labels(list(inner.values()))
    if not labels:
        return items
    return [Item(i.path, labels[inner[i.path]], i.url, i.offset, i.size) for i in items]


def label_in(path: str, depth: int | None) -> str | None:
    """Return the folder of a path that is its label, or None if the path has fewer folders."""
    folders = path.split("/")[:-1]
    return folders[depth] if depth is not None and len(folders) > depth else None
