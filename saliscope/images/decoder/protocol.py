"""Messages between the page and a decoder process: a JSON header and bytes.

The page does not trust the answers of a decoder, which an image may have taken over. Therefore nothing is pickled, and
sizes are checked before memory is allocated.
"""

from __future__ import annotations

import json
import struct
from typing import IO, Any

from saliscope import limits

LENGTHS = struct.Struct("<IQ")
LONGEST_HEADER = 64 * limits.KB
LONGEST_LINE = 200
LONGEST_BODY = 4 * limits.BAND_VALUES + 4 * limits.WORK_PIXELS
"""Bytes: float32 bands and their RGB image, which are larger than any file."""


class Broken(Exception):
    """The other process ended in a message, or sent something else."""


def write(stream: IO[bytes], header: dict[str, Any], *parts: bytes) -> None:
    """Write one message."""
    text = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(text), sum(len(part) for part in parts)) + text)
    for part in parts:
        stream.write(part)
    stream.flush()


def read(stream: IO[bytes], most: int = LONGEST_BODY) -> tuple[dict[str, Any], bytes]:
    """Return the header and the bytes of one message; `most` bytes may follow the header.

    Errors   Broken, also at the end of the stream
    """
    header_length, length = LENGTHS.unpack(_exactly(stream, LENGTHS.size))
    if header_length > LONGEST_HEADER or length > most:
        raise Broken
    try:
        header = json.loads(_exactly(stream, header_length))
    except (ValueError, RecursionError):
        raise Broken from None
    if not isinstance(header, dict):
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


def _exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise Broken
    return data
