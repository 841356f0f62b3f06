"""Malicious and unusual image files, built from bytes: the correct pixels are returned, or an error message.

The four quarters of the images have different colors, so that a rotation, a wrong channel or a wrong background changes
the pixels and not only the size.
"""

from __future__ import annotations

import io
import os
import struct
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile, ImageOps, features

from benchmarks.public.files.images import floods
from saliscope import limits
from saliscope.images import uploads
from saliscope.images.uploads import Refused, inside_uploads, open_image
from tests.support.image_files import BLUE, MARKS, RED, WHITE, chunk, declared, png, save, scene, swapped_profile


def corners(image: Image.Image) -> dict[str, tuple[int, ...]]:
    """Return the colors inside the four quarters."""
    width, height = image.size
    x, y = (width // 4, 3 * width // 4), (height // 4, 3 * height // 4)
    return {
        "top left": image.getpixel((x[0], y[0])),
        "top right": image.getpixel((x[1], y[0])),
        "bottom left": image.getpixel((x[0], y[1])),
        "bottom right": image.getpixel((x[1], y[1])),
    }


def near(actual: tuple[int, ...], expected: tuple[int, ...], by: int = 12) -> bool:
    """Return whether two colors are equal except for lossy compression."""
    return max(abs(a - b) for a, b in zip(actual, expected, strict=True)) <= by


def assert_scene(image: Image.Image, by: int = 12, hole: bool = False) -> None:
    """Assert that the image is the scene, each color in its quarter; `hole`: the first quarter is transparent."""
    assert image.mode == "RGB"
    for place, color in corners(image).items():
        expected = WHITE if hole and place == "top left" else MARKS[place]
        assert near(color, expected, by), (place, color)


def row(source: bytes) -> list[int]:
    """Return the red values of the last row."""
    image = open_image(source)
    return [image.getpixel((x, image.height - 1))[0] for x in range(image.width)]


def refusal(source: Any) -> str:
    """Return the message for a rejected source, which must be readable for visitors."""
    with pytest.raises(Refused) as caught:
        open_image(source)
    message = str(caught.value)
    assert message.endswith(".") and not any(part in message for part in ("{", "\n", "Error", "<", "secret")), message
    return message


def oriented(turn: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = turn
    return exif


# Formats and modes


def test_supported_formats_are_decoded_and_others_are_rejected():
    """A decoder of Pillow that is not in the list is never tried, regardless of the bytes."""
    for kind in uploads.FORMATS:
        image = open_image(save(scene(), kind))
        assert image.size == (48, 32)
        assert_scene(image)
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"} <= set(uploads.FORMATS)
    assert ("AVIF" in uploads.FORMATS) == features.check("avif")
    for kind in ("ICO", "PPM", "TGA", "PCX", "SGI", "DDS", "IM", "QOI"):
        assert "Choose an image" in refusal(save(scene(), kind)), kind


def test_first_image_of_several_is_used():
    """MPO: a JPEG followed by a second one (depth, gain map)."""
    others = [Image.new("RGB", (48, 32), "black"), Image.new("RGB", (48, 32), "white")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF", "MPO"):
        assert_scene(open_image(save(scene(), kind, save_all=True, append_images=others)))


def test_other_modes_become_rgb():
    """Adobe's CMYK JPEGs are stored inverted; without a profile Pillow's plain conversion is the reference."""
    ramp = Image.linear_gradient("L").resize((64, 64))
    for gray in (ramp, ramp.convert("1")):
        assert open_image(save(gray, "PNG")).tobytes() == gray.convert("RGB").tobytes()
    standard, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    inks = scene().convert("CMYK")
    for file in (
        save(inks, "TIFF"),
        save(inks, "JPEG", quality=95),
        save(ImageCms.profileToProfile(scene(), standard, lab, outputMode="LAB"), "TIFF"),
        save(scene(), "TIFF", compression="jpeg", quality=95),
    ):
        assert_scene(open_image(file))


def test_transparency_is_blended_with_white():
    image = scene().convert("RGBA")
    image.paste((0, 0, 0, 0), (0, 0, 24, 16))
    indexed = scene().quantize(4)
    hole = indexed.getpixel((2, 2))
    alphas = bytes(0 if index == hole else 255 for index in range(4))
    for file in (
        save(image, "PNG"),
        save(image, "TIFF"),
        *([save(image, "WEBP", lossless=True)] if features.check("webp") else []),
        save(indexed, "PNG", transparency=hole),
        save(indexed, "PNG", transparency=alphas),
        save(indexed, "GIF", transparency=hole),
        save(scene(), "PNG", transparency=RED),
    ):
        assert_scene(open_image(file), by=6, hole=True)
    gray = scene().convert("L")
    assert corners(open_image(save(gray, "PNG", transparency=gray.getpixel((2, 2)))))["top left"] == WHITE
    for half in (Image.new("RGBA", (8, 8), (0, 0, 0, 128)), Image.new("LA", (8, 8), (0, 128))):
        assert open_image(save(half, "PNG")).getpixel((4, 4)) == (127, 127, 127)
    deep = png(2, 1, 16, 0, b"\x00" + struct.pack(">2H", 9000, 50000), chunk(b"tRNS", struct.pack(">H", 9000)))
    assert row(deep) == [255, round(50000 / 257)]


def test_resizing_ignores_the_color_of_transparent_pixels(monkeypatch):
    """Black under full transparency must not leave a dark edge when the image is reduced."""
    monkeypatch.setattr(limits, "SIDE", 30)
    image = Image.new("RGBA", (90, 90), (0, 0, 0, 0))
    image.paste((255, 255, 255, 255), (31, 0, 90, 90))
    small = open_image(save(image, "PNG"))
    assert small.size == (30, 30)
    assert min(min(channel) for channel in small.getextrema()) >= 254


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (np.uint16, [0, 257, 25700, 65535], [0, 1, 100, 255]),  # the range of the type, if it is used
        (np.uint16, [1000, 1500, 2000, 3000], [0, 64, 128, 255]),  # 12 bits: from the minimum to the maximum
        (np.int16, [-1000, 40, 1000], [0, 133, 255]),
        (np.int16, [-10_000, 11_000, 30_000], [0, 134, 255]),  # one below zero: not the type's range
        (np.int32, [-(10**6), 40_000, 10**6], [0, 133, 255]),
        (np.float32, [0.0, 0.25, 0.8], [0, 64, 204]),
        (np.float32, [-40.0, 12.0, 60.0], [0, 133, 255]),
        (np.float32, [np.nan, np.inf, -np.inf, 2.0, 6.0], [0, 0, 0, 0, 255]),
        (np.float32, [np.nan] * 3, [0] * 3),
    ],
)
def test_deep_values_are_mapped_to_8_bits(kind, values, expected):
    array = np.array([values], kind)
    signed = kind is np.int16
    image = Image.fromarray(array.view(np.uint16) if signed else array)
    assert row(save(image, "TIFF", tiffinfo={339: 2} if signed else {})) == expected
    if kind is np.uint16:
        assert row(save(image, "PNG")) == expected


def test_sixteen_bits_of_a_png():
    rows = b"".join(b"\x00" + struct.pack(">3H", 0, 32896, 65535) for _ in range(2))
    assert row(png(3, 2, 16, 0, rows)) == [0, 128, 255]
    image = open_image(png(2, 1, 16, 2, b"\x00" + struct.pack(">6H", 65535, 0, 32768, 0, 65535, 257)))
    assert near(image.getpixel((0, 0)), (255, 0, 128), 1) and near(image.getpixel((1, 0)), (0, 255, 1), 1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", *(("AVIF",) if features.check("avif") else ())])
def test_every_orientation_is_applied(kind):
    """Oracle: Pillow's function for it. Other numbers are ignored."""
    for turn in (*range(10), 255, 65535):
        data = save(scene(), kind, exif=oriented(turn), quality=95)
        with Image.open(io.BytesIO(data)) as opened:
            expected = ImageOps.exif_transpose(opened).convert("RGB")
        image = open_image(data)
        assert image.size == expected.size == ((32, 48) if turn in (5, 6, 7, 8) else (48, 32)), turn
        assert all(near(color, corners(expected)[place]) for place, color in corners(image).items()), turn


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_damaged_orientation_tag_is_ignored():
    for note in (b"", b"MM\x00*\xff\xff\xff\xff", b"II*\x00\x08\x00\x00\x00" + b"\xff" * 40):
        assert_scene(open_image(save(scene(), "JPEG", exif=b"Exif\x00\x00" + note, quality=95)))
    assert_scene(open_image(save(scene(), "PNG", exif=b"Exif\x00\x00M\xffT*\x00\x00\x00\x08")))


def test_an_embedded_profile_is_applied_and_removed():
    """Also under transparency and after a palette."""
    see_through = scene().convert("RGBA")
    see_through.paste((0, 0, 0, 0), (0, 0, 24, 16))
    for image, first in ((scene(), RED[::-1]), (see_through, WHITE), (scene().quantize(4), RED[::-1])):
        found = open_image(save(image, "PNG", icc_profile=swapped_profile(), exif=oriented(1)))
        colors = corners(found)
        assert near(colors["top left"], first, 8) and near(colors["bottom left"], BLUE[::-1], 8), image.mode
        assert found.info.keys() <= {"notes"} and not dict(found.getexif()), "only pixels"


def test_a_damaged_large_or_wrong_profile_is_ignored():
    for profile in (b"nonsense", b"\x00" * 200, swapped_profile()[:300], b"\xff" * (limits.PROFILE + 1)):
        assert_scene(open_image(save(scene(), "TIFF", icc_profile=profile)))
    assert_scene(open_image(save(scene().convert("CMYK"), "TIFF", icc_profile=swapped_profile())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PROFILE", 100)
        assert_scene(open_image(save(scene(), "PNG", icc_profile=swapped_profile())))


def test_a_large_image_is_reduced_and_a_small_one_is_not(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 100)
    held = scene((1600, 1200)).transpose(Image.Transpose.ROTATE_90)
    for kind in ("JPEG", "TIFF", "WEBP"):
        image = open_image(save(held, kind, exif=oriented(6)))
        assert image.size == (133, 100), kind
        assert_scene(image)
    for size in ((1, 1), (3, 2), (140, 100)):
        assert open_image(save(scene(size), "PNG")).size == size
    monkeypatch.setattr(limits, "SIDE", 1024)
    monkeypatch.setattr(limits, "WORK_PIXELS", 500_000)
    image = open_image(save(Image.new("L", (6000, 306), 90), "PNG"))
    assert 490_000 < image.width * image.height < 510_000
    assert abs(image.width / image.height - 6000 / 306) < 0.1


def test_a_large_webp_is_refused_with_its_own_limit(monkeypatch):
    data = save(Image.new("RGB", (200, 101)), "WEBP")
    monkeypatch.setattr(limits, "WEBP", 20_000)
    assert "cannot be read in parts" in refusal(data)
    monkeypatch.setattr(limits, "WEBP", 20_200)
    assert open_image(data).size == (200, 101)


def test_too_little_memory_is_the_reason_in_the_message(monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Image, "open", fail)
    assert "needs more than 1024 MB of memory" in refusal(b"\x89PNG\r\n\x1a\n" + bytes(20))


# Decompression bombs: refused by the size they declare, before a pixel is decoded


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_decompression_bomb_is_rejected_before_decoding(action, monkeypatch):
    """Also if warnings are errors: then Pillow raises its warning."""
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("the file was decoded"))
    warnings.simplefilter(action)
    for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"):
        for sides in ((15000, 15000), (16383, 16383), (16383, 12300)):
            message = refusal(declared(kind, *sides))
            assert "200 million" in message and "pixels" in message, (kind, sides)


def test_parts_that_cost_time_are_limited():
    """Pillow reads chunks of a PNG in Python; parts of the pixels are many, a profile is a megabyte."""
    profile, empty = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1_000_000))), chunk(b"vpAg", b"")
    for part, allowed, most in (
        (profile, limits.PROFILES - 1, limits.PROFILES),
        (empty, limits.PARTS - 10, limits.PARTS + 1),
        (chunk(b"IDAT", b""), limits.PARTS + 1000, 20 * limits.PARTS + 100),
    ):
        assert open_image(png(2, 1, 8, 0, b"\0\x10\x20", part * allowed)).size == (2, 1)
        assert "takes too long" in refusal(png(2, 1, 8, 0, b"\0\x10\x20", part * most))


@pytest.mark.parametrize("part", [b"\xff", b"\xff\xd0"])
def test_bytes_between_the_segments_of_a_jpeg_are_limited(part):
    """Fill bytes, and markers without a length: Pillow reads each of them in Python."""
    data, started = save(scene(), "JPEG"), time.thread_time()
    assert_scene(open_image(data[:2] + part * 4_000 + data[2:]))
    assert "takes too long" in refusal(data[:2] + part * 10_000_000 + data[2:])
    assert time.thread_time() - started < 1


FLOODS = (
    "PNG with 400,000 chunks vpAg",
    "JPEG with two million segments",
    "GIF with 400,000 comments",
    "BMP with runs of one pixel, 1500",
)


@pytest.mark.parametrize("name", FLOODS)
def test_file_with_many_blocks_is_rejected_at_the_time_limit(name, monkeypatch):
    """Every decoder loop in Python must check the time limit: chunks, segments, comments, runs."""
    monkeypatch.setattr(limits, "DECODE_SECONDS", 0.15)
    (data,) = [case.make() for case in floods() if case.name == name]
    started = time.thread_time()
    assert "takes too long" in refusal(data)
    assert time.thread_time() - started < 1.5


def test_narrow_images_are_rejected():
    assert "60000 x 1 pixels" in refusal(save(Image.new("L", (60000, 1)), "PNG"))
    assert "1 x 21 pixels" in refusal(save(Image.new("L", (1, 21)), "PNG"))
    assert open_image(save(Image.new("L", (1, 20)), "PNG")).size == (1, 20)
    assert "damaged" in refusal(png(0, 5, 8, 0, b""))


# Files that are not images


OTHER_FILES = [
    (b"", "empty"),
    ("Grüße".encode(), "a text file"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) print\n", "a text file"),
    (b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', "an SVG drawing"),
    (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- x --><svg/>', "an SVG drawing"),
    (b"<!doctype html><p>", "a web page"),
    (b"\n <HTML><body>", "a web page"),
    (b"PK\x03\x04" + bytes(60), "a zip archive"),
    (b"PK\x05\x06" + bytes(18), "a zip archive"),
    (b"%PDF-1.7\n", "a PDF document"),
    (b"\x00\x00\x00\x18ftypheic" + bytes(40), "a HEIC image"),
    (b"\x00\x00\x00\x18ftypmp42" + bytes(40), "a video"),
    (b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(20), "an audio file"),
    (b"\x7fELF" + bytes(60), "a program"),
    (b"\x93NUMPY\x01\x00", "a NumPy array"),
    (bytes(range(1, 200)), "in an unknown format"),
]


def test_other_files_are_rejected_with_their_type(monkeypatch):
    """Pillow would pass EPS files to Ghostscript."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    for data, kind in OTHER_FILES:
        message = refusal(data)
        assert kind in message and "Choose an image in JPEG, PNG, WebP" in message, data


def test_truncated_file_is_rejected():
    noise = Image.effect_noise((64, 48), 60).convert("RGB")
    for kind in uploads.FORMATS:
        data = save(noise, kind)
        for share in (0.02, 0.3, 0.6, 0.9):
            message = refusal(data[: max(12, int(len(data) * share))])
            assert "damaged or truncated" in message and kind.lower() in message.lower(), (kind, share)
    for start in (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\x00", b"MM\x00*", b"RIFF____WEBP"):
        assert "damaged" in refusal(start + bytes(100)), start


# Where files come from


def test_large_file_is_rejected_without_reading_it(tmp_path, monkeypatch):
    heavy = tmp_path / "heavy.png"
    with open(heavy, "wb") as file:
        file.truncate(limits.FILE + 1)
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("the file was opened"))
    message = refusal(heavy)
    assert f"maximum is {limits.FILE // limits.MB} MB" in message and f"{limits.FILE // limits.MB}.1 MB" in message
    assert "maximum" in refusal(bytes(limits.FILE + 1))


def test_sources_that_are_not_files_are_rejected(tmp_path):
    """open() would use a number as a file descriptor of this process."""
    os.mkfifo(tmp_path / "pipe")
    numbers_and_objects = [0, 1, 3.5, True, [], ["a.png"], {"path": "a.png"}, object(), ("a",), bytearray(b"x")]
    links = ["https://example.org/a.png", "file:///etc/passwd", "data:image/png;base64,AAAA", "ftp://x/y"]
    for sources, word in (
        ([tmp_path], "folder"),
        ([tmp_path / "pipe", "/dev/zero", *numbers_and_objects], "uploaded"),
        ([tmp_path / "<secret>.png", "a\x00b.png", "x" * 5000, "\ud800.png"], "no longer"),
        ([None, "", b""], "Choose an image"),
        (links, "Links are not supported"),
    ):
        for source in sources:
            assert word in refusal(source), source
            with pytest.raises(Refused):
                inside_uploads(source)


# The upload folder


def test_only_uploaded_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder of uploads may be a symbolic link; no link in it leads to other files. Names have no meaning."""
    folder, secret = tmp_path / "uploads", tmp_path / "secret.png"
    (folder / "abc").mkdir(parents=True)
    for path in (folder / "abc" / "photo.txt", secret):
        path.write_bytes(save(scene(), "PNG"))
    os.symlink(secret, folder / "abc" / "link.png")
    os.symlink(tmp_path, folder / "out")
    os.symlink(folder, tmp_path / "alias")
    for place in (tmp_path / "alias", folder):
        monkeypatch.setenv("GRADIO_TEMP_DIR", str(place))
        path = inside_uploads(str(place / "abc" / "photo.txt"))
        assert path == (folder / "abc" / "photo.txt").resolve()
        assert_scene(open_image(path))
    inside = [folder, *(folder / name for name in ("../secret.png", "abc", "abc/link.png", "out/secret.png"))]
    for outside in ("/etc/passwd", secret, f"{folder}-other/x.png", "abc/photo.txt", ".", "~/x.png", *inside):
        with pytest.raises(Refused, match="uploaded here"):
            inside_uploads(outside)
    with pytest.raises(Refused, match="no longer"):
        inside_uploads(folder / "abc" / "gone.png")
