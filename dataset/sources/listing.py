"""Which kind of source a path or address is, and the pictures that it lists."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dataset.errors import Refused
from dataset.items import Item
from dataset.sources import lists, metadata, tables, tars
from dataset.sources.place import Place, is_picture, open_place, suffix

CAN_BE = (
    "A source is a folder of pictures, folder/class/…, a CSV or Parquet list with a column path, a tar of pictures, "
    "or a Hugging Face data set folder."
)
SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


@dataclass(frozen=True)
class Listing:
    """The pictures of a source, sorted by path."""

    items: list[Item]
    kind: str
    """"folder", "list", "tar" or "huggingface"."""
    classes: list[str] | None
    """Class names, as a Hugging Face data set declares them, otherwise sorted; None: no labels."""


def list_items(source: str | os.PathLike[str], limit: int | None = None) -> Listing:
    """Every picture of a source, a path on this machine or an address that fsspec opens.

    Args     limit: of the first so many in order of path
    Returns  items sorted by path, whose files are not read: one that is missing raises in `items.read`
    Errors   Refused for what is no source, and for one without pictures
    """
    if limit is not None and limit < 1:
        raise Refused(f"A limit of {limit} leaves no picture. Give 1 or more, or none for all.")
    place = open_place(os.fspath(source))
    kind, items, classes = _of_file(place, place.name) if place.is_file else _of_files(place)
    items = sorted((_as_text(item) for item in items), key=lambda item: item.path)
    if classes is None:
        classes = sorted({item.label for item in items if item.label is not None}) or None
    return Listing(items[:limit], kind, classes)


def _as_text(item: Item) -> Item:
    """A label that is no UTF-8, as paths are written: a table could not hold it."""
    shown = None if item.label is None else Place.shown(item.label)
    return item if shown == item.label else replace(item, label=shown)


Found = tuple[str, Iterable[Item], list[str] | None]


def _of_file(place: Place, name: str) -> Found:
    """What a single file lists, told by its first bytes; its name decides between kinds of text alone."""
    start = place.start(name)
    if start.startswith(b"PAR1") or tables.is_arrow_start(start):
        if tables.has_pictures(place, name):
            return ("huggingface", *tables.listed(place, [name]))
        return "list", lists.parquet(place, name), None
    if tars.is_tar(start):
        return "tar", with_folder_labels(tars.members(place, name)), None
    packed = tars.compression(start)
    if packed:
        raise Refused(
            f"{place.source} is compressed ({packed}), and pictures in it cannot be read one by one. "
            f"Unpack it first ({tars.UNPACK[packed].replace('FILE', place.name)}), and give the tar or folder."
        )
    if is_picture(name):
        return "folder", [Item(name, None, place.url(name))], None
    if not start:
        raise Refused(f"{place.source} is an empty file. {CAN_BE}")
    if suffix(name) in lists.SUFFIXES or lists.is_text(start):
        return "list", lists.text(place, name), None
    raise Refused(f"{place.source} is a file that lists no pictures. {CAN_BE}")


def _of_files(place: Place) -> Found:
    """What a folder holds: a data set's tables, then pictures, then tars."""
    names = place.files()
    table_names = tables.with_pictures(place, names)
    if table_names:
        return ("huggingface", *tables.listed(place, table_names))
    pictures = [name for name in names if is_picture(name)]
    if pictures:
        if told := metadata.listed(place, names):
            others = (Item(place.shown(n), None, place.url(n)) for n in pictures if place.shown(n) not in told)
            return "huggingface", [*told.values(), *others], None
        labels = folder_labels(pictures)
        return "folder", (Item(place.shown(n), labels.get(n), place.url(n)) for n in pictures), None
    archives = [name for name in names if suffix(name) == ".tar"]
    if archives:
        inner: dict[str, str] = {}
        items = []
        for name in archives:
            items += (members := list(tars.members(place, name, prefix=name + "/")))
            inner |= {item.path: item.path[len(place.shown(name)) + 1 :] for item in members}
        return "tar", with_folder_labels(items, inner), None
    raise Refused(f"{_what_is_there(place, names)} {CAN_BE}")


def _what_is_there(place: Place, names: list[str]) -> str:
    if not names:
        return f"{place.source} is an empty folder."
    kinds = Counter(suffix(name) or "no suffix" for name in names).most_common(4)
    text = ", ".join(f"{count} of {kind}" for kind, count in kinds)
    packed = any(suffix(name) in (".gz", ".tgz", ".zip", ".zst", ".bz2", ".xz") for name in names)
    lists_there = [name for name in names if suffix(name) in lists.SUFFIXES - {".txt"}]
    unpack = " Unpack the archives first." if packed else ""
    unpack += f" To explain a list, give its file: {place.url(lists_there[0])}." if lists_there else ""
    return f"{place.source} holds no pictures: {len(names)} {'file' if len(names) == 1 else 'files'} ({text}).{unpack}"


def folder_labels(paths: list[str]) -> dict[str, str]:
    """Labels from folders: the first one below those that hold all, and below train, val, test and the like.

    Returns  nothing where a picture lies in no folder, or all in the same
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
    """Members of tars: where none has a label beside it, its folder is the label; `inside` are paths in their tars."""
    items = list(items)
    if any(item.label is not None for item in items):
        return items
    inner = {item.path: (inside or {}).get(item.path, item.path).removeprefix("./").lstrip("/") for item in items}
    labels = folder_labels(list(inner.values()))
    if not labels:
        return items
    return [Item(i.path, labels[inner[i.path]], i.url, i.offset, i.size) for i in items]
