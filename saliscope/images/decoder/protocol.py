"""Messages between the page and a decoder process: a JSON header and bytes.

The page does not trust the answers of a decoder, which an image may have taken over. Therefore nothing is pickled, and
sizes are checked before memory is allocated.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import IO, Any

from saliscope import limits

LENGTHS = struct.Struct("<IQ")
LONGEST_HEADER = 64 * limits.KB
LONGEST_LINE = 200
LONGEST_BODY = 4 * limits.BAND_VALUES + 4 * limits.WORK_PIXELS
"""Bytes: float32 bands and their RGB image, which are larger than any file."""


class Broken(Exception):
    """The other process ended in a message, or sent something else."""


def write(stream: IO[bytes], header: dict[str, Any], *parts: bytes | bytearray | memoryview) -> None:
    """Write one message."""
    text = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(text), sum(len(part) for part in parts)) + text)
    for part in parts:
        stream.write(part)
    stream.flush()


def read(
    stream: IO[bytes], most: Callable[[dict[str, Any]], int] = lambda _: LONGEST_BODY
) -> tuple[dict[str, Any], bytearray] | None:
    """Read one message, or return None at the end of the stream.

    `most` returns the bytes that may follow a header; it may raise Broken.

    Errors   Broken
    """
    first = bytearray(LENGTHS.size)
    if not stream.readinto(memoryview(first)[:1]):  # type: ignore[attr-defined]
        return None
    first[1:] = _exactly(stream, LENGTHS.size - 1)
    text_length, length = LENGTHS.unpack(first)
    if text_length > LONGEST_HEADER or length > LONGEST_BODY:
        raise Broken
    try:
        header = json.loads(_exactly(stream, text_length))
    except (ValueError, RecursionError):
        raise Broken from None
    if not isinstance(header, dict) or length > most(header):
        raise Broken
    return header, _exactly(stream, length)


def write_line(stream: IO[bytes], *words: str) -> None:
    """Write a line about the process, in the stream that no file can write to."""
    stream.write(" ".join(words).encode() + b"\n")
    stream.flush()


def read_line(stream: IO[bytes], name: str) -> list[str]:
    """Return the words after the name of a line.

    Errors   Broken for the end of the stream and for another line
    """
    first, *words = stream.readline(LONGEST_LINE).decode("ascii", "replace").split() or [""]
    if first != name:
        raise Broken
    return words


def _exactly(stream: IO[bytes], length: int) -> bytearray:
    data = bytearray(length)
    view, at = memoryview(data), 0
    while at < length:
        count = stream.readinto(view[at:])  # type: ignore[attr-defined]
        if not count:
            raise Broken
        at += count
    return data
