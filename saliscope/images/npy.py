"""NPY files: the header is checked before memory is allocated, and no code in a file is run (no pickle)."""

from __future__ import annotations

import io
import math

import numpy as np
from numpy.lib import format as npy_format

from saliscope import limits
from saliscope.errors import Refused

START = b"\x93NUMPY"
KINDS = {"u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"}
HEADER = 1000  # characters; that of a plain array has 118
_SECOND = npy_format.read_array_header_2_0
_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): _SECOND, (3, 0): _SECOND}
"""By version; version 3 has other letters in names of fields, which images do not have."""

DAMAGED = "This NPY file is damaged or truncated. Save it again with numpy.save."
NO_NUMBERS = (
    "This NPY file does not contain numbers. Save the image with numpy.save as uint8, uint16, int16 or float32."
)


def read(data: bytes, channels: int | None) -> np.ndarray:
    """Return the array in an NPY file as an image [bands, height, width] in native byte order.

    `channels` of the network determines the axis of the bands; if it is None or neither axis matches, it is the shorter
    of the first and the last axis.

    Errors   Refused
    """
    file = io.BytesIO(data)
    try:
        shape, fortran, dtype = _READERS[npy_format.read_magic(file)](file, HEADER)
    except Exception as error:  # many types of errors for damaged headers; a TypeError if only the type is unknown
        raise Refused(NO_NUMBERS if isinstance(error.__cause__, TypeError) else DAMAGED) from None
    if dtype.str[1:] not in KINDS:
        raise Refused(NO_NUMBERS)
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise Refused(
            f"The array has shape {list(shape)[:8]}, but an image has [height, width], [height, width, bands] or "
            "[bands, height, width]."
        )
    start, values = file.tell(), math.prod(shape)
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
        raise Refused(f"The image has {bands} bands. The maximum is {limits.BANDS}.")
    if values > limits.BAND_VALUES or size > limits.BAND_BYTES:
        most = min(limits.BAND_VALUES, limits.BAND_BYTES * values // size)
        count = f"{values:,}" if values < 10**12 else "more than 10^12"  # a header can have hundreds of digits
        raise Refused(f"The image has {count} values (width x height x bands). The maximum is {most // 10**6} million.")


def _bands(shape: tuple[int, ...], channels: int | None) -> int | None:
    """Return the axis of the bands, or None for a single band without an axis."""
    if len(shape) == 2:
        return None
    matching = [axis for axis in (0, 2) if shape[axis] == channels]
    if len(matching) == 1:
        return matching[0]
    if matching or shape[0] == shape[2]:
        raise Refused(
            f"The array has shape {list(shape)}, so its first or its last axis could be the bands. Save it as [bands, "
            "height, width] with a width that differs from the number of bands."
        )
    return 0 if shape[0] < shape[2] else 2
