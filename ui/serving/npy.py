"""NPY files: the header is checked before anything is allocated, and nothing in them is ever run (no pickle)."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

from ui import limits
from ui.engine.messages import Refused

if TYPE_CHECKING:
    import numpy as np

START = b"\x93NUMPY"
KINDS = {"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"}
HEADER = 1000  # bytes; that of a plain array has 118

DAMAGED = "This NPY file is damaged or ends too early. Write it again with numpy.save."
NO_NUMBERS = (
    "This NPY file does not hold plain numbers. Save the picture with numpy.save as uint8, uint16, int16 or float32."
)
NO_PICTURE = (
    "The array has shape {shape}; a picture has [height, width], [height, width, bands] or [bands, height, width]."
)
AMBIGUOUS = (
    "The array has shape {shape}, and its bands may be the first or the last axis. Save it as [bands, height, width], "
    "with a width other than the number of bands."
)
TOO_MANY = "The picture has {bands} bands; at most {limit} are read."
TOO_LARGE = "The picture declares {values:,} values (width x height x bands); at most {limit} million are read."


def read(data: bytes, channels: int | None) -> np.ndarray:
    """The array of an NPY file as a picture [bands, height, width] in the machine's byte order.

    `channels` of the network say which axis holds the bands; None, or where neither fits: the shorter one of both.

    Errors   Refused
    """
    import numpy as np  # a tenth of a second that only raw pixels need

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
    """Errors   Refused for more bands, values or bytes than are read"""
    if bands > limits.BANDS:
        raise Refused(TOO_MANY.format(bands=bands, limit=limits.BANDS))
    if values > limits.BAND_VALUES or size > limits.BAND_BYTES:
        most = min(limits.BAND_VALUES, limits.BAND_BYTES * values // size)
        raise Refused(TOO_LARGE.format(values=values, limit=most // 10**6))


def _header(data: bytes) -> tuple[str, bool, tuple[int, ...], int]:
    """Type, whether columns come first, shape, and where the numbers begin."""
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
        raise Refused(NO_PICTURE.format(shape=list(shape)[:8]))
    return kind, fortran, shape, start


def _bands(shape: tuple[int, ...], channels: int | None) -> int | None:
    """The axis of the bands; None where there is one band without an axis."""
    if len(shape) == 2:
        return None
    fitting = [axis for axis in (0, 2) if shape[axis] == channels]
    if len(fitting) == 1:
        return fitting[0]
    if fitting or shape[0] == shape[2]:
        raise Refused(AMBIGUOUS.format(shape=list(shape)))
    return 0 if shape[0] < shape[2] else 2
