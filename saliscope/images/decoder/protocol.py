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
LONGEST_BODY = 4 * limits.BAND_VALUES + 4 * limits.WORK_PIXELS
"""Bytes: float32 bands and their RGB image, which are larger than any file."""


class Broken(Exception):
    """The other process ended in a message, or sent something else."""


def write(stream: IO[bytes], header: dict[str, Any], body: bytes = b"") -> None:
    """Write one message."""
    text = json.dumps(header).encode()
    stream.write(LENGTHS.pack(len(text), len(body)) + text)
    stream.write(body)
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


def _exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise Broken
    return data
