"""TIFF and NPY files with bands: every type and layout, damaged and malicious files."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from benchmarks.public.files.images import Call
from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import bands, tiff, uploads
from tests.support.band_files import KINDS, npy_file, tiff_file, values


def test_every_type_and_layout_of_a_tiff() -> None:
    options = itertools.cycle(
        [{}, {"packed": True, "rows": 33}, {"tile": 32, "packed": True, "big": True}, {"big": True}]
    )
    for kind, order, layout in itertools.product(KINDS, "<>", ["interleaved", "separate", "pages"]):
        array, more = values(kind), next(options)
        found = bands.read(tiff_file(array, order=order, layout=layout, **more), 5)
        np.testing.assert_array_equal(found, array, f"{kind} {order} {layout} {more}")


@pytest.mark.parametrize("tile, layout", [(0, "separate"), (16, "interleaved")])
def test_predictors(tile: int, layout: str) -> None:
    """Differences along a row stay within one strip or tile, sample by sample."""
    for kind, predictor, order in itertools.product(KINDS, (2, 3), "<>"):
        if predictor == 3 and kind[0] != "f":
            continue
        array = values(kind, 4)
        file = tiff_file(array, order=order, tile=tile, layout=layout, predictor=predictor, packed=True)
        np.testing.assert_array_equal(bands.read(file, 4), array, f"{kind} {predictor} {order}")


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "packbits", "tiff_adobe_deflate", "lzma", "zstd"])
def test_files_of_libtiff(compression: str) -> None:
    """Oracle: the encoders of libtiff, through Pillow; predictor 3 is for floating-point numbers."""
    for kind, predictor in (("u1", 1), ("u1", 2), ("f4", 3)):
        if predictor > 1 and compression in ("raw", "packbits"):
            continue
        array = values(kind, 3 if kind == "u1" else 1)
        image, file = Image.fromarray(np.moveaxis(array, 0, -1) if kind == "u1" else array[0]), io.BytesIO()
        image.save(file, "TIFF", compression=compression, tiffinfo={317: predictor} if predictor > 1 else {})
        (page,) = tiff.pages(file.getvalue())
        assert page.predictor == predictor
        np.testing.assert_array_equal(tiff.read_bands(file.getvalue(), page, uploads.TimedDecoder()), array)


def test_unsupported_encodings_are_reported() -> None:
    for count, colors in ((5, 1), (5, 2), (2, 1)):
        extra = (0,) * (count - 3) if colors == 2 else ()
        for changed in ({"t259": [7]}, {"t258": [12] * count}, {"t258": [8] * (count - 1) + [16]}):
            with pytest.raises(Refused, match="encoding is not supported"):
                bands.open_bands(tiff_file(values("u1", count), colors=colors, extra=extra, **changed), 5)


def test_orientation_is_applied() -> None:
    """Oracle: Pillow's function for it."""
    array = values("u1", 3)
    for turn in range(1, 9):
        image = Image.fromarray(np.moveaxis(array, 0, -1))
        image.getexif()[0x0112] = turn
        upright = np.moveaxis(np.asarray(ImageOps.exif_transpose(image)), -1, 0)
        np.testing.assert_array_equal(bands.read(tiff_file(array, turn=turn), 5), upright, f"{turn}")


def test_pages_are_bands_except_overviews_masks_and_cycles() -> None:
    array = values("u2", 6)
    np.testing.assert_array_equal(bands.read(tiff_file(array, overviews=True), 6), array)
    assert bands.read(tiff_file(array[:1], overviews=True), 3) is None  # one gray page: an image
    file = bytearray(tiff_file(array[:3], layout="pages"))
    first = struct.unpack_from("<I", file, 4)[0]
    link = first + 2 + 12 * struct.unpack_from("<H", file, first)[0]
    second = struct.unpack_from("<I", file, link)[0]
    assert struct.unpack_from("<H", file, second + 2)[0] == 254
    struct.pack_into("<I", file, second + 10, 4)  # the second page is a mask of the first one
    np.testing.assert_array_equal(bands.read(bytes(file), 2), array[[0, 2]])
    struct.pack_into("<I", file, link, first)  # the first page names itself as the next one
    assert len([*tiff.pages(bytes(file))]) == 1


AXES = [
    ((20, 30), 1, None), ((20, 30), 5, None), ((5, 20, 30), 5, 0), ((20, 30, 5), 5, 2), ((13, 20, 30), 3, 0),
    ((20, 30, 13), 3, 2), ((40, 20, 30), 40, 0), ((1, 20, 30), 1, 0), ((20, 30, 1), 1, 2), ((20, 30, 4), None, 2),
]  # fmt: skip
"""Shapes, the channels of the network, and the axis of the bands."""


def test_axis_of_the_bands_in_an_npy_file() -> None:
    for (shape, channels, axis), order, kind in itertools.product(AXES, "CF", ["u1", ">u2", "<i2", ">f4", "f8", "i8"]):
        array = np.arange(np.prod(shape)).reshape(shape).astype(kind).copy(order)
        actual = bands.read(npy_file(array), channels)
        assert actual is not None and actual.dtype.isnative
        np.testing.assert_array_equal(actual, array[None] if axis is None else np.moveaxis(array, axis, 0))
    for shape, channels in (((5, 20, 5), 5), ((7, 20, 7), 3)):
        with pytest.raises(Refused, match="its first or its last axis could be the bands"):
            bands.read(npy_file(np.zeros(shape, "u1")), channels)


def forged(**changes: Any) -> bytes:
    """Return an NPY file of 5 x 8 x 9 uint16 with another header."""
    fields = {"descr": "<u2", "fortran_order": False, "shape": (5, 8, 9), **changes}
    header = repr(fields).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(5 * 8 * 9 * 2)


WHOLE = npy_file(np.zeros((5, 8, 9), "u2"))
ARCHIVE = io.BytesIO()
np.savez(ARCHIVE, image=np.zeros((5, 8, 9)))
MALICIOUS: dict[str, list[bytes]] = {
    "does not contain numbers": [
        *(npy_file(np.zeros((4, 4), kind)) for kind in ([("a", "u1")], "c8", "M8[s]", bool)),
        npy_file(np.array([Call(os._exit, 1)], object)),
    ],
    "shape": [*(npy_file(np.zeros(shape, "u1")) for shape in ((9,), (1, 3, 4, 4))), forged(shape=(5, -8, -9))],
    "damaged": [WHOLE[:-1], WHOLE + b"x", forged(shape=(5.0, 8, 9)), forged(shape=5), forged(fortran_order=0)],
    "values": [forged(shape=(5, 1 << 40, 1 << 40))],
    "600 bands": [forged(shape=(600, 800, 900))],
    r"^The image has more than 10\^12 values": [forged(shape=(10**700, 2))],
    "NPZ archive. Save the array": [ARCHIVE.getvalue()],
}
"""Messages, and files that are refused with them; the files of `make hostile` in test_decoder.py have more."""


def test_malicious_arrays_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    for message, files in MALICIOUS.items():
        for data in files:
            with pytest.raises(Refused, match=message) as found:
                bands.open_bands(data, 5)
            assert len(str(found.value)) < 200, message


def test_repeated_blocks_are_rejected() -> None:
    array = values("u1", 5, 400, 50)
    whole = len(tiff_file(array, rows=1))
    with pytest.raises(Refused, match="damaged"):
        bands.open_bands(tiff_file(array, rows=1, t273=[8] * 400, t279=[whole] * 400), 5)


def test_size_is_checked_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BAND_VALUES", 5 * 33 * 50 - 1)
    monkeypatch.setattr(tiff, "read_bands", lambda *_: pytest.fail("decoded"))
    for data in (tiff_file(values()), tiff_file(values(), layout="pages"), npy_file(values())):
        with pytest.raises(Refused, match=r"8,250 values \(width x height x bands\)"):
            bands.open_bands(data, 5)
    with pytest.raises(Refused, match="One side may be at most 20 times the other"):
        bands.open_bands(npy_file(np.zeros((1, 4000, 2), "u1")), 1)


def test_tiles_are_at_most_twice_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles of 64 x 64 of this image have 64 x 33 pixels of it, with five values of two bytes."""
    data = tiff_file(values(), tile=64)
    (page,) = tiff.pages(data)
    monkeypatch.setattr(limits, "BAND_BYTES", 64 * 33 * 5)
    np.testing.assert_array_equal(tiff.read_bands(data, page, uploads.TimedDecoder()), values())
    monkeypatch.setattr(limits, "BAND_BYTES", 64 * 33 * 5 - 1)
    with pytest.raises(tiff.Damaged):
        tiff.read_bands(data, page, uploads.TimedDecoder())
