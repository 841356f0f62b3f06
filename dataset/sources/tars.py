"""Tars of pictures, as WebDataset writes them: key.jpg, and beside it key.cls, key.txt or key.json with the label."""

from __future__ import annotations

import json
import posixpath
import tarfile
from collections.abc import Iterator
from typing import Any

from dataset.errors import Refused
from dataset.items import Item
from dataset.sources.place import Place, is_hidden, is_picture, refusing

UNPACK = {
    "gzip": "gzip -d FILE, or tar -xzf FILE",
    "bzip2": "bzip2 -d FILE",
    "xz": "xz -d FILE",
    "zstandard": "zstd -d FILE",
    "zip": "unzip FILE",
    "7z": "7z x FILE",
}
_STARTS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"PK": "zip",
    b"7z\xbc\xaf": "7z",
}
_LABELS = ("cls", "txt", "json")
"""Files of a label beside a picture, the first one that says something counts."""


def compression(start: bytes) -> str | None:
    """The kind of compressed archive that a file's first bytes announce."""
    return next((kind for magic, kind in _STARTS.items() if start.startswith(magic)), None)


def is_tar(start: bytes) -> bool:
    """Whether a file's first bytes are a header of a tar, by its checksum."""
    try:
        tarfile.TarInfo.frombuf(start[:512], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def members(place: Place, name: str, prefix: str = "") -> list[Item]:
    """The pictures of a tar, each with its place in it.

    Args     prefix: before the paths, where a folder has several tars
    Errors   Refused for one that ends too early, and for one without pictures
    """
    url, found, labels = place.url(name), {}, {}
    with refusing(url), place.open(name) as file:
        for info, tar in _whole(url, file):
            path = posixpath.normpath(info.name)
            if not info.isreg() or info.issparse() or is_hidden(path):
                continue
            if is_picture(path):
                shown = place.shown(prefix + path)
                found[path] = Item(shown, None, url, info.offset_data, info.size)
            elif _field(path) in _LABELS and info.size < 2**20:
                member = tar.extractfile(info)
                labels[_key(path), _field(path)] = member.read() if member else b""
    if not found:
        raise Refused(f"{url} is a tar without pictures.")
    return [Item(item.path, _label(path, labels), item.url, item.offset, item.size) for path, item in found.items()]


def _whole(url: str, file: Any) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Members with their tar, one after the other; what is behind the file is read once.

    Errors   Refused where the file ends before a member does or before the mark of the end, two blocks of zeros
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
                setattr(tar, "members", [])  # noqa: B010  # tarfile would keep a million of them
            file.seek(tar.offset)
            end = file.read(tarfile.BLOCKSIZE)
            if not end or end.strip(b"\0"):  # tarfile takes a damaged header for the end
                raise tarfile.ReadError("no end")
    except tarfile.TarError:
        raise Refused(
            f"{url} is cut off or damaged: it ends {cut or 'without its last block'}, and the {whole} members before "
            "that are whole. Copy it again, or unpack what is there (tar -xf) and give the folder."
        ) from None


def _key(path: str) -> str:
    """WebDataset's key: everything before the first dot of the file's name."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, name.partition(".")[0])


def _field(path: str) -> str:
    return posixpath.basename(path).partition(".")[2].lower()


def _label(path: str, labels: dict[tuple[str, str], bytes]) -> str | None:
    for field in _LABELS:
        data = labels.get((_key(path), field))
        if data is not None and (label := _said(data, field)) is not None:
            return label
    return None


def _said(data: bytes, field: str) -> str | None:
    """The label in a file beside a picture; of JSON the entry label, class or cls."""
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
