"""The parts of PNG and JPEG files, without reading pixels."""

from __future__ import annotations

import re
from collections.abc import Iterator

START_OF_SCAN, END = 0xDA, 0xD9
PIXELS = 0
"""Stands for the marker of the compressed pixels, which have none."""
_NO_LENGTH = {1, *range(0xD0, 0xDA)}
_marker = re.compile(rb"\xff+([^\xff])", re.DOTALL).match
_after_pixels = re.compile(rb"\xff+[^\x00\xd0-\xd7\xff]", re.DOTALL).search


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, the start and the end of every chunk; the last one may end after the data."""
    at = 8
    while at + 8 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], at, end
        at = end


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the segments after the first, up to the end of the image or until the data is damaged.

    Returns  the marker, its start with fill bytes, the start of the length, and the end
    """
    at = 2
    while found := _marker(data, at):
        marker, body = found[1][0], found.end()
        at = body if marker in _NO_LENGTH else body + max(2, int.from_bytes(data[body : body + 2], "big"))
        yield marker, found.start(), body, at
        if marker == END:
            return
        if marker == START_OF_SCAN:
            if not (after := _after_pixels(data, at)):
                return
            yield PIXELS, at, at, after.start()
            at = after.start()
