"""Images with bands as TIFF and NPY files, written only from their specifications."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from typing import Any

import numpy as np

KINDS = ["u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8"]


def values(kind: str = "u2", count: int = 5, height: int = 33, width: int = 50) -> np.ndarray:
    """Bands [count, height, width] that differ everywhere and use the range of their type."""
    generator = np.random.default_rng(count)
    if kind[0] == "f":
        return generator.random((count, height, width)).astype(kind)
    info = np.iinfo(kind)
    return generator.integers(info.min, info.max, (count, height, width), dtype=kind, endpoint=True)


def tiff_file(
    array: np.ndarray, *, order: str = "<", big: bool = False, layout: str = "interleaved", packed: bool = False,
    tile: int = 0, rows: int = 7, predictor: int = 1, extra: tuple[int, ...] = (), colors: int = 1, turn: int = 1,
    overviews: bool = False, **changed: list[int],
) -> bytes:  # fmt: skip
    """A TIFF of bands [n, height, width], written only from the specification: its tags, then its blocks."""
    pages = [array[k : k + 1] for k in range(len(array))] if layout == "pages" else [array]
    word, kinds = ("Q", 16) if big else ("I", 4)
    head = struct.pack(order + "2sH", b"II" if order == "<" else b"MM", 43 if big else 42)
    head += struct.pack(order + "HHQ", 8, 0, 0) if big else bytes(4)
    file, previous = bytearray(head), len(head) - (8 if big else 4)
    for number, page in enumerate([*pages, *([array[:, ::2, ::2]] if overviews else [])]):
        count, height, width = page.shape
        planes = list(page) if layout == "separate" else [np.moveaxis(page, 0, -1)]
        blocks = [
            block
            for plane in planes
            for block in cut(plane.reshape(height, width, -1), tile or width, tile or rows, tile)
        ]
        offsets, sizes = [], []
        for block in blocks:
            raw = encoded(block, order, predictor)
            data = zlib.compress(raw) if packed else raw
            offsets.append(len(file))
            sizes.append(len(data))
            file += data
        tags = {
            254: [int(number == len(pages))], 256: [width], 257: [height], 258: [8 * array.itemsize] * count,
            259: [8 if packed else 1], 262: [colors], 274: [turn], 277: [count],
            284: [2 if layout == "separate" else 1], 317: [predictor], 338: list(extra),
            339: [{"u": 1, "i": 2, "f": 3}[array.dtype.kind]] * count,
        }  # fmt: skip
        tags |= (
            {322: [tile], 323: [tile], 324: offsets, 325: sizes} if tile else {273: offsets, 278: [rows], 279: sizes}
        )
        tags |= {int(name[1:]): value for name, value in changed.items()}
        entries = b""
        for tag, numbers in sorted(tags.items()):
            if not numbers:
                continue
            packed_numbers = struct.pack(f"{order}{len(numbers)}{word}", *numbers)
            if len(numbers) > 1:
                packed_numbers, at = struct.pack(order + word, len(file)), packed_numbers
                file += at
            entries += struct.pack(f"{order}HH{word}", tag, kinds, len(numbers)) + packed_numbers
        directory = len(file)
        length = sum(1 for numbers in tags.values() if numbers)
        file += struct.pack(order + ("Q" if big else "H"), length) + entries
        file[previous : previous + struct.calcsize(word)] = struct.pack(order + word, directory)
        previous = len(file)
        file += bytes(struct.calcsize(order + word))
    return bytes(file)


def cut(plane: np.ndarray, across: int, down: int, padded: int) -> list[np.ndarray]:
    """Strips, or tiles that are filled up at the edges, from the left and from the top."""
    found = []
    for top, left in itertools.product(range(0, plane.shape[0], down), range(0, plane.shape[1], across)):
        block = plane[top : top + down, left : left + across]
        if padded:
            block = np.pad(block, [(0, down - block.shape[0]), (0, across - block.shape[1]), (0, 0)])
        found.append(block)
    return found


def encoded(block: np.ndarray, order: str, predictor: int) -> bytes:
    """A block's bytes; with predictor 2 or 3 as differences along its rows."""
    kind = block.dtype
    if predictor == 2:
        words = np.ascontiguousarray(block).view(f"u{kind.itemsize}")
        words = np.concatenate([words[:, :1], words[:, 1:] - words[:, :-1]], axis=1)
        return words.astype(f"{order}u{kind.itemsize}").tobytes()
    if predictor == 3:
        rows, columns, count = block.shape
        planes = (
            np.ascontiguousarray(block)
            .astype(kind.newbyteorder(">"))
            .view("u1")
            .reshape(rows, columns * count, kind.itemsize)
        )
        flat = planes.transpose(0, 2, 1).reshape(rows, -1, count)
        return np.concatenate([flat[:, :1], flat[:, 1:] - flat[:, :-1]], axis=1).tobytes()
    return block.astype(kind.newbyteorder(order)).tobytes()


def npy_file(array: np.ndarray, **options: Any) -> bytes:
    """What numpy.save writes."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()
