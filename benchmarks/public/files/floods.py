"""One hostile file; files with very many parts, and files that are two files at once."""

from __future__ import annotations

import functools
import io
import itertools
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from saliscope.images import uploads
from tests.support.band_files import npy_file, tiff_file, values
from tests.support.image_files import chunk, png, save, scene, swapped_profile

VALID, REFUSED, EITHER = "opened", "refused", "either"
COMMENT = b"\x21\xfe" + b"\xff" + b"a" * 255
CONTROL = b"\x21\xf9\x04\x00\x01\x00\x00\x00"


def fuzz_seeds() -> list[bytes]:
    """Return one small file of every supported format and mode."""
    small, see_through = scene((24, 16)), scene((24, 16)).convert("RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [Image.new("RGB", (24, 16), "black")]
    deep = Image.fromarray(np.arange(384, dtype=np.uint16).reshape(16, 24) * 150)
    seeds = [save(small, kind) for kind in uploads.FORMATS]
    seeds += [save(small, "JPEG", progressive=True, exif=exif), save(small.convert("CMYK"), "JPEG")]
    seeds += [save(small, "PNG", icc_profile=swapped_profile()), save(small.quantize(8), "PNG", transparency=1)]
    seeds += [save(small, kind, save_all=True, append_images=frames) for kind in ("GIF", "WEBP", "PNG", "TIFF")]
    seeds += [save(see_through, kind) for kind in ("PNG", "WEBP", "TIFF")]
    seeds += [
        save(deep, "PNG"),
        save(deep, "TIFF"),
        save(small.quantize(8), "BMP"),
        save(small.convert("1"), "TIFF"),
    ]
    seeds += [save(small, "TIFF", compression=how) for how in ("tiff_lzw", "jpeg", "packbits", "tiff_adobe_deflate")]
    return seeds


@dataclass(frozen=True)
class Case:
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
    """Return one small file of every kind, also with bands."""
    found = [*fuzz_seeds(), npy_file(values("u2", 5)), npy_file(values("f4", 3))]
    found += [tiff_file(values("u2", 5), layout=layout, packed=True) for layout in ("interleaved", "separate", "pages")]
    found += [tiff_file(values("f4", 4), big=True, tile=16, packed=True, predictor=3, order=">")]
    return found


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any = os.system, *given: Any) -> None:
        self.call = function, given or ("touch hostile",)

    def __reduce__(self) -> Any:
        return self.call


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
        "GIF with 400,000 extensions": (gray["GIF"], colors, CONTROL, 400_000),
        "GIF with a comment of 30 MB": (gray["GIF"], colors, COMMENT, 100_000),
    }
    for name, given in parts.items():
        yield case("floods", name, EITHER, _inserted, *given)
    for kind, count in ((b"vpAg", 400_000), (b"tEXt", 100_000), (b"IDAT", 400_000), (b"fcTL", 100_000)):
        yield case("floods", f"PNG with {count // 1000},000 chunks {kind.decode()}", EITHER, _png_chunks, kind, count)
    yield case("floods", "GIF with 300,000 frames", EITHER, _gif_frames, 300_000, 1)
    yield case("floods", "GIF with 2,000 large frames", EITHER, _gif_frames, 2_000, 12000)
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


def _png_chunks(name: bytes, count: int) -> bytes:
    body = {b"tEXt": b"a\0" + b"b" * 100, b"fcTL": bytes(26)}.get(name, b"")
    return png(2, 1, 8, 0, b"\0\x10\x20", chunk(name, body) * count)


def _gif_frames(count: int, side: int) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", side, side, 0x80, 0, 0) + bytes(6)
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x44\x01\x00"
    return head + frame * count + b"\x3b"


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
