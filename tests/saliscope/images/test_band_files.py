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
from PIL import Image

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import bands, npy, tiff, uploads
from tests.support.band_files import KINDS, npy_file, tiff_file, values

pytestmark = pytest.mark.sample


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", ["interleaved", "separate", "pages"])
def test_every_type_and_layout_of_a_tiff(kind: str, order: str, layout: str) -> None:
    array = values(kind)
    for options in ({}, {"packed": True, "rows": 33}, {"tile": 32, "packed": True, "big": True}):
        np.testing.assert_array_equal(bands.read(tiff_file(array, order=order, layout=layout, **options), 5), array)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tile", [0, 16])
@pytest.mark.parametrize("layout", ["interleaved", "separate"])
def test_predictors(kind: str, tile: int, layout: str) -> None:
    """Differences along a row stay within one strip or tile, sample by sample."""
    array = values(kind, 4)
    for predictor, order in itertools.product([2, 3] if kind[0] == "f" else [2], "<>"):
        file = tiff_file(array, order=order, tile=tile, layout=layout, predictor=predictor, packed=True)
        np.testing.assert_array_equal(bands.read(file, 4), array)


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "packbits", "tiff_adobe_deflate", "lzma", "zstd"])
@pytest.mark.parametrize("predictor", [1, 2])
def test_files_of_libtiff(compression: str, predictor: int) -> None:
    """Oracle: the encoders of libtiff, through Pillow."""
    array = values("u1", 3)
    file = io.BytesIO()
    tags = {} if compression in ("raw", "packbits") else {317: predictor}
    Image.fromarray(np.moveaxis(array, 0, -1)).save(file, "TIFF", compression=compression, tiffinfo=tags)
    page = tiff.pages(file.getvalue())[0]
    assert page.predictor == tags.get(317, 1)

    np.testing.assert_array_equal(tiff.read_bands(file.getvalue(), page, uploads.TimedDecoder()), array)


def test_floating_point_differences_of_libtiff() -> None:
    array = values("f4", 1)
    file = io.BytesIO()
    Image.fromarray(array[0]).save(file, "TIFF", compression="tiff_lzw", tiffinfo={317: 3})
    page = tiff.pages(file.getvalue())[0]

    assert page.predictor == 3 and page.compression == 5
    np.testing.assert_array_equal(tiff.read_bands(file.getvalue(), page, uploads.TimedDecoder()), array)


@pytest.mark.parametrize("count, colors", [(5, 1), (5, 2), (2, 1)])
def test_unsupported_encodings_are_reported(count: int, colors: int) -> None:
    extra = (0,) * (count - 3) if colors == 2 else ()
    for changed in ({"t259": [7]}, {"t258": [12] * count}, {"t258": [8] * (count - 1) + [16]}):
        with pytest.raises(Refused, match="encoding is not supported"):
            bands.open_bands(tiff_file(values("u1", count), colors=colors, extra=extra, **changed), 5)


@pytest.mark.parametrize("turn", range(1, 9))
def test_orientation_is_applied(turn: int) -> None:
    """Oracle: Pillow's transpose of the same image."""
    array = values("u1", 3)
    lying = tiff_file(array, turn=turn)
    image = Image.fromarray(np.moveaxis(array, 0, -1))
    method = uploads._ORIENTATIONS.get(turn)
    upright = image if method is None else image.transpose(method)

    np.testing.assert_array_equal(bands.read(lying, 5), np.moveaxis(np.asarray(upright), -1, 0))


def test_pages_are_bands_and_overviews_are_not() -> None:
    array = values("u2", 6)

    np.testing.assert_array_equal(bands.read(tiff_file(array, overviews=True), 6), array)
    assert bands.read(tiff_file(array[:1], overviews=True), 3) is None  # one gray page: an image
    file = bytearray(tiff_file(array[:3], layout="pages"))
    first = struct.unpack_from("<I", file, 4)[0]
    length = struct.unpack_from("<H", file, first)[0]
    second = struct.unpack_from("<I", file, first + 2 + 12 * length)[0]
    assert struct.unpack_from("<H", file, second + 2)[0] == 254
    struct.pack_into("<I", file, second + 10, 4)  # the second page is a mask of the first one
    np.testing.assert_array_equal(bands.read(bytes(file), 2), array[[0, 2]])


@pytest.mark.parametrize(
    "shape, channels, axis",
    [((20, 30), 1, None), ((20, 30), 5, None), ((5, 20, 30), 5, 0), ((20, 30, 5), 5, 2), ((13, 20, 30), 3, 0),
     ((20, 30, 13), 3, 2), ((40, 20, 30), 40, 0), ((1, 20, 30), 1, 0), ((20, 30, 1), 1, 2), ((20, 30, 4), None, 2)],
)  # fmt: skip
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["u1", ">u2", "<i2", ">f4", "f8", "i8"])
def test_axis_of_the_bands_in_an_npy_file(shape: Any, channels: int, axis: int | None, order: str, kind: str) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(kind).copy(order)
    expected = array[None] if axis is None else np.moveaxis(array, axis, 0)

    actual = bands.read(npy_file(array), channels)

    assert actual is not None and actual.dtype.isnative
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("shape, channels", [((5, 20, 5), 5), ((7, 20, 7), 3)])
def test_ambiguous_axes_are_rejected(shape: tuple[int, ...], channels: int) -> None:
    with pytest.raises(Refused, match="its first or its last axis could be the bands"):
        bands.read(npy_file(np.zeros(shape, "u1")), channels)


class Trap:
    """An object whose unpickling ends the process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


def forged(**changes: Any) -> bytes:
    """Return an NPY file of 5 x 8 x 9 uint16 with another header."""
    fields = {"descr": "<u2", "fortran_order": False, "shape": (5, 8, 9), **changes}
    header = repr(fields).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(5 * 8 * 9 * 2)


@pytest.mark.parametrize(
    "data, message",
    [
        (npy_file(np.array([Trap()], object)), "does not contain numbers"),
        (npy_file(np.zeros((4, 4), [("a", "u1")])), "does not contain numbers"),
        (npy_file(np.zeros((4, 4), "c8")), "does not contain numbers"),
        (npy_file(np.zeros((4, 4), "M8[s]")), "does not contain numbers"),
        (npy_file(np.zeros((4, 4), "U3")), "does not contain numbers"),
        (npy_file(np.zeros((4, 4), bool)), "does not contain numbers"),
        (npy_file(np.zeros(9, "u1")), r"shape \[9\]"),
        (npy_file(np.zeros((1, 3, 4, 4), "u1")), r"shape \[1, 3, 4, 4\]"),
        (npy_file(np.zeros((0, 4, 4), "u1")), r"shape \[0, 4, 4\]"),
        (npy_file(np.zeros((5, 8, 9), "u2"))[:-1], "damaged or truncated"),
        (npy_file(np.zeros((5, 8, 9), "u2")) + b"x", "damaged"),
        (forged(shape=(5, 1 << 40, 1 << 40)), "values"),
        (forged(shape=(5, -8, -9)), "shape"),
        (forged(shape=(5.0, 8, 9)), "damaged"),
        (forged(shape=(True, 8, 9)), "damaged"),
        (forged(shape=5), "damaged"),
        (forged(fortran_order=0), "damaged"),
        (forged(descr="|O"), "does not contain numbers"),
        (forged(descr="O"), "does not contain numbers"),
        (forged(descr="<u200000000"), "does not contain numbers"),
        (forged(descr=["<u2"]), "does not contain numbers"),
        (forged(shape=(600, 800, 900)), "600 bands"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 65535, "damaged"),
        (b"\x93NUMPY\x01\x00" + struct.pack("<H", 900) + b"(" * 900, "damaged"),
        (b"\x93NUMPY\x09\x00" + bytes(90), "damaged"),
        (b"\x93NUMPY", "damaged"),
        (b"\x93NUMPY\x01\x00\x10\x00" + b"__import__('os')", "damaged"),
    ],
)
def test_malicious_arrays_are_rejected(data: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(Refused, match=message):
        bands.open_bands(data, 5)


def test_npz_archive_is_reported() -> None:
    file = io.BytesIO()
    np.savez(file, image=np.zeros((5, 8, 9)))
    with pytest.raises(Refused, match="NPZ archive. Save the array"):
        bands.open_bands(file.getvalue(), 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"t256": [1 << 30], "t257": [1 << 30]},
        {"t277": [1 << 20]},
        {"t273": [0xFFFFFFF0]},
        {"t279": [0xFFFFFFFF]},
        {"t273": [8] * 100},
        {"t278": [0]},
        {"t258": [16, 8, 16, 8, 16]},
        {"t256": [0]},
        {"t339": [9]},
        {"t317": [7]},
        {"t322": [1 << 30], "t323": [1 << 30], "t324": [8], "t325": [9]},
        {"t322": [1], "t323": [1], "t324": [8], "t325": [9]},
    ],
)
def test_invalid_tags_are_rejected(changes: dict[str, list[int]]) -> None:
    with pytest.raises(Refused):
        bands.open_bands(tiff_file(values(), **changes), 5)


def test_damaged_files_are_decoded_or_rejected() -> None:
    """Valid files, truncated and changed at random: no other errors, and no image of another size."""
    generator = np.random.default_rng(0)
    files = [tiff_file(values(), packed=True), tiff_file(values("u1"), tile=16, layout="separate"), npy_file(values())]
    files.append(tiff_file(values("f4"), layout="pages", big=True, order=">"))
    for file in files:
        for _ in range(60):
            data = bytearray(file)
            for _ in range(generator.integers(1, 6)):
                data[generator.integers(4, len(data) if generator.random() < 0.5 else 200)] = generator.integers(256)
            if generator.random() < 0.3:
                del data[generator.integers(4, len(data)) :]
            try:
                bands.open_bands(bytes(data), 5)
            except Refused:
                continue


def test_cyclic_pages_and_repeated_blocks_are_rejected() -> None:
    file = bytearray(tiff_file(values("u1", 2), layout="pages"))
    second = struct.unpack_from("<I", file, 4)[0]
    length = struct.unpack_from("<H", file, second)[0]
    struct.pack_into("<I", file, second + 2 + 12 * length, second)  # the first page names itself as the next one
    assert len(tiff.pages(bytes(file))) == 1
    again = tiff_file(values("u1", 5, 400, 50), rows=1)
    with pytest.raises(Refused, match="damaged"):
        bands.open_bands(tiff_file(values("u1", 5, 400, 50), rows=1, t273=[8] * 400, t279=[len(again)] * 400), 5)


def test_size_is_checked_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BAND_VALUES", 5 * 33 * 50 - 1)
    monkeypatch.setattr(tiff, "read_bands", lambda *_: pytest.fail("decoded"))
    for data in (tiff_file(values()), tiff_file(values(), layout="pages"), npy_file(values())):
        with pytest.raises(Refused, match=r"8,250 values \(width x height x bands\)"):
            bands.open_bands(data, 5)
    with pytest.raises(Refused, match="One side may be at most 20 times the other"):
        bands.open_bands(npy_file(np.zeros((1, 4000, 2), "u1")), 1)


def test_description_names_type_and_shape() -> None:
    assert {kind[-2:] for kind in KINDS} <= npy.KINDS
