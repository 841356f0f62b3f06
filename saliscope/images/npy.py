"""NPY files: the header is checked before memory is allocated, and no code in a file is run (no pickle)."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

from saliscope import limits
from saliscope.errors import Refused

if TYPE_CHECKING:
    import numpy as np

START = b"\x93NUMPY"
KINDS = {"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"}
HEADER = 1000  # bytes; that of a plain array has 118

DAMAGED = "This NPY file is damaged or truncated. Save it again with numpy.save."
NO_NUMBERS = (
    "This NPY file does not contain numbers. Save the image with numpy.save as uint8, uint16, int16 or float32."
)
NOT_AN_IMAGE = (
    "The array has shape {shape}, but an image has [height, width], [height, width, bands] or [bands, height, width]."
)
AMBIGUOUS = (
    "The array has shape {shape}, so its first or its last axis could be the bands. Save it as [bands, height, width] "
    "with a width that differs from the number of bands."
)
TOO_MANY = "The image has {bands} bands. The maximum is {limit}."
TOO_LARGE = "The image has {values} values (width x height x bands). The maximum is {limit} million."


def read(data: bytes, channels: int | None) -> np.ndarray:
    """Return the array in an NPY file as an image [bands, height, width] in native byte order.

    `channels` of the network determines the axis of the bands; if it is None or neither axis matches, it is the shorter
    of the first and the last axis.

    Errors   Refused
    """
    import numpy as np  # takes 0.1 s, and is only needed for raw values

    kind, fortran, shape, start = _header(data)
    dtype = np.dtype(kind)
    values = math.prod(shape)
    axis = _bands(shape, channels)
    check_size(1 if axis is None else shape[axis], values, values * dtype.itemsize)
    if len(data) - start != values * dtype.itemsize:
        raise Refused(DAMAGED)
    array = np.frombuffer(data, dtype, values, start).reshape(shape, order="F" if fortran else "C")
    array = array[None] if axis is None else np.moveaxis(array, axis, 0)
    return np.ascontiguousarray(array, dtype.newbyteorder("="))


def check_size(bands: int, values: int, size: int) -> None:
    """Refuse more bands, values or bytes than the limits.

    Errors   Refused
    """
    if bands > limits.BANDS:
        raise Refused(TOO_MANY.format(bands=bands, limit=limits.BANDS))
    if values > limits.BAND_VALUES or size > limits.BAND_BYTES:
        most = min(limits.BAND_VALUES, limits.BAND_BYTES * values // size)
        count = f"{values:,}" if values < 10**12 else "more than 10^12"  # a header can have hundreds of digits
        raise Refused(TOO_LARGE.format(values=count, limit=most // 10**6))


def _header(data: bytes) -> tuple[str, bool, tuple[int, ...], int]:
    """Return the type, whether the order is Fortran's, the shape, and the offset of the values."""
    version, wide = data[6:7], 2 if data[6:7] == b"\x01" else 4
    length = int.from_bytes(data[8 : 8 + wide], "little")
    start = 8 + wide + length
    if version not in (b"\x01", b"\x02", b"\x03") or length > HEADER or start > len(data):
        raise Refused(DAMAGED)
    try:
        header = ast.literal_eval(data[8 + wide : start].decode("ascii").strip())
        kind, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise Refused(DAMAGED) from None
    if not isinstance(kind, str) or kind[:1] not in "<>|=" or kind[1:] not in KINDS:
        raise Refused(NO_NUMBERS)
    if not isinstance(shape, tuple) or not all(type(side) is int for side in shape) or type(fortran) is not bool:
        raise Refused(DAMAGED)
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise Refused(NOT_AN_IMAGE.format(shape=list(shape)[:8]))
    return kind, fortran, shape, start


def _bands(shape: tuple[int, ...], channels: int | None) -> int | None:
    """Return the axis of the bands, or None for a single band without an axis."""
    if len(shape) == 2:
        return None
    matching = [axis for axis in (0, 2) if shape[axis] == channels]
    if len(matching) == 1:
        return matching[0]
    if matching or shape[0] == shape[2]:
        raise Refused(AMBIGUOUS.format(shape=list(shape)))
    return 0 if shape[0] < shape[2] else 2
