"""More than a thousand hostile image files, and valid ones of every format, made from bytes and fixed seeds."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from saliscope import limits
from saliscope.images import uploads
from tests.support.band_files import KINDS, npy_file, tiff_file, values
from tests.support.image_files import chunk, declared, png, save, scene, swapped_profile

VALID, REFUSED, EITHER = "opened", "refused", "either"


class Case(NamedTuple):
    """One file, made when it is needed, and the expected outcome."""

    group: str
    name: str
    make: Callable[[], bytes]
    expected: str = EITHER


def case(group: str, name: str, expected: str, make: Callable[..., bytes] | bytes, *given: Any, **named: Any) -> Case:
    """Return a case whose file is given, or made by a call."""
    return Case(group, name, functools.partial(make if callable(make) else lambda: make, *given, **named), expected)


@functools.cache
def seeds() -> list[bytes]:
    """Return one small file of every supported format, mode and kind, also with bands."""
    small, see_through = scene((24, 16)), scene((24, 16)).convert("RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [Image.new("RGB", (24, 16), "black")]
    deep = Image.fromarray(np.arange(384, dtype=np.uint16).reshape(16, 24) * 150)
    found = [save(small, kind) for kind in uploads.FORMATS]
    found += [save(small, "JPEG", progressive=True, exif=exif), save(small.convert("CMYK"), "JPEG")]
    found += [save(small, "PNG", icc_profile=swapped_profile()), save(small.quantize(8), "PNG", transparency=1)]
    found += [save(small, kind, save_all=True, append_images=frames) for kind in ("GIF", "WEBP", "PNG", "TIFF")]
    found += [save(see_through, kind) for kind in ("PNG", "WEBP", "TIFF")]
    found += [save(deep, "PNG"), save(deep, "TIFF"), save(small.quantize(8), "BMP"), save(small.convert("1"), "TIFF")]
    found += [save(small, "TIFF", compression=how) for how in ("tiff_lzw", "jpeg", "packbits", "tiff_adobe_deflate")]
    found += [npy_file(values("u2", 5)), npy_file(values("f4", 3))]
    found += [tiff_file(values("u2", 5), layout=layout, packed=True) for layout in ("interleaved", "separate", "pages")]
    found += [tiff_file(values("f4", 4), big=True, tile=16, packed=True, predictor=3, order=">")]
    return found


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any = os.system, *given: Any) -> None:
        self.call = function, given or ("touch hostile",)

    def __reduce__(self) -> Any:
        return self.call


MODES = {"PNG": "1 L LA P RGB RGBA I;16", "TIFF": "1 L LA P RGB RGBA CMYK I;16 F I", "JPEG": "L RGB CMYK"}
MODES |= {"GIF": "L P RGB", "BMP": "1 L P RGB RGBA", "WEBP": "RGB RGBA"}
LARGE = json.loads(Path(__file__).with_name("large.json").read_text("ascii"))
"""Images of one color: the outcome, the format, the mode, the size, and options of the file."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")
TAGS = (254, 256, 257, 258, 259, 262, 266, 273, 274, 277, 278, 279, 284, 317, 338, 339)
NUMBERS = {False: (0, 1, 255, 65535, 2**31, 2**32 - 1), True: (2**63 - 1, 2**64 - 1, 2**40)}
"""Values of the tags of a TIFF, and of a BigTIFF."""
COMMAND = pickle.dumps(np.array([Call()], dtype=object))
HEADERS = {
    "'descr': '|O', 'fortran_order': False, 'shape': (1,)": COMMAND,
    "'descr': '|O', 'fortran_order': False, 'shape': (1, 1)": COMMAND,
    "'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 2)": bytes(16),
    "'descr': '<U8', 'fortran_order': False, 'shape': (2, 2)": bytes(128),
    "'descr': '<c8', 'fortran_order': False, 'shape': (2, 2)": bytes(32),
    "'descr': open('hostile', 'w'), 'fortran_order': False, 'shape': (2, 2)": b"",
    "'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 700 + ", 2)": b"",
    "'descr': __import__('os').system('touch hostile')": b"",
    "(" * 400: b"",
}
"""Headers of NPY files, and their data."""
SHAPES = [(0, 4), (4, 0), (-1, 4), (2**40, 4), (2**62, 2**62), (4, 4, 4, 4), (4,), (), (1, 10**8), (600, 8, 9)]


def mutations(seeds: list[bytes], count: int, rng: random.Random) -> Iterator[bytes]:
    """Yield damaged images: bytes changed, removed, repeated or exchanged between files, or extreme numbers."""
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 6)):
            at, length, other = rng.randrange(rng.choice([64, len(data)])), rng.randint(1, 16), rng.choice(seeds)
            start = rng.randrange(len(other))
            extreme = rng.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x00\x00\xff\xff"])
            repeated = data[at : at + length] * rng.randint(2, 30)
            parts = (rng.randbytes(length), extreme, b"", repeated, other[start : start + length])
            data[at : at + length] = rng.choice(parts)
            data = data or bytearray(b"\x00")
        yield bytes(data)


def cases() -> list[Case]:
    """Return all files in a fixed order."""
    groups = (valid, bombs, damaged, lying_headers, tiff_tags, npy_headers, floods, polyglots)
    return [case for group in groups for case in group()]


def folder(path: Path) -> Iterator[Case]:
    """Yield the files of a folder, which must be opened or refused."""
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return (Case("your folder", str(file.relative_to(path)), file.read_bytes) for file in files)


def valid() -> Iterator[Case]:
    """Yield images of all formats, modes, sizes and orientations."""
    for kind, size in itertools.product(uploads.FORMATS, [(1, 1), (17, 11), (640, 480), (2000, 1500)]):
        yield case("valid", f"{kind} {size}", VALID, lambda kind, size: save(scene(size), kind), kind, size)
    for kind, names in MODES.items():
        for mode, turn in itertools.product(names.split(), (1, 3, 6)):
            yield case("valid", f"{kind} {mode} turned {turn}", VALID, _mode, kind, mode, turn)
    for kind, order, layout in itertools.product(KINDS, "<>", ("interleaved", "separate", "pages")):
        make = functools.partial(tiff_file, order=order, layout=layout, packed=True)
        yield case("valid", f"TIFF {kind} {order} {layout}", VALID, make, values(kind, 3))
    for kind in KINDS:
        yield case("valid", f"NPY {kind}", VALID, npy_file, values(kind, 3))
    for quality, sampling in itertools.product((30, 95), (0, 1, 2)):
        options = {"quality": quality, "subsampling": sampling, "progressive": True}
        name = f"JPEG progressive {quality} {sampling}"
        yield case("valid", name, VALID, save, scene((300, 200)), "JPEG", **options)


def _mode(kind: str, mode: str, turn: int) -> bytes:
    image = scene((48, 32))
    exif = Image.Exif()
    exif[0x0112] = turn
    if mode == "I;16":
        image = Image.fromarray(np.arange(1536, dtype=np.uint16).reshape(32, 48) * 40)
    else:
        image = image.convert("L").convert(mode) if mode in ("I", "F") else image.convert(mode)
    return save(image, kind, **({"exif": exif} if kind in ("PNG", "TIFF", "JPEG", "WEBP") else {}))


def bombs() -> Iterator[Case]:
    """Yield large images, and small files that declare, or expand to, more than the memory."""
    for expected, kind, mode, size, options in LARGE:
        group, name = "valid" if expected == VALID else "bombs", f"{kind} {mode} of {tuple(size)} pixels {options}"
        yield case(group, name, expected, _blank, kind, mode, size, **options)
    sizes = list(itertools.product(FORMATS, [(15000, 15000), (16383, 16383), (16383, 12300)]))
    sizes += itertools.product(("PNG", "GIF", "BMP", "TIFF"), [(65535, 65535), (2**15, 4), (3, 2**15)])
    for kind, size in sizes:
        yield case("bombs", f"{kind} declares {size}", REFUSED, declared, kind, *size)
    for color, depth, side in itertools.product((0, 2, 6), (8, 16), (8000, 14000, 15000)):
        yield case("bombs", f"PNG of zeros {color} {depth} {side}", EITHER, _zeros, color, depth, side)
    for name, start in ((b"zTXt", b"a\0\0"), (b"iCCP", b"a\0\0"), (b"iTXt", b"a\0\1\0\0\0")):
        yield case("bombs", f"PNG {name.decode()}", EITHER, _packed, name, start, 60 * limits.MB, 8)
    for count, expected in ((4_900, REFUSED), (9, VALID)):
        yield case("bombs", f"PNG with {count} profiles", expected, _packed, b"iCCP", b"a\0\0", 1_040_000, count)
    sides = (16383).to_bytes(3, "little") * 2
    animated = save(scene((16, 16)), "WEBP", save_all=True, append_images=[Image.new("RGB", (16, 16))])
    yield case(
        "bombs", "WebP of 260 million pixels", REFUSED, _changed(animated, (animated.index(b"VP8X") + 12, sides))
    )
    archive = io.BytesIO()
    np.savez_compressed(archive, image=np.zeros((3, 300, 300)))
    yield case("bombs", "NPY in a zip archive", REFUSED, archive.getvalue())


def _blank(kind: str, mode: str, size: tuple[int, int], **options: Any) -> bytes:
    return save(Image.new(mode, size, (90, 40, 10) if mode == "RGB" else 0), kind, **options)


def _zeros(color: int, depth: int, side: int) -> bytes:
    row = side * {0: 1, 2: 3, 6: 4}[color] * depth // 8 + 1
    packer = zlib.compressobj(1)
    data = b"".join(packer.compress(bytes(row * 100)) for _ in range(side // 100)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _packed(name: bytes, start: bytes, size: int, count: int) -> bytes:
    """Return a PNG with chunks that expand to this size."""
    return png(2, 1, 8, 0, b"\0\x10\x20", chunk(name, start + zlib.compress(bytes(size), 1)) * count)


def _changed(data: bytes, *parts: tuple[int, bytes]) -> bytes:
    """Return a file with other bytes at some positions."""
    for at, part in parts:
        data = data[:at] + part + data[at + len(part) :]
    return data


def damaged(count: int = 500) -> Iterator[Case]:
    """Yield the starts of one file of every kind, and files with changed, removed, repeated and exchanged bytes."""
    for (number, seed), part in itertools.product(enumerate(seeds()), (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)):
        yield case("truncated", f"file {number} at {part:.0%}", EITHER, seed[: max(3, int(len(seed) * part))])
    for number, data in enumerate(mutations(seeds(), count, random.Random(30))):
        yield case("changed bytes", f"change {number}", EITHER, data)


def lying_headers() -> Iterator[Case]:
    """Yield files whose headers do not match their content."""
    sizes = [(0, 5), (5, 0), (1, 1), (15, 17), (400, 300), (4000, 3000), (16383, 12000)]
    for kind, size in itertools.product(FORMATS, sizes):
        if kind != "WEBP" or 0 not in size:  # its header has the sides minus one
            yield case("lying headers", f"{kind} declares {size}", EITHER, declared, kind, *size)
    for depth, color in itertools.product((0, 1, 2, 4, 8, 16, 32, 255), (0, 1, 2, 3, 4, 5, 6, 7)):
        yield case("lying headers", f"PNG depth {depth} color {color}", EITHER, png, 9, 9, depth, color, bytes(1000))
    jpeg, bmp = save(scene(), "JPEG"), save(scene(), "BMP")
    at = jpeg.index(b"\xff\xc0")
    for components, sampling in itertools.product((0, 1, 2, 3, 4, 5, 200), (0x00, 0x11, 0x44, 0xFF, 0x41)):
        parts = [(at + 9, bytes([components])), *((at + each, bytes([sampling])) for each in (11, 14, 17))]
        yield case("lying headers", f"JPEG {components} {sampling:#x}", EITHER, _changed, jpeg, *parts)
    for bits, compression, side in itertools.product((0, 1, 7, 16, 32, 64), (0, 1, 2, 3, 9), (2**31 - 1, -(2**31))):
        parts = [(22, struct.pack("<i", side)), (28, struct.pack("<HI", bits, compression))]
        yield case("lying headers", f"BMP {bits} {compression} {side}", EITHER, _changed, bmp, *parts)


def tiff_tags() -> Iterator[Case]:
    """Yield TIFF and BigTIFF files with one wrong tag, wrong offsets, and endless or very many directories."""
    for big, tag in itertools.product((False, True), TAGS):
        for numbers in (*([number] for number in NUMBERS[big]), [1] * 3000):
            name = f"{'Big' * big}TIFF {tag} = {numbers[0]}, {len(numbers)} times"
            yield case("TIFF tags", name, EITHER, tiff_file, values("u2", 3), big=big, **{f"t{tag}": numbers})
    for big, offset in itertools.product((False, True), (0, 1, 8, 2**31, 2**32 - 1, 2**62, 2**64 - 1)):
        data, word = tiff_file(values("u1", 3), big=big), (offset % 2 ** (64 if big else 32)).to_bytes(8, "little")
        part = (8, word) if big else (4, word[:4])
        yield case("TIFF tags", f"{'Big' * big}TIFF directory at {offset}", EITHER, _changed, data, part)
    image = {256: 4, 257: 4, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 4, 279: 16}
    yield case("TIFF tags", "40,000 directories", EITHER, _tiff, {}, 40_000, bytes(16))
    yield case("TIFF tags", "40,000 images", EITHER, _tiff, image, 40_000, bytes(16))
    for tag in (258, 273, 339):
        yield case("TIFF tags", f"500 pages with a table of tag {tag} of 10 million values", EITHER, _shared_table, tag)
    yield case("TIFF tags", "a loop of directories", EITHER, _tiff, {}, 3, bytes(16), True)
    yield case("TIFF tags", "65,535 entries", EITHER, _tiff, dict.fromkeys(range(65535), 1), body=bytes(16))
    for rows, width in ((20_000, 1), (60_000, 1), (20_000, 1000), (100_000, 2000)):
        for strips in (rows, 1):
            name = f"{width} x {rows:,} in strips of one row, {strips} of them in the file"
            yield case("TIFF tags", name, EITHER, _strips, width, rows, strips)
    for tile in (0, 16, 1 << 14, 1 << 20):
        yield case("TIFF tags", f"tiles of {tile}", EITHER, tiff_file, values("u2", 3), t322=[tile])
        options = {"tile": 16, "packed": True, "t322": [tile], "t323": [tile]}
        yield case("TIFF tags", f"tiles of {tile} for 16 pixels", EITHER, tiff_file, values("u1", 3, 16, 16), **options)


def _tiff(tags: dict[int, Any], pages: int = 1, body: bytes = b"", loop: bool = False) -> bytes:
    """Return a TIFF whose pages all have these tags: a value, or the type, the number of values and their position."""
    rows = [(tag, *(value if isinstance(value, tuple) else (4, 1, value))) for tag, value in sorted(tags.items())]
    entries = b"".join(struct.pack("<HHII", *row) for row in rows)
    start, size = 8 + len(body), 2 + len(entries) + 4
    following = [*(start + size * number for number in range(1, pages)), start if loop else 0]
    directories = (struct.pack("<H", len(tags)) + entries + struct.pack("<I", at) for at in following)
    return b"II*\x00" + struct.pack("<I", start) + body + b"".join(directories)


def _shared_table(tag: int) -> bytes:
    """Return a TIFF whose pages all name the same long table."""
    tags = {256: 50, 257: 33, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 279: 1650}
    return _tiff(tags | {tag: (3, 10_000_000, 8)}, 500, bytes(20_000_000))


def _strips(width: int, rows: int, different: int) -> bytes:
    """Return a TIFF with strips of one row, of which only `different` are in the file."""
    data = bytes(width * different)
    offsets, table = [8 + width * (row % different) for row in range(rows)], 8 + len(data)
    body = data + struct.pack(f"<{rows}I", *offsets) + struct.pack(f"<{rows}I", *[width] * rows)
    tags = {256: width, 257: rows, 258: 8, 259: 1, 262: 1, 277: 1, 278: 1}
    return _tiff(tags | {273: (4, rows, table), 279: (4, rows, table + 4 * rows)}, body=body)


def npy_headers() -> Iterator[Case]:
    """Yield NPY files with objects, wrong shapes and headers that are programs."""
    rows = [(f"{{{header}}}", data) for header, data in HEADERS.items()]
    rows += [("__import__('os').system('touch hostile')", b""), ("", b"")]
    for shape, kind in itertools.product(SHAPES, ("<f4", "|u1", ">i8")):
        rows.append((f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}}}", bytes(64)))
    files = {text[:90]: b"\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data for text, data in rows}
    for length in (0, 1, 65535):
        files[f"header of {length} bytes"] = b"\x01\x00" + struct.pack("<H", length) + b"{'descr'"
    for version in (0, 2, 3, 4, 255):
        files[f"version {version}"] = bytes([version, 0]) + struct.pack("<I", 2**31) + b"{}"
    for name, data in files.items():
        yield case("NPY headers", name, REFUSED, b"\x93NUMPY" + data)


# Very many parts, and two files at once


def floods() -> Iterator[Case]:
    """Yield files with very many parts, each of which takes time."""
    for count in (200, 5_000, 50_000):
        yield case("floods", f"JPEG with {count:,} scans", REFUSED, _scans, count)
    yield case("floods", "JPEG with 100 scans of 20 million pixels", EITHER, _scans, 80, (5000, 4000))
    gray = {kind: save(scene().convert("L"), kind) for kind in ("JPEG", "GIF")}
    colors = 13 + 3 * 2 ** ((gray["GIF"][10] & 7) + 1)  # where the extensions of a GIF start
    parts = {
        "JPEG with two million segments": (gray["JPEG"], 2, b"\xff\xe5\x00\x02", 2_000_000),
        "JPEG with two million restart markers": (gray["JPEG"], -2, b"\xff\xd0", 2_000_000),
        "JPEG with two million restart markers before its segments": (gray["JPEG"], 2, b"\xff\xd0", 2_000_000),
        "JPEG with 30 million fill bytes": (gray["JPEG"], 2, b"\xff", 30_000_000),
        "GIF with 400,000 comments": (gray["GIF"], colors, b"\x21\xfe\x01a\x00", 400_000),
        "GIF with 400,000 extensions": (gray["GIF"], colors, b"\x21\xf9\x04\x00\x01\x00\x00\x00", 400_000),
        "GIF with a comment of 30 MB": (gray["GIF"], colors, b"\x21\xfe\xff" + b"a" * 255, 100_000),
    }
    for name, given in parts.items():
        yield case("floods", name, EITHER, _inserted, *given)
    bodies = {b"vpAg": (b"", 400_000), b"tEXt": (b"a\0" + b"b" * 100, 100_000)}
    for kind, (body, count) in (bodies | {b"IDAT": (b"", 400_000), b"fcTL": (bytes(26), 100_000)}).items():
        parts = (png(2, 1, 8, 0, b"\0\x10\x20"), 33, chunk(kind, body), count)  # after the first chunk
        yield case("floods", f"PNG with {count // 1000},000 chunks {kind.decode()}", EITHER, _inserted, *parts)
    for name, count, side in (("300,000", 300_000, 1), ("2,000 large", 2_000, 12000)):
        head = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6)
        frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x44\x01\x00"
        yield case("floods", f"GIF with {name} frames", EITHER, _inserted, head + b"\x3b", -1, frame, count)
    for side in (1500, 13_000):
        yield case("floods", f"BMP with runs of one pixel, {side}", EITHER, _bmp_runs, side)
    for count, kind in itertools.product((100, 600), ("WEBP", "TIFF")):
        yield case("floods", f"{kind} with {count:,} frames", EITHER, _frames, kind, count)
    yield case("floods", "WebP with 100,000 parts", EITHER, _webp_parts, 100_000)


def _scans(count: int, size: tuple[int, int] = (48, 32)) -> bytes:
    data = save(scene(size), "JPEG", progressive=True)
    return _inserted(data, -2, data[data.rindex(b"\xff\xda") : -2], count)


def _inserted(data: bytes, at: int, part: bytes, count: int) -> bytes:
    return data[:at] + part * count + data[at:]


def _bmp_runs(side: int) -> bytes:
    body = (b"\x01\x05" * side + b"\x00\x00") * min(side, 15_000_000 // side) + b"\x00\x01"
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(body), 0, 0, 1078) + head + bytes(1024) + body


def _frames(kind: str, count: int) -> bytes:
    frames = [Image.new("RGB", (16, 16), (k % 256, k // 256, 0)) for k in range(count)]
    options = {"lossless": True, "method": 0} if kind == "WEBP" else {}
    return save(scene((16, 16)), kind, save_all=True, append_images=frames, **options)


def _webp_parts(count: int) -> bytes:
    data = save(scene((16, 16)), "WEBP", lossless=True) + b"ABCD\x00\x00\x00\x00" * count
    return data[:4] + struct.pack("<I", len(data) - 8) + data[8:]


def polyglots() -> Iterator[Case]:
    """Yield images that are another file as well, and other files that start like images."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.html", "<script>alert(1)</script>")
    others = {
        "zip": archive.getvalue(),
        "HTML": b"<html><script>alert(1)</script></html>",
        "JavaScript": b"*/=alert(1)//",
        "PDF": b"%PDF-1.7\n1 0 obj<</Type/Catalog/OpenAction<</S/JavaScript/JS(app.alert(1))>>>>endobj",
        "PHP": b"<?php system($_GET['c']); ?>",
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
        "ELF": b"\x7fELF" + bytes(200),
        "pickle": pickle.dumps(Call()),
    }
    for kind, (name, other) in itertools.product(uploads.FORMATS, others.items()):
        data = save(scene(), kind)
        yield case("polyglots", f"{kind}, then {name}", VALID, data + other)
        yield case("polyglots", f"{name}, then {kind}", REFUSED, other + data)
    for number, (one, two) in enumerate(itertools.permutations(uploads.FORMATS, 2)):
        start = save(scene(), one)[:40]
        yield case("polyglots", f"start of {one}, rest of {two}", EITHER, start + seeds()[number % 6])
    for text in (b"#!/bin/sh\nrm -rf /\n", b"%!PS-Adobe-3.0 EPSF-3.0\n(x) print", b"\x00\x00\x00\x0cjP  \r\n\x87\n"):
        yield case("polyglots", f"{text[:12]!r}", REFUSED, text)
