"""Detect the kind of source of a path or URL, and list its images.

Each file of a set of tars, of tables of a dataset, or of lists is a partition. Labels are in files of the source, or
the names of folders: the first folder below the common folder of all images.
"""

from __future__ import annotations

import itertools
import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from saliscope.errors import Refused
from saliscope.runs.formats import plural
from saliscope.runs.items import WHOLE, Item, Listing
from saliscope.runs.sources import lists, tables, tars
from saliscope.runs.sources.location import Location, is_image, open_location, suffix

SUPPORTED = (
    "Supported: a folder of images, folder/class/…, a CSV or Parquet list with a column path, a tar of images, "
    "or a Hugging Face dataset folder."
)
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Files of Hugging Face image folders, which have the labels of the images next to them."""
FILE = "file_name"
"""The column that Hugging Face requires; other files may also be called metadata."""
FILES, BYTES = 64, 2**30
"""Number of files, and their bytes, above which no file is listed before its turn."""
FIRST = 8
"""Tars that are listed to find out which of their folders are labels."""


def list_items(source: str | os.PathLike[str], limit: int | None = None) -> Listing:
    """List the images of a source, which is a local path or a URL that fsspec opens.

    Args     limit: return only the first images in order of path, at most this number; of a source with more than
             `WHOLE` images, the first ones in its own order
    Returns  images in order. The files are not read; a missing file raises an error in `items.read`.
    Errors   Refused for an unsupported source, and for a source without images
    """
    if limit is not None and limit < 1:
        raise Refused(f"Invalid limit {limit}. Use 1 or more, or no limit for all images.")
    location = open_location(os.fspath(source))
    listing = _list_file(location, location.name) if location.is_file else _list_folder(location)
    return listing.first(limit)


def _list_file(location: Location, name: str) -> Listing:
    """List the images in a single file. Its kind is detected from its first bytes; its name only matters for text."""
    start = location.start(name)
    if tables.is_table(start):
        return list_set("huggingface" if tables.has_images(location, name) else "list", location, [name])
    if tars.is_tar(start):
        items = tars.members(location, name)
        return Listing.of(_sorted(_label_members(items, _label_depth([items], {}), {})), "tar")
    if packed := tars.compression(start):
        raise Refused(
            f"{location.source} is compressed ({packed[0]}), so its images cannot be read one by one. "
            f"Unpack it ({packed[1].replace('FILE', location.name)}), and pass the tar or folder."
        )
    if is_image(name):
        return Listing.of([Item(name, None, location.url(name))], "folder")
    if start and (suffix(name) in lists.SUFFIXES or lists.is_text(start)):
        return list_set("list", location, [name])
    raise Refused(f"{location.source} is {'not a supported' if start else 'an empty'} file. {SUPPORTED}")


def _list_images(location: Location, depth: int | None) -> Iterator[list[Item]]:
    """Yield the images in a folder; `depth` is that of the folder that is the label."""
    images = (name for name in location.walk() if is_image(name))
    while names := list(itertools.islice(images, WHOLE)):
        yield _images(location, names, depth)


def _images(location: Location, names: Iterable[str], depth: int | None) -> list[Item]:
    return [Item(text := location.to_text(name), label_in(text, depth), location.url(name)) for name in names]


def _list_folder(location: Location) -> Listing:
    """List the images in a folder: in tables of a dataset, or else in image files, or else in tars or lists."""
    names = list(itertools.islice(_relevant(location), WHOLE + 1))
    table_names = tables.with_images(location, names)
    if len(names) > WHOLE and not table_names and any(map(is_image, names)):
        return _large_folder(location)
    if len(names) > WHOLE:  # many tables or tars
        names = list(_relevant(location))
        table_names = tables.with_images(location, names)
    if table_names:
        return list_set("huggingface", location, table_names)
    if any(map(is_image, names)):
        return _small_folder(location, names)
    archives = [name for name in names if suffix(name) == ".tar"]
    if archives:
        return list_set("tar", location, archives)
    if location.matches and all(suffix(name) in lists.SUFFIXES for name in location.matches):
        return list_set("list", location, location.matches)
    raise Refused(f"{_describe_files(location, list(location.walk()))} {SUPPORTED}")


def _relevant(location: Location) -> Iterator[str]:
    """Yield the images, tables and tars in a folder, and its files with labels."""
    return (
        name
        for name in location.walk()
        if is_image(name) or suffix(name) in (*tables.SUFFIXES, ".tar") or posixpath.basename(name) in METADATA
    )


def _small_folder(location: Location, names: list[str]) -> Listing:
    """List a folder at once."""
    listed = _list_metadata(location, names)
    images = [name for name in names if is_image(name)]
    others = [name for name in images if location.to_text(name) not in listed]
    depth = None if listed else label_depth(_folder(location.to_text(name)) for name in images)
    items = [*listed.values(), *_images(location, others, depth)]
    return Listing.of(_sorted(items), "huggingface" if listed else "folder")


def _large_folder(location: Location) -> Listing:
    """List a folder of many images lazily, but at once if it has a file with labels."""
    depth, above = find_label_depth(location)
    if any(posixpath.basename(name) in METADATA for name in above):
        names = list(_relevant(location))
        if _list_metadata(location, names):
            return _small_folder(location, names)
    return Listing((partial(_list_images, location, depth),), "folder")


def _list_metadata(location: Location, names: list[str]) -> dict[str, Item]:
    """Return the images in the metadata files among `names` by path; empty if the files contain no labels.

    Errors   Refused for a file that cannot be read, and for a file that lists none of the images next to it
    """
    images: dict[str, Item] = {}
    for name in names:
        if posixpath.basename(name) in METADATA and _has_file_names(location, name):
            images |= {item.path: item for block in lists.blocks(location, name) for item in block}
    return images if any(item.label is not None for item in images.values()) else {}


def _has_file_names(location: Location, name: str) -> bool:
    if suffix(name) == ".parquet":
        return FILE in tables.read_schema(location, name).names
    return FILE.encode() in location.start(name)


def _describe_files(location: Location, names: list[str]) -> str:
    if not names:
        return f"{location.source} is an empty folder."
    kinds = Counter(suffix(name) or "without suffix" for name in names).most_common(4)
    text = ", ".join(f"{count} {kind}" for kind, count in kinds)
    packed = any(suffix(name) in (".gz", ".tgz", ".zip", ".zst", ".bz2", ".xz") for name in names)
    list_names = [name for name in names if suffix(name) in lists.SUFFIXES - {".txt"}]
    hint = " Unpack the archives first." if packed else ""
    hint += f" To use a list, pass its file: {location.url(list_names[0])}." if list_names else ""
    return f"{location.source} contains no images: {plural(len(names), 'file')} ({text}).{hint}"


def list_set(kind: str, location: Location, names: Sequence[str]) -> Listing:
    """Return the images of a set of files: at once if it is small, otherwise each file is listed in its turn.

    Args     kind: "tar", "huggingface" (tables) or "list"
    Errors   Refused for files that cannot be read, that differ, or that have no images
    """
    starts = _starts(location, names)
    if len(names) == 1 or (len(names) <= FILES and location.size(names) <= BYTES):
        found = list(itertools.islice(_items_of(kind, location, names), WHOLE + 1))
        if len(found) <= WHOLE:
            if kind == "tar":
                found = _label_members(found, _label_depth([found], starts), starts)
            return Listing.of(_once(location, found), kind)
    depth = None
    if kind == "tar":
        depth = _label_depth((list(_items_of(kind, location, [name])) for name in names[:FIRST]), starts)
    parts = tuple(partial(_list_part, kind, location, name, names[0], depth) for name in names)
    return Listing(parts, kind)


def _items_of(kind: str, location: Location, names: Sequence[str]) -> Iterator[Item]:
    return (item for name in names for block in _list_part(kind, location, name, names[0]) for item in block)


def _list_part(kind: str, location: Location, name: str, first: str, depth: int | None = None) -> Iterator[list[Item]]:
    """Yield the images in one file of a set.

    Args     first: the first file of the set; tables need the same columns and classes
             depth: which folder inside of a tar is the label
    """
    if kind == "list":
        yield from lists.blocks(location, name)
    elif kind == "tar":
        items = tars.members(location, name, prefix=name + "/")
        yield _sorted(_label_members(items, depth, _starts(location, [name])))
    else:
        yield tables.list_images(location, name, first)


def _sorted(items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item.path)


def _once(location: Location, items: list[Item]) -> list[Item]:
    """Return the images sorted by path, each once.

    Errors   Refused for two labels of one path, and if there are no images
    """
    found: dict[str, Item] = {}
    for item in items:
        if found.setdefault(item.path, item).label != item.label:
            raise Refused(f"{location.source} lists {item.path} with two labels. Remove one entry.")
    if not found:
        raise Refused(f"The dataset {location.source} has no rows.")
    return [found[path] for path in sorted(found)]


SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


def folder_labels(paths: list[str]) -> dict[str, str]:
    """Return labels from the names of folders, ignoring common parents and splits such as train, val and test.

    Returns  an empty dictionary if an image is not in a folder, or if all images are in the same one
    """
    depth = label_depth(map(_folder, paths))
    return {} if depth is None else {path: path.split("/")[depth] for path in paths}


def label_depth(folders: Iterable[str]) -> int | None:
    """Return the index of the folder that is the label, for images in these folders; None if there are no labels."""
    parts = [folder.split("/") if folder else [] for folder in set(folders)]
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
        found = [name for folder in level for name in location.entries(folder)]
        files = [name for name in found if name[-1] != "/"]
        folders = [name for name in found if name[-1] == "/"]
        above += files
        if any(map(is_image, files)):
            return None, above
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


def _starts(location: Location, names: Sequence[str]) -> dict[str, int]:
    """Return where the path inside of a tar starts in the path of an image, for each tar of a set."""
    return {location.url(name): len(location.to_text(name)) + 1 for name in names}


def _inside(item: Item, starts: Mapping[str, int]) -> str:
    return item.path[starts.get(item.url, 0) :].lstrip("/")


def _label_depth(parts: Iterable[list[Item]], starts: Mapping[str, int]) -> int | None:
    """Return which folder inside of tars is the label, as the first tars show; None if they have label files."""
    folders: set[str] = set()
    for items in parts:
        if any(item.label is not None for item in items):
            return None
        folders |= {_folder(_inside(item, starts)) for item in items}
        depth = label_depth(folders)
        if depth is not None:
            return depth
    return None


def _label_members(items: list[Item], depth: int | None, starts: Mapping[str, int]) -> list[Item]:
    """Return the images in tars, labeled by the folder at this depth; as they are if it is None."""
    if depth is None:
        return items
    return [replace(item, label=label_in(_inside(item, starts), depth)) for item in items]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def label_in(path: str, depth: int | None) -> str | None:
    """Return the folder of a path that is its label, or None if the path has fewer folders."""
    folders = path.split("/")[:-1]
    return folders[depth] if depth is not None and len(folders) > depth else None
