"""Very large images, which are decoded in strips, have the pixels of images that are decoded as a whole.

The limit is lowered to about 1,000 pixels.
"""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saliscope import limits
from saliscope.images import strips
from saliscope.images.uploads import Refused, open_image
from tests.support.band_files import tiff_file
from tests.support.image_files import chunk, png, save

SIZE = (161, 123)
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Adam7: the first column and row of each pass, and its steps across and down."""


def picture(mode: str) -> Image.Image:
    """Return an image with edges and noise."""
    width, height = SIZE
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(0)
    planes = [(2 * x + y) % 256, np.where(x > y, 230, 20), rng.integers(0, 40, (height, width)) + y, 255 - x]
    values = np.stack(planes, -1).clip(0, 255).astype(np.uint8)
    if mode in ("I;16", "F"):
        deep = (values[..., 0].astype(np.float64) * 250 + values[..., 2]).astype(np.uint16 if mode == "I;16" else "f4")
        return Image.fromarray(deep)
    colors = Image.fromarray(values[..., :3])
    if mode in ("RGBA", "LA"):
        colors.putalpha(Image.fromarray(values[..., 3]))
    return colors.quantize(16) if mode == "P" else colors.convert(mode)


def adam7(image: Image.Image, **options: Any) -> bytes:
    """Return an interlaced PNG, which Pillow does not write: its passes as plain files, with their rows joined."""
    rows = b""
    for x, y, across, down in PASSES:
        values = np.asarray(image)[y::down, x::across]
        if values.size:
            small = Image.fromarray(values, "P") if image.mode == "P" else Image.fromarray(values)
            if image.mode == "P":
                small.putpalette(image.getpalette() or b"")
            file = save(small, "PNG", **options)
            rows += zlib.decompress(file[file.index(b"IDAT") + 4 : -16])  # one chunk, its checksum, and the end
    data = save(image, "PNG", **options)
    head = bytearray(data[16:29])
    head[12] = 1
    body = zlib.compress(rows)
    at = data.index(b"IDAT") - 4
    halves = [chunk(b"IDAT", body[: len(body) // 2]), chunk(b"IDAT", body[len(body) // 2 :])]
    return b"".join([data[:8], chunk(b"IHDR", bytes(head)), data[33:at], *halves, chunk(b"IEND", b"")])


def deep_palette() -> bytes:
    """Return a PNG with 2 bits per pixel, whose rows do not end with a whole byte."""
    rows = b"".join(b"\0" + bytes((row + k) % 256 for k in range((SIZE[0] + 3) // 4)) for row in range(SIZE[1]))
    return png(*SIZE, 2, 3, rows, chunk(b"PLTE", bytes(range(0, 240, 20))), chunk(b"tRNS", b"\xff\x80"))


def turned(orientation: int) -> dict[str, Any]:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return {"exif": exif}


FILES = {
    **{f"PNG {mode}": lambda mode=mode: save(picture(mode), "PNG") for mode in ("1", "L", "LA", "RGB", "RGBA", "P")},
    "PNG I;16": lambda: save(picture("I;16"), "PNG"),
    "PNG with a transparent color": lambda: save(picture("RGB"), "PNG", transparency=(0, 20, 30)),
    "PNG with 2 bits": deep_palette,
    "PNG turned": lambda: save(picture("RGB"), "PNG", **turned(6)),
    **{f"interlaced PNG {mode}": lambda mode=mode: adam7(picture(mode)) for mode in ("1", "L", "LA", "RGB", "RGBA")},
    "interlaced PNG P": lambda: adam7(picture("P"), bits=8),
    "interlaced PNG I;16": lambda: adam7(picture("I;16")),
    "interlaced PNG turned": lambda: adam7(picture("RGB"), **turned(6)),
    "TIFF strips": lambda: save(picture("RGB"), "TIFF", compression="tiff_lzw", tiffinfo={278: 16}),
    "TIFF turned": lambda: save(picture("RGB"), "TIFF", compression="tiff_deflate", tiffinfo={278: 16, 274: 8}),
    "TIFF CMYK": lambda: save(picture("CMYK"), "TIFF", compression="packbits", tiffinfo={278: 7}),
    "TIFF JPEG": lambda: save(picture("RGB"), "TIFF", compression="jpeg", tiffinfo={278: 16}),
    "TIFF float": lambda: save(picture("F"), "TIFF", compression="tiff_lzw", tiffinfo={278: 16}),
    "TIFF palette": lambda: save(picture("P"), "TIFF", compression="tiff_lzw", tiffinfo={278: 16}),
    "TIFF tiles": lambda: tiff_file(np.moveaxis(np.asarray(picture("RGB")), -1, 0), tile=32, colors=2),
    "GIF": lambda: save(picture("P"), "GIF"),
}


@pytest.mark.parametrize("kind", ["PNG", "interlaced PNG", "TIFF", "GIF"])
def test_strips_have_the_pixels_of_the_whole_image(kind, monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 25)
    monkeypatch.setattr(strips, "STRIP", 161 * 13)
    files = {name: make() for name, make in FILES.items() if name.startswith(kind)}
    whole = {name: open_image(data) for name, data in files.items()}
    monkeypatch.setattr(limits, "WHOLE", SIZE[0] * SIZE[1] // 4 + 1 if kind == "GIF" else 1300)
    monkeypatch.setattr(strips, "is_too_large", lambda image: sizes.append(image.size) is None)
    for name, data in files.items():
        sizes: list[tuple[int, int]] = []
        found = open_image(data)
        assert found.size == whole[name].size and sizes, name
        difference = np.abs(np.asarray(found, "i2") - np.asarray(whole[name], "i2"))
        assert difference.mean() < 1.5 and difference.max() < 20, f"{name}: transparency is rounded once more"


def test_what_cannot_be_read_in_parts_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "WHOLE", 1000)
    monkeypatch.setattr(strips, "STRIP", 161 * 13)
    image = picture("RGB")
    for data, words in (
        (save(image, "WEBP"), "WebP"),
        (save(image, "PNG", save_all=True, append_images=[image.rotate(90)]), "animation"),
        (save(image, "TIFF", compression="tiff_lzw", tiffinfo={278: 123}), "large blocks"),
    ):
        with pytest.raises(Refused, match=f"161 x 123 pixels.*{words}.*Save it as"):
            open_image(data)


def test_progressive_jpegs_are_limited_by_their_coefficients(monkeypatch):
    """The decoder keeps the coefficients of all scans: 3 bytes per pixel if the colors have half the resolution."""
    files = [save(picture("RGB"), "JPEG", progressive=True), save(picture("RGB"), "JPEG")]
    monkeypatch.setattr(limits, "COEFFICIENTS", 3 * SIZE[0] * SIZE[1] + 100)
    assert [open_image(data).size for data in files] == [SIZE, SIZE]
    monkeypatch.setattr(limits, "COEFFICIENTS", 3 * SIZE[0] * SIZE[1] - 100)
    with pytest.raises(Refused, match="progressive"):
        open_image(files[0])
    monkeypatch.setattr(limits, "COEFFICIENTS", 1)
    assert open_image(files[1]).size == SIZE, "one scan, of which nothing is kept"


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_cell_of_an_interlaced_image_is_the_mean_of_its_pixels(mode, monkeypatch):
    """Oracle: numpy's means, rounded, and Pillow's last step, which halves the size."""
    monkeypatch.setattr(limits, "WHOLE", 1000)
    monkeypatch.setattr(strips, "STRIP", 161 * 13)
    data, values = adam7(picture(mode)), np.asarray(picture(mode), "f8")
    for factor in (2, 4, 8, 16):
        size = SIZE[0] // (2 * factor), SIZE[1] // (2 * factor)
        sums = np.add.reduceat(np.add.reduceat(values, range(0, SIZE[1], factor)), range(0, SIZE[0], factor), 1)
        sides = [np.minimum(factor, side - np.arange(0, side, factor)) for side in SIZE[::-1]]
        means = sums / np.outer(*sides).reshape(*sums.shape[:2], *[1] * (sums.ndim - 2))
        covered = (0.0, 0.0, SIZE[0] / factor, SIZE[1] / factor)
        expected = Image.fromarray((means + 0.5).astype("u1")).resize(size, Image.Resampling.LANCZOS, covered)
        with Image.open(io.BytesIO(data)) as opened:
            found, _ = strips.reduce_image(opened, data, size)
        difference = np.asarray(found, "i2") - np.asarray(expected, "i2")
        assert np.abs(difference).max() <= 1 and abs(difference.mean()) < 0.1, factor


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "I;16"])
def test_an_interlaced_image_has_the_pixels_of_a_plain_one(mode, monkeypatch):
    """Also the colors under transparency, which do not count."""
    monkeypatch.setattr(limits, "WHOLE", 1000)
    monkeypatch.setattr(limits, "SIDE", 25)
    monkeypatch.setattr(strips, "STRIP", 161 * 13)
    image = picture(mode)
    assert open_image(adam7(image)).tobytes() == open_image(save(image, "PNG")).tobytes()


def test_a_truncated_png_is_refused_in_strips(monkeypatch):
    monkeypatch.setattr(limits, "WHOLE", 1000)
    monkeypatch.setattr(limits, "SIDE", 25)
    for data in (save(picture("RGB"), "PNG"), adam7(picture("RGB"))):
        with pytest.raises(Refused, match="damaged"):
            open_image(data[: len(data) // 2])
        assert open_image(data).size == (33, 25)
