"""More than a thousand hostile image files, and valid ones of every format, made from bytes and fixed seeds."""

from __future__ import annotations

import functools
import io
import itertools
import pickle
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.public.files.case import EITHER, REFUSED, VALID, Case, Command, case, seeds
from benchmarks.public.files.floods import floods, polyglots
from saliscope import limits
from saliscope.images import uploads
from tests.support.band_files import KINDS, npy_file, tiff_file, values
from tests.support.image_files import chunk, declared, mutations, png, save, scene


def cases() -> list[Case]:
    """Return all files in a fixed order."""
    groups = (valid, bombs, truncated, changed, lying_headers, tiff_tags, npy_headers, floods, polyglots)
    return [case for group in groups for case in group()]


def folder(path: Path) -> Iterator[Case]:
    """Yield the files of a folder, which must be opened or refused."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield Case("your folder", str(file.relative_to(path)), file.read_bytes)


def valid() -> Iterator[Case]:
    """Yield images of all formats, modes, sizes and orientations."""
    for kind, size in itertools.product(uploads.FORMATS, [(1, 1), (17, 11), (640, 480), (2000, 1500)]):
        yield case("valid", f"{kind} {size}", VALID, lambda kind, size: save(scene(size), kind), kind, size)
    modes = {"PNG": "1 L LA P RGB RGBA I;16", "TIFF": "1 L LA P RGB RGBA CMYK I;16 F I", "JPEG": "L RGB CMYK"}
    modes |= {"GIF": "L P RGB", "BMP": "1 L P RGB RGBA", "WEBP": "RGB RGBA"}
    for kind, names in modes.items():
        for mode, turn in itertools.product(names.split(), (1, 3, 6)):
            yield case("valid", f"{kind} {mode} turned {turn}", VALID, _mode, kind, mode, turn)
    for kind, order, layout in itertools.product(KINDS, "<>", ("interleaved", "separate", "pages")):
        yield case("valid", f"TIFF {kind} {order} {layout}", VALID, _bands, kind, order, layout)
    for kind in KINDS:
        yield case("valid", f"NPY {kind}", VALID, lambda kind: npy_file(values(kind, 3)), kind)
    yield case("valid", "JPEG of 150 million pixels", VALID, _large, (15000, 10000), "JPEG", "RGB")
    yield case("valid", "PNG of 60 million pixels", VALID, _large, (10000, 6000), "PNG", "RGB")
    yield case("valid", "PNG of 190 million gray pixels", VALID, _large, (15000, 12600), "PNG", "L")
    yield case("valid", "TIFF of 100 million pixels", VALID, _large, (10000, 10000), "TIFF", "RGB")
    for name, file in _progressive():
        yield case("valid", name, VALID, lambda file: file, file)


def _mode(kind: str, mode: str, turn: int) -> bytes:
    image = scene((48, 32))
    exif = Image.Exif()
    exif[0x0112] = turn
    if mode == "I;16":
        image = Image.fromarray(np.arange(1536, dtype=np.uint16).reshape(32, 48) * 40)
    elif mode in ("I", "F"):
        image = image.convert("L").convert(mode)
    else:
        image = image.convert(mode)
    return save(image, kind, **({"exif": exif} if kind in ("PNG", "TIFF", "JPEG", "WEBP") else {}))


def _bands(kind: str, order: str, layout: str) -> bytes:
    return tiff_file(values(kind, 3), order=order, layout=layout, packed=True)


def _large(size: tuple[int, int], kind: str, mode: str) -> bytes:
    options: dict[str, Any] = {"PNG": {"compress_level": 1}, "TIFF": {"compression": "tiff_lzw"}}.get(kind, {})
    return save(Image.new(mode, size, 90 if mode == "L" else (90, 40, 10)), kind, **options)


def _progressive() -> Iterator[tuple[str, bytes]]:
    for quality, sampling in itertools.product((30, 95), (0, 1, 2)):
        options = {"quality": quality, "subsampling": sampling, "progressive": True}
        yield f"JPEG progressive {quality} {sampling}", save(scene((300, 200)), "JPEG", **options)


def bombs() -> Iterator[Case]:
    """Yield small files that declare, or expand to, more than the memory."""
    sides = [(15000, 15000), (16383, 16383), (16383, 12300)]
    for kind, size in itertools.product(("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"), sides):
        yield case("bombs", f"{kind} declares {size}", REFUSED, declared, kind, *size)
    for kind, size in itertools.product(("PNG", "GIF", "BMP", "TIFF"), [(65535, 65535), (2**15, 4), (3, 2**15)]):
        yield case("bombs", f"{kind} declares {size}", REFUSED, declared, kind, *size)
    for color, depth, side in itertools.product((0, 2, 6), (8, 16), (8000, 14000, 15000)):
        yield case("bombs", f"PNG of zeros {color} {depth} {side}", EITHER, _zeros, color, depth, side)
    text = functools.cache(lambda: zlib.compress(bytes(60 * limits.MB), 1))
    for name, start in ((b"zTXt", b"a\0\0"), (b"iCCP", b"a\0\0"), (b"iTXt", b"a\0\1\0\0\0")):
        make = lambda name, start: png(2, 1, 8, 0, b"\0\x10\x20", *[chunk(name, start + text())] * 8)  # noqa: E731
        yield case("bombs", f"PNG {name.decode()}", EITHER, make, name, start)
    for compression in ("tiff_adobe_deflate", "tiff_lzw", "packbits", "group4", "lzma", "zstd", "jpeg"):
        side = 4000 if compression == "lzma" else 13000  # it is slow to compress
        yield case("bombs", f"TIFF {compression}", EITHER, _tiff_zeros, compression, (side, side))
    for mode, side in (("RGBA", 8000), ("F", 7900), ("I;16", 13900), ("CMYK", 13900)):
        yield case("bombs", f"TIFF {mode} of zeros", EITHER, _tiff_mode, mode, side)
    yield case("bombs", "GIF of 169 million pixels", EITHER, _plain_zeros, "GIF", "P", (13000, 13000))
    yield case("bombs", "WebP of 260 million pixels", REFUSED, _webp_canvas, 16384, 16384)
    yield case("bombs", "WebP of 62 million pixels", REFUSED, _plain_zeros, "WEBP", "RGB", (7900, 7900))
    yield case("bombs", "WebP of 48 million pixels", VALID, _plain_zeros, "WEBP", "RGBA", (8000, 6000))
    yield case("bombs", "PNG with 4,900 profiles", REFUSED, _profiles, 4_900)
    yield case("bombs", "PNG with 9 profiles", VALID, _profiles, 9)
    yield case("bombs", "NPY in a zip archive", REFUSED, _npz)


def _zeros(color: int, depth: int, side: int) -> bytes:
    row = side * {0: 1, 2: 3, 6: 4}[color] * depth // 8 + 1
    packer = zlib.compressobj(1)
    data = b"".join(packer.compress(bytes(row * 100)) for _ in range(side // 100)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _tiff_zeros(compression: str, size: tuple[int, int]) -> bytes:
    mode = "1" if compression == "group4" else "L"
    return save(Image.new(mode, size), "TIFF", compression=compression)


def _tiff_mode(mode: str, side: int) -> bytes:
    image = Image.fromarray(np.zeros((side, side), np.uint16)) if mode == "I;16" else Image.new(mode, (side, side))
    return save(image, "TIFF", compression="tiff_adobe_deflate")


def _plain_zeros(kind: str, mode: str, size: tuple[int, int]) -> bytes:
    return save(Image.new(mode, size), kind)


def _webp_canvas(width: int, height: int) -> bytes:
    data = bytearray(save(scene((16, 16)), "WEBP", save_all=True, append_images=[Image.new("RGB", (16, 16))]))
    at = data.index(b"VP8X") + 12
    data[at : at + 6] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


def _profiles(count: int) -> bytes:
    packed = zlib.compress(bytes(1_040_000))
    return png(2, 1, 8, 0, b"\0\x10\x20", chunk(b"iCCP", b"a\0\0" + packed) * count)


def _npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, image=np.zeros((3, 3000, 3000)))
    return file.getvalue()


def truncated() -> Iterator[Case]:
    """Yield the starts of one file of every kind."""
    for number, seed in enumerate(seeds()):
        for part in (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
            cut = seed[: max(3, int(len(seed) * part))]
            yield case("truncated", f"file {number} at {part:.0%}", EITHER, lambda cut: cut, cut)


def changed(count: int = 500) -> Iterator[Case]:
    """Yield files with changed, removed, repeated and exchanged bytes."""
    for number, data in enumerate(mutations(seeds(), count, random.Random(30))):
        yield case("changed bytes", f"change {number}", EITHER, lambda data: data, data)


def lying_headers() -> Iterator[Case]:
    """Yield files whose headers do not match their content."""
    sizes = [(0, 5), (5, 0), (1, 1), (15, 17), (400, 300), (4000, 3000), (16383, 12000)]
    for kind, size in itertools.product(("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"), sizes):
        if kind == "WEBP" and 0 in size:
            continue  # its header has the sides minus one
        yield case("lying headers", f"{kind} declares {size}", EITHER, declared, kind, *size)
    for depth, color in itertools.product((0, 1, 2, 4, 8, 16, 32, 255), (0, 1, 2, 3, 4, 5, 6, 7)):
        make = functools.partial(png, 9, 9, depth, color, bytes(1000))
        yield Case("lying headers", f"PNG depth {depth} color {color}", make)
    for components, sampling in itertools.product((0, 1, 2, 3, 4, 5, 200), (0x00, 0x11, 0x44, 0xFF, 0x41)):
        yield case("lying headers", f"JPEG {components} {sampling:#x}", EITHER, _jpeg_frame, components, sampling)
    for bits, compression, side in itertools.product((0, 1, 7, 16, 32, 64), (0, 1, 2, 3, 9), (2**31 - 1, -(2**31))):
        yield case("lying headers", f"BMP {bits} {compression} {side}", EITHER, _bmp_head, bits, compression, side)


def _jpeg_frame(components: int, sampling: int) -> bytes:
    data = bytearray(save(scene(), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 9] = components
    for position in range(at + 11, at + 18, 3):
        data[position] = sampling
    return bytes(data)


def _bmp_head(bits: int, compression: int, side: int) -> bytes:
    data = bytearray(save(scene(), "BMP"))
    data[22:26] = struct.pack("<i", side)
    data[28:30], data[30:34] = struct.pack("<H", bits), struct.pack("<I", compression)
    return bytes(data)


def tiff_tags() -> Iterator[Case]:
    """Yield TIFF and BigTIFF files with one wrong tag, wrong offsets, and endless or very many directories."""
    tags = (254, 256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 284, 317, 338, 339)
    numbers = {False: (0, 1, 255, 65535, 2**31, 2**32 - 1), True: (2**63 - 1, 2**64 - 1, 2**40)}
    for big, tag in itertools.product((False, True), tags):
        for number in numbers[big]:
            yield case("TIFF tags", f"{'Big' * big}TIFF {tag} = {number}", EITHER, _tag, tag, [number], big)
        yield case("TIFF tags", f"{'Big' * big}TIFF {tag} = many", EITHER, _tag, tag, [1] * 3000, big)
    for big, offset in itertools.product((False, True), (0, 1, 8, 2**31, 2**32 - 1, 2**62, 2**64 - 1)):
        yield case("TIFF tags", f"{'Big' * big}TIFF directory at {offset}", EITHER, _directory_at, big, offset)
    yield case("TIFF tags", "40,000 directories", EITHER, _directories, 40_000)
    yield case("TIFF tags", "40,000 images", EITHER, _directories, 40_000, tags=True)
    yield case("TIFF tags", "a loop of directories", EITHER, _directories, 3, loop=True)
    yield case("TIFF tags", "65,535 entries", EITHER, _entries, 65535)
    for rows, width in ((20_000, 1), (60_000, 1), (20_000, 1000), (100_000, 2000)):
        yield case("TIFF tags", f"{width} x {rows:,} in strips of one row", EITHER, _strips, width, rows)
        yield case("TIFF tags", f"{width} x {rows:,} in one strip used {rows:,} times", EITHER, _strips, width, rows, 1)
    for tile in (0, 16, 1 << 14, 1 << 20):
        yield case("TIFF tags", f"tiles of {tile}", EITHER, _tag, 322, [tile], False)
        yield case("TIFF tags", f"tiles of {tile} for 16 pixels", EITHER, _large_tiles, tile)


def _tag(tag: int, numbers: list[int], big: bool) -> bytes:
    numbers = numbers if big else [number & 0xFFFFFFFF for number in numbers]
    return tiff_file(values("u2", 3), big=big, **{f"t{tag}": numbers})


def _directory_at(big: bool, offset: int) -> bytes:
    data = bytearray(tiff_file(values("u1", 3), big=big))
    data[8 if big else 4 :][: 8 if big else 4] = b""
    word = struct.pack("<Q", offset) if big else struct.pack("<I", offset & 0xFFFFFFFF)
    start = 8 if big else 4
    data[start : start + len(word)] = word
    return bytes(data)


def _directories(count: int, *, loop: bool = False, tags: bool = False) -> bytes:
    entries = b""
    if tags:
        for tag, value in ((256, 4), (257, 4), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, 4), (279, 16)):
            entries += struct.pack("<HHII", tag, 4, 1, value)
    size, start = 2 + len(entries) + 4, 24
    parts = [b"II*\x00" + struct.pack("<I", start) + bytes(16)]
    for number in range(count):
        last = number == count - 1
        following = (start if loop else 0) if last else start + (number + 1) * size
        parts.append(struct.pack("<H", len(entries) // 12) + entries + struct.pack("<I", following))
    return b"".join(parts)


def _entries(count: int) -> bytes:
    entries = b"".join(struct.pack("<HHII", number % 65536, 4, 1, 1) for number in range(count))
    return b"II*\x00" + struct.pack("<I", 8) + struct.pack("<H", count) + entries + bytes(4)


def _strips(width: int, rows: int, different: int = 0) -> bytes:
    """Return a TIFF with strips of one row; with `different`, all of them are the same bytes of the file."""
    data = bytes(width * (different or rows))
    offsets = [8 + (0 if different else width * row) for row in range(rows)]
    start = 8 + len(data)
    tables = struct.pack(f"<{rows}I", *offsets) + struct.pack(f"<{rows}I", *[width] * rows)
    tags = {256: (1, width), 257: (1, rows), 258: (1, 8), 259: (1, 1), 262: (1, 1), 273: (rows, start), 277: (1, 1)}
    tags |= {278: (1, 1), 279: (rows, start + 4 * rows)}
    entries = b"".join(struct.pack("<HHII", tag, 4, *pair) for tag, pair in sorted(tags.items()))
    directory = start + len(tables)
    head = b"II*\x00" + struct.pack("<I", directory)
    return head + data + tables + struct.pack("<H", len(tags)) + entries + bytes(4)


def _large_tiles(tile: int) -> bytes:
    return tiff_file(values("u1", 3, 16, 16), tile=16, packed=True, t322=[tile], t323=[tile])


def npy_headers() -> Iterator[Case]:
    """Yield NPY files with objects, wrong shapes and headers that are programs."""
    objects = pickle.dumps(np.array([Command()], dtype=object))
    headers = [
        ("objects", "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", objects),
        ("objects in an image", "{'descr': '|O', 'fortran_order': False, 'shape': (1, 1)}", objects),
        ("a structure", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 2)}", bytes(16)),
        ("text", "{'descr': '<U8', 'fortran_order': False, 'shape': (2, 2)}", bytes(128)),
        ("complex", "{'descr': '<c8', 'fortran_order': False, 'shape': (2, 2)}", bytes(32)),
        ("code", "__import__('os').system('touch hostile')", b""),
        ("code in a value", "{'descr': open('hostile', 'w'), 'fortran_order': False, 'shape': (2, 2)}", b""),
        ("no header", "", b""),
        ("many brackets", "(" * 400, b""),
        ("a long number", "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 700 + ", 2)}", b""),
    ]
    for name, text, data in headers:
        yield case("NPY headers", name, REFUSED, _npy, text, data)
    shapes = [(0, 4), (4, 0), (-1, 4), (2**40, 4), (2**62, 2**62), (4, 4, 4, 4), (4,), (), (1, 10**8), (600, 8, 9)]
    for shape, kind in itertools.product(shapes, ("<f4", "|u1", ">i8")):
        text = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}}}"
        yield case("NPY headers", f"{kind} {shape}", REFUSED, _npy, text, bytes(64))
    for length in (0, 1, 65535):
        data = b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + b"{'descr'"
        yield case("NPY headers", f"header of {length} bytes", REFUSED, lambda data: data, data)
    for version in (0, 2, 3, 4, 255):
        data = b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I", 2**31) + b"{}"
        yield case("NPY headers", f"version {version}", REFUSED, lambda data: data, data)


def _npy(header: str, data: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + data
