"""Read a bundle from an untrusted file: nothing is extracted to disk, and declared sizes and names are not trusted."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from saliscope import limits
from saliscope.compute.bundles import messages
from saliscope.compute.bundles.bundle import MOST
from saliscope.compute.bundles.record import FORMAT, VERSION
from saliscope.errors import Refused
from saliscope.images import npy

INDEX = "bundle.json"
TEXT = limits.MB
MAP = 80 * limits.MB
FILES = 64
"""Maximum number of archive entries."""


@dataclass(frozen=True)
class Map:
    """One map of a bundle: its question as stored, its values [h, w], and its description."""

    name: str
    question: Any
    answer: dict[str, Any]
    values: np.ndarray
    hash_matches: bool
    """Whether the values have the stored hash."""
    weights: str
    """The hash of the weights that the map was computed with."""


@dataclass(frozen=True)
class Bundle:
    """The content of a bundle."""

    image: bytes
    suffix: str
    hash_matches: bool
    """Whether the image, and the second image if there is one, have the stored hash."""
    versions: dict[str, str]
    maps: list[Map]
    second: bytes | None = None
    """The second image of an edit."""


def read(path: str) -> Bundle:
    """Read a bundle from a file.

    Errors   Refused for a file that is not a bundle of this version
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except Refused:
        raise
    except FileNotFoundError:
        raise Refused(messages.no_file(path)) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError, NotImplementedError, RuntimeError):
        raise Refused(messages.NO_BUNDLE) from None
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise Refused(messages.DAMAGED) from None


def _read(archive: zipfile.ZipFile) -> Bundle:
    names = archive.namelist()
    if len(names) > FILES or len(set(names)) != len(names) or any(_is_unsafe(name) for name in names):
        raise Refused(messages.NO_BUNDLE)
    if INDEX not in names:
        raise Refused(messages.NO_BUNDLE)
    index = json.loads(_bytes(archive, INDEX, TEXT).decode("utf-8"))
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise Refused(messages.NO_BUNDLE)
    if (version := index.get("version")) != VERSION:
        later = isinstance(version, int) and version > VERSION
        raise Refused(messages.OTHER_VERSION if later else messages.NO_BUNDLE)
    image_entry, entries = index["photograph"], index["maps"]
    if not isinstance(entries, list) or not 0 < len(entries) <= MOST:
        raise Refused(messages.NO_BUNDLE)
    image_data = _bytes(archive, str(image_entry["file"]), limits.FILE)
    versions = {str(name)[:40]: str(value)[:40] for name, value in dict(index.get("versions") or {}).items()}
    maps = [_map(archive, entry, index.get("weights")) for entry in entries]
    suffix = "." + str(image_entry["file"]).rpartition(".")[2]
    matches, second = _hash(image_data) == image_entry["sha256"], None
    if second_entry := index.get("second"):
        second = _bytes(archive, str(second_entry["file"]), limits.FILE)
        matches = matches and _hash(second) == second_entry["sha256"]
    return Bundle(image_data, suffix, matches, dict(list(versions.items())[:20]), maps, second)


def _is_unsafe(name: str) -> bool:
    """Return whether a name is empty or points outside the archive."""
    return not name or name.startswith(("/", "\\")) or ":" in name or ".." in name.replace("\\", "/").split("/")


def _bytes(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Read an entry, at most `limit` bytes regardless of its header."""
    if archive.getinfo(name).file_size > limit:
        raise Refused(messages.TOO_LARGE)
    with archive.open(name) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise Refused(messages.TOO_LARGE)
    return data


def _map(archive: zipfile.ZipFile, entry: Any, weights: Any) -> Map:
    values = npy.read(_bytes(archive, str(entry["files"]["map"]), MAP), None)
    if values.ndim != 3 or len(values) != 1 or values.dtype != "float32":
        raise Refused(messages.NO_BUNDLE)
    question, answer = entry["question"], entry.get("answer")
    known = weights.get(question["model"]) if isinstance(weights, dict) else None
    return Map(
        str(entry.get("name", ""))[:20],
        question,
        answer if isinstance(answer, dict) else {},
        values[0],
        _hash(values[0].astype("<f4").tobytes()) == entry["sha256"],
        str(known.get("sha256", "")) if isinstance(known, dict) else "",
    )


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
