"""A bundle read from a file that may be anybody's: nothing is unpacked to a disk, no size believed, no name used."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ui import limits
from ui.engine.messages import Refused
from ui.serving import npy
from ui.share import words
from ui.share.bundle import MOST
from ui.share.record import FORMAT, VERSION

if TYPE_CHECKING:
    import numpy as np

INDEX = "bundle.json"
TEXT = limits.MB
MAP = 80 * limits.MB
FILES = 64
"""Entries of the archive."""


@dataclass(frozen=True)
class Map:
    """One map of a bundle: its question as it was written, its values [h, w], and what is said about it."""

    name: str
    question: Any
    answer: dict[str, Any]
    values: np.ndarray
    untouched: bool
    """Whether the values have the hash that stands beside them."""
    weights: str
    """The hash of the weights that it was computed with."""


@dataclass(frozen=True)
class Bundle:
    """What is read from the file."""

    photograph: bytes
    suffix: str
    untouched: bool
    """Whether the photograph has the hash that stands beside it."""
    versions: dict[str, str]
    maps: list[Map]


def read(path: str) -> Bundle:
    """The bundle in a file.

    Errors   Refused, with one sentence, for whatever is no bundle of this version
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except Refused:
        raise
    except FileNotFoundError:
        raise Refused(words.no_file(path)) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError, NotImplementedError, RuntimeError):
        raise Refused(words.NO_BUNDLE) from None
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise Refused(words.DAMAGED) from None


def _read(archive: zipfile.ZipFile) -> Bundle:
    names = archive.namelist()
    if len(names) > FILES or len(set(names)) != len(names) or any(_leaves(name) for name in names):
        raise Refused(words.NO_BUNDLE)
    if INDEX not in names:
        raise Refused(words.NO_BUNDLE)
    index = json.loads(_bytes(archive, INDEX, TEXT).decode("utf-8"))
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise Refused(words.NO_BUNDLE)
    if index.get("version") != VERSION:
        raise Refused(words.OTHER_VERSION)
    photograph, listed = index["photograph"], index["maps"]
    if not isinstance(listed, list) or not 0 < len(listed) <= MOST:
        raise Refused(words.NO_BUNDLE)
    picture = _bytes(archive, str(photograph["file"]), limits.FILE)
    versions = {str(name)[:40]: str(value)[:40] for name, value in dict(index.get("versions") or {}).items()}
    maps = [_map(archive, each, index.get("weights")) for each in listed]
    suffix = "." + str(photograph["file"]).rpartition(".")[2]
    return Bundle(picture, suffix, _hash(picture) == photograph["sha256"], dict(list(versions.items())[:20]), maps)


def _leaves(name: str) -> bool:
    """Whether a name leads out of the archive, or is none."""
    return not name or name.startswith(("/", "\\")) or ":" in name or ".." in name.replace("\\", "/").split("/")


def _bytes(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """An entry's bytes, never more than `most`, whatever its header says."""
    if archive.getinfo(name).file_size > most:
        raise Refused(words.TOO_LARGE)
    with archive.open(name) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Refused(words.TOO_LARGE)
    return data


def _map(archive: zipfile.ZipFile, entry: Any, weights: Any) -> Map:
    values = npy.read(_bytes(archive, str(entry["files"]["map"]), MAP), None)
    if values.ndim != 3 or len(values) != 1 or values.dtype != "float32":
        raise Refused(words.NO_BUNDLE)
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
