"""Detect the kind of source of a path or URL, and list its images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hooklens.datasets.items import Item
from hooklens.datasets.sources import lists, metadata, tables, tars
from hooklens.datasets.sources.location import Location, is_image, open_location, suffix
from hooklens.errors import Refused

SUPPORTED = (
    "Supported: a folder of images, folder/class/…, a CSV or Parquet list with a column path, a tar of images, "
    "or a Hugging Face dataset folder."
)
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


@dataclass(frozen=True)
class Listing:
    """The images of a source, sorted by path."""

    items: list[Item]
    kind: str
    """"folder", "list", "tar" or "huggingface"."""
    classes: list[str] | None
    """Class names: as declared by a Hugging Face dataset, or else sorted; None if there are no labels."""


def list_items(source: str | os.PathLike[str], limit: int | None = None) -> Listing:
    """List every image of a source, which is a local path or a URL that fsspec opens.

    Args     limit: return only the first images in order of path, at most this number
    Returns  items sorted by path. The files are not read; a missing file raises an error in `items.read`.
    Errors   Refused for an unsupported source, and for a source without images
    """
    if limit is not None and limit < 1:
        raise Refused(f"Invalid limit {limit}. Use 1 or more, or no limit for all images.")
    location = open_location(os.fspath(source))
    kind, items, classes = _list_file(location, location.name) if location.is_file else _list_folder(location)
    items = sorted((_as_text(item) for item in items), key=lambda item: item.path)
    if classes is None:
        classes = sorted({item.label for item in items if item.label is not None}) or None
    return Listing(items[:limit], kind, classes)


def _as_text(item: Item) -> Item:
    """Return the item with a label that is valid UTF-8, so that it can be written to a table."""
    label = None if item.label is None else Location.to_text(item.label)
    return item if label == item.label else replace(item, label=label)


Found = tuple[str, Iterable[Item], list[str] | None]


def _list_file(location: Location, name: str) -> Found:
    """List the images in a single file. Its kind is detected from its first bytes; its name only matters for text."""
    start = location.start(name)
    if start.startswith(b"PAR1") or tables.is_arrow_start(start):
        if tables.has_images(location, name):
            return ("huggingface", *tables.list_images(location, [name]))
        return "list", lists.parquet(location, name), None
    if tars.is_tar(start):
        return "tar", with_folder_labels(tars.members(location, name)), None
    packed = tars.compression(start)
    if packed:
        raise Refused(
            f"{location.source} is compressed ({packed}), so its images cannot be read one by one. "
            f"Unpack it ({tars.UNPACK[packed].replace('FILE', location.name)}), and pass the tar or folder."
        )
    if is_image(name):
        return "folder", [Item(name, None, location.url(name))], None
    if not start:
        raise Refused(f"{location.source} is an empty file. {SUPPORTED}")
    if suffix(name) in lists.SUFFIXES or lists.is_text(start):
        return "list", lists.text(location, name), None
    raise Refused(f"{location.source} is not a supported file. {SUPPORTED}")


def _list_folder(location: Location) -> Found:
    """List the images in a folder: in tables of a dataset, or else in image files, or else in tars."""
    names = location.files()
    table_names = tables.with_images(location, names)
    if table_names:
        return ("huggingface", *tables.list_images(location, table_names))
    images = [name for name in names if is_image(name)]
    if images:
        if listed := metadata.list_images(location, names):
            others = (
                Item(location.to_text(name), None, location.url(name))
                for name in images
                if location.to_text(name) not in listed
            )
            return "huggingface", [*listed.values(), *others], None
        labels = folder_labels(images)
        items = (Item(location.to_text(name), labels.get(name), location.url(name)) for name in images)
        return "folder", items, None
    archives = [name for name in names if suffix(name) == ".tar"]
    if archives:
        inner: dict[str, str] = {}
        members = []
        for name in archives:
            members += (tar_members := list(tars.members(location, name, prefix=name + "/")))
            inner |= {item.path: item.path[len(location.to_text(name)) + 1 :] for item in tar_members}
        return "tar", with_folder_labels(members, inner), None
    raise Refused(f"{_describe_files(location, names)} {SUPPORTED}")


def _describe_files(location: Location, names: list[str]) -> str:
    if not names:
        return f"{location.source} is an empty folder."
    kinds = Counter(suffix(name) or "without suffix" for name in names).most_common(4)
    text = ", ".join(f"{count} {kind}" for kind, count in kinds)
    packed = any(suffix(name) in (".gz", ".tgz", ".zip", ".zst", ".bz2", ".xz") for name in names)
    list_names = [name for name in names if suffix(name) in lists.SUFFIXES - {".txt"}]
    hint = " Unpack the archives first." if packed else ""
    hint += f" To use a list, pass its file: {location.url(list_names[0])}." if list_names else ""
    count = "1 file" if len(names) == 1 else f"{len(names)} files"
    return f"{location.source} contains no images: {count} ({text}).{hint}"


def folder_labels(paths: list[str]) -> dict[str, str]:
    """Return labels from the names of folders, ignoring common parents and splits such as train, val and test.

    Returns  an empty dictionary if an image is not in a folder, or if all images are in the same one
    """
    parts = {path: path.split("/")[:-1] for path in paths}
    while all(parts.values()):
        first = {folders[0] for folders in parts.values()}
        if len(first) > 1 and not all(name.lower() in SPLITS for name in first):
            break
        parts = {path: folders[1:] for path, folders in parts.items()}
    if not all(parts.values()):
        return {}
    labels = {path: folders[0] for path, folders in parts.items()}
    return labels if len(set(labels.values())) > 1 else {}


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
