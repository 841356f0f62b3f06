"""Tars of images in the WebDataset format: key.jpg, and key.cls, key.txt or key.json with the label."""

from __future__ import annotations

import json
import posixpath
import tarfile
from collections.abc import Iterator
from typing import Any

from saliscope.errors import Refused
from saliscope.runs.items import Item, refuse_errors
from saliscope.runs.sources.location import Location, is_hidden, is_image

COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gzip -d FILE, or tar -xzf FILE"),
    b"BZh": ("bzip2", "bzip2 -d FILE"),
    b"\xfd7zXZ": ("xz", "xz -d FILE"),
    b"\x28\xb5\x2f\xfd": ("zstandard", "zstd -d FILE"),
    b"PK": ("zip", "unzip FILE"),
    b"7z\xbc\xaf": ("7z", "7z x FILE"),
}
"""The kinds of compressed archives by their first bytes, and how to unpack them."""
_LABELS = ("cls", "txt", "json")
"""Suffixes of label files next to an image; the first file with a label is used."""


def compression(start: bytes) -> tuple[str, str] | None:
    """Return the kind of a compressed archive and how to unpack it, detected from its first bytes."""
    return next((found for magic, found in COMPRESSED.items() if start.startswith(magic)), None)


def is_tar(start: bytes) -> bool:
    """Return whether the first bytes of a file are a tar header with a valid checksum."""
    try:
        tarfile.TarInfo.frombuf(start[:512], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def members(location: Location, name: str, prefix: str = "") -> list[Item]:
    """Return the images in a tar, each with its offset.

    Args     prefix: put before the paths, if a folder contains several tars
    Errors   Refused for a truncated tar, and for a tar without images
    """
    url, images, labels = location.url(name), {}, {}
    with refuse_errors(url), location.open(name) as file:
        for info, tar in _read_members(url, file):
            path = posixpath.normpath(info.name)
            if not info.isreg() or info.issparse() or is_hidden(path):
                continue
            if is_image(path):
                text = location.to_text(prefix + path)
                images[path] = Item(text, None, url, info.offset_data, info.size)
            elif _field(path) in _LABELS and info.size < 2**20:
                member = tar.extractfile(info)
                labels[_key(path), _field(path)] = member.read() if member else b""
    if not images:
        raise Refused(f"{url} is a tar without images.")
    return [Item(item.path, _label(path, labels), item.url, item.offset, item.size) for path, item in images.items()]


def _read_members(url: str, file: Any) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Yield each member with its tar; what is between the headers is not read.

    Errors   Refused if the file ends within a member, or before the end mark of two blocks of zeros
    """
    size, whole, cut = file.seek(0, 2), 0, ""
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:", errors="surrogateescape") as tar:
            while (info := tar.next()) is not None:
                if info.isreg() and info.offset_data + info.size > size:
                    cut = f"inside {info.name}"
                    raise tarfile.ReadError("unexpected end of data")
                yield info, tar
                whole += 1
                setattr(tar, "members", [])  # noqa: B010  # tarfile would keep a million of them in memory
            file.seek(tar.offset)
            end = file.read(tarfile.BLOCKSIZE)
            if not end or end.strip(b"\0"):  # tarfile treats a damaged header as the end
                raise tarfile.ReadError("no end mark")
    except tarfile.TarError:
        raise Refused(
            f"{url} is truncated or damaged: it ends {cut or 'without its last block'}. The {whole} members before "
            "that are complete. Copy it again, or unpack what is there (tar -xf) and pass the folder."
        ) from None


def _key(path: str) -> str:
    """Return WebDataset's key: everything before the first dot of the file name."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, name.partition(".")[0])


def _field(path: str) -> str:
    return posixpath.basename(path).partition(".")[2].lower()


def _label(path: str, labels: dict[tuple[str, str], bytes]) -> str | None:
    for field in _LABELS:
        data = labels.get((_key(path), field))
        if data is not None and (label := _parse_label(data, field)) is not None:
            return label
    return None


def _parse_label(data: bytes, field: str) -> str | None:
    """Return the label in a label file; in JSON, the value of label, class_name, class or cls."""
    text = data.decode("utf-8", "replace").strip()
    if field != "json":
        return text or None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if isinstance(value, dict):
        value = next((value[key] for key in ("label", "class_name", "class", "cls") if key in value), None)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
