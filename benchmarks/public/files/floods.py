"""Files with very many parts, and files that are two files at once."""

from __future__ import annotations

import io
import itertools
import pickle
import struct
import zipfile
from collections.abc import Iterator

from PIL import Image

from benchmarks.public.files.case import EITHER, REFUSED, VALID, Case, Command, case, seeds
from saliscope.images import uploads
from tests.support.image_files import chunk, png, save, scene


def floods() -> Iterator[Case]:
    """Yield files with very many parts, each of which takes time."""
    for count in (200, 5_000, 50_000):
        yield case("floods", f"JPEG with {count:,} scans", REFUSED, _scans, count)
    yield case("floods", "JPEG with 100 scans of 20 million pixels", EITHER, _scans, 80, (5000, 4000))
    yield case("floods", "JPEG with two million segments", EITHER, _jpeg_segments, 2_000_000)
    yield case("floods", "JPEG with two million restart markers", EITHER, _jpeg_restarts, 2_000_000)
    yield case("floods", "PNG with 400,000 chunks", EITHER, _png_chunks, b"vpAg", 400_000)
    yield case("floods", "PNG with 100,000 texts", EITHER, _png_chunks, b"tEXt", 100_000)
    yield case("floods", "PNG with 400,000 empty data chunks", EITHER, _png_chunks, b"IDAT", 400_000)
    yield case("floods", "PNG with 100,000 frames", EITHER, _png_chunks, b"fcTL", 100_000)
    for count, part in ((400_000, b"\x21\xfe\x01a\x00"), (400_000, b"\x21\xf9\x04\x00\x01\x00\x00\x00")):
        yield case("floods", f"GIF with {count:,} extensions {part[1]:#x}", EITHER, _gif_parts, part, count)
    yield case("floods", "GIF with 300,000 frames", EITHER, _gif_frames, 300_000, (1, 1))
    yield case("floods", "GIF with 2,000 large frames", EITHER, _gif_frames, 2_000, (12000, 12000))
    yield case("floods", "GIF with a comment of 30 MB", EITHER, _gif_parts, b"\x21\xfe" + b"\xff" + b"a" * 255, 100_000)
    for side in (1500, 13_000):
        yield case("floods", f"BMP with runs of one pixel, {side}", EITHER, _bmp_runs, side)
    for count in (100, 600):
        yield case("floods", f"WebP with {count:,} frames", EITHER, _webp_frames, count)
        yield case("floods", f"TIFF with {count:,} frames", EITHER, _tiff_frames, count)
    yield case("floods", "WebP with 100,000 parts", EITHER, _webp_parts, 100_000)


def _scans(count: int, size: tuple[int, int] = (48, 32)) -> bytes:
    data = save(scene(size), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]


def _jpeg_segments(count: int) -> bytes:
    data = save(scene().convert("L"), "JPEG")
    return data[:2] + b"\xff\xe5\x00\x02" * count + data[2:]


def _jpeg_restarts(count: int) -> bytes:
    data = save(scene().convert("L"), "JPEG")
    return data[:-2] + b"\xff\xd0" * count + data[-2:]


def _png_chunks(name: bytes, count: int) -> bytes:
    body = {b"tEXt": b"a\0" + b"b" * 100, b"fcTL": bytes(26)}.get(name, b"")
    return png(2, 1, 8, 0, b"\0\x10\x20", chunk(name, body) * count)


def _gif_parts(part: bytes, count: int) -> bytes:
    data = save(scene().convert("L"), "GIF")
    at = 13 + 3 * 2 ** ((data[10] & 7) + 1)
    return data[:at] + part * count + data[at:]


def _gif_frames(count: int, size: tuple[int, int]) -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", *size, 0x80, 0, 0) + bytes(6)
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, *size, 0) + b"\x02\x02\x44\x01\x00"
    return head + frame * count + b"\x3b"


def _bmp_runs(side: int) -> bytes:
    body = (b"\x01\x05" * side + b"\x00\x00") * min(side, 15_000_000 // side) + b"\x00\x01"
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(body), 0, 0, 1078) + head + bytes(1024) + body


def _webp_frames(count: int) -> bytes:
    frames = [Image.new("RGB", (16, 16), (k % 256, k // 256, 0)) for k in range(count)]
    return save(scene((16, 16)), "WEBP", save_all=True, append_images=frames, lossless=True, method=0)


def _tiff_frames(count: int) -> bytes:
    frames = [Image.new("L", (16, 16), k % 256) for k in range(count)]
    return save(frames[0], "TIFF", save_all=True, append_images=frames[1:])


def _webp_parts(count: int) -> bytes:
    data = save(scene((16, 16)), "WEBP", lossless=True)
    data += b"ABCD\x00\x00\x00\x00" * count
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
        "pickle": pickle.dumps(Command()),
    }
    for kind, (name, other) in itertools.product(uploads.FORMATS, others.items()):
        data = save(scene(), kind)
        yield case("polyglots", f"{kind}, then {name}", VALID, lambda data: data, data + other)
        yield case("polyglots", f"{name}, then {kind}", REFUSED, lambda data: data, other + data)
    for number, (one, two) in enumerate(itertools.permutations(uploads.FORMATS, 2)):
        start = save(scene(), one)[:40]
        yield case(
            "polyglots", f"start of {one}, rest of {two}", EITHER, lambda a, b: a + b, start, seeds()[number % 6]
        )
    for text in (b"#!/bin/sh\nrm -rf /\n", b"%!PS-Adobe-3.0 EPSF-3.0\n(x) print", b"\x00\x00\x00\x0cjP  \r\n\x87\n"):
        yield case("polyglots", f"{text[:12]!r}", REFUSED, lambda text: text, text)
