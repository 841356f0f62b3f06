"""Malicious and unusual image files, built from bytes: the correct pixels are returned, or an error message.

The four quarters of the images have different colors, so that a rotation, a wrong channel or a wrong background changes
the pixels and not only the size.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile, TiffImagePlugin, features

from saliscope import limits
from saliscope.images import uploads
from saliscope.images.uploads import Refused, inside_uploads, open_image
from tests.support.image_files import (
    BLUE,
    MARKS,
    RED,
    WHITE,
    chunk,
    declared,
    fuzz_seeds,
    mutations,
    png,
    save,
    scene,
    swapped_profile,
)


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


def assert_scene(image: Image.Image, by: int = 12) -> None:
    """Assert that the image is the scene: its mode, and each color in its quarter."""
    assert image.mode == "RGB"
    for place, color in corners(image).items():
        assert near(color, MARKS[place], by), (place, color)


def refusal(source: Any) -> str:
    """Return the message for a rejected source, which must be readable for visitors."""
    with pytest.raises(Refused) as caught:
        open_image(source)
    message = str(caught.value)
    assert message.endswith(".") and "{" not in message and "\n" not in message and "Error" not in message, message
    return message


# Formats and modes


@pytest.mark.parametrize("kind", uploads.FORMATS)
def test_every_supported_format_is_decoded(kind):
    image = open_image(save(scene(), kind))
    assert image.size == (48, 32)
    assert_scene(image)


def test_other_formats_are_rejected():
    """A decoder of Pillow that is not in the list is never tried, regardless of the bytes."""
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"} <= set(uploads.FORMATS)
    assert ("AVIF" in uploads.FORMATS) == features.check("avif")
    for kind in ("ICO", "PPM", "TGA", "PCX", "SGI", "DDS", "IM", "QOI"):
        assert "Choose an image" in refusal(save(scene(), kind))


def test_pillow_only_tries_the_supported_formats(monkeypatch):
    """Some decoders of Pillow check no signature, so they could accept a file that starts like a TIFF."""
    given, real = [], Image.open
    monkeypatch.setattr(Image, "open", lambda file, **options: (given.append(options), real(file, **options))[1])
    assert_scene(open_image(save(scene(), "PNG")))
    assert given == [{"formats": uploads.FORMATS}]


def test_content_determines_the_format(tmp_path):
    lying = tmp_path / "notes.txt"
    lying.write_bytes(save(scene(), "PNG"))
    assert_scene(open_image(lying))
    assert_scene(open_image(str(lying)))
    page = tmp_path / "photo.png"
    page.write_bytes(b"<!DOCTYPE html><html><body>hello</body></html>")
    assert "a web page" in refusal(page)


def test_first_image_of_an_mpo_file_is_used():
    """MPO: a JPEG followed by a second one (depth, gain map)."""
    data = save(scene(), "MPO", save_all=True, append_images=[Image.new("RGB", (48, 32), "black")], quality=95)
    assert_scene(open_image(data))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_an_animation_is_used(kind):
    others = [Image.new("RGB", (48, 32), "black"), Image.new("RGB", (48, 32), "white")]
    assert_scene(open_image(save(scene(), kind, save_all=True, append_images=others)))


def test_gray_and_bilevel_images_become_gray_rgb():
    ramp = Image.linear_gradient("L").resize((64, 64))
    assert open_image(save(ramp, "PNG")).tobytes() == ramp.convert("RGB").tobytes()
    dots = ramp.convert("1")
    assert open_image(save(dots, "PNG")).tobytes() == dots.convert("RGB").tobytes()


def test_cmyk_is_not_shown_as_a_negative():
    """Adobe's CMYK JPEGs are stored inverted; without a profile Pillow's plain conversion is the reference."""
    inks = scene().convert("CMYK")
    assert_scene(open_image(save(inks, "TIFF")))
    assert_scene(open_image(save(inks, "JPEG", quality=95)))


def test_lab_and_luma_become_rgb():
    lab = ImageCms.profileToProfile(
        scene(), ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
    )
    assert_scene(open_image(save(lab, "TIFF")))
    assert_scene(open_image(save(scene(), "TIFF", compression="jpeg", quality=95)))


# Transparency


def test_transparency_is_blended_with_white():
    image = scene().convert("RGBA")
    image.putalpha(Image.new("L", (48, 32), 255))
    image.paste((0, 0, 0, 0), (0, 0, 24, 16))
    for kind in ("PNG", "TIFF", *(("WEBP",) if features.check("webp") else ())):
        options = {"lossless": True} if kind == "WEBP" else {}
        colors = corners(open_image(save(image, kind, **options)))
        assert colors.pop("top left") == WHITE, kind
        assert all(near(color, MARKS[place], 2) for place, color in colors.items())


def test_half_transparency_mixes_with_white():
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    assert open_image(save(image, "PNG")).getpixel((4, 4)) == (127, 127, 127)
    gray = Image.new("LA", (8, 8), (0, 128))
    assert open_image(save(gray, "PNG")).getpixel((4, 4)) == (127, 127, 127)


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_transparent_palette_color_is_blended_with_white(kind):
    image = scene().quantize(4)
    hole = image.getpixel((2, 2))
    colors = corners(open_image(save(image, kind, transparency=hole)))
    assert colors.pop("top left") == WHITE
    assert all(near(color, MARKS[place], 6) for place, color in colors.items())


def test_a_palette_with_an_alpha_for_each_color():
    image = scene().quantize(4)
    alphas = bytearray(b"\xff\xff\xff\xff")
    alphas[image.getpixel((2, 2))] = 0
    assert corners(open_image(save(image, "PNG", transparency=bytes(alphas))))["top left"] == WHITE


def test_a_transparent_color_without_a_palette():
    assert corners(open_image(save(scene(), "PNG", transparency=RED)))["top left"] == WHITE
    gray = scene().convert("L")
    assert corners(open_image(save(gray, "PNG", transparency=gray.getpixel((2, 2)))))["top left"] == WHITE
    deep = png(2, 1, 16, 0, b"\x00" + struct.pack(">2H", 9000, 50000), chunk(b"tRNS", struct.pack(">H", 9000)))
    assert [open_image(deep).getpixel((x, 0))[0] for x in (0, 1)] == [255, round(50000 / 257)]


def test_resizing_ignores_the_color_of_transparent_pixels(monkeypatch):
    """Black under full transparency must not leave a dark edge when the image is reduced."""
    monkeypatch.setattr(limits, "SIDE", 30)
    image = Image.new("RGBA", (90, 90), (0, 0, 0, 0))
    image.paste((255, 255, 255, 255), (31, 0, 90, 90))
    small = open_image(save(image, "PNG"))
    assert small.size == (30, 30)
    assert min(min(channel) for channel in small.getextrema()) >= 254


# More than 8 bits


def test_sixteen_bits_keep_the_range_of_their_type_when_they_use_it():
    values = np.array([[0, 257, 25700, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        image = open_image(save(Image.fromarray(values), kind))
        assert [image.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in (0, 1, 100, 255)]


def test_twelve_bits_in_sixteen_are_stretched_from_their_own_minimum():
    values = np.array([[1000, 1500, 2000, 3000]], np.uint16)
    image = open_image(save(Image.fromarray(values), "PNG"))
    assert [image.getpixel((x, 0))[0] for x in range(4)] == [0, 64, 128, 255]


def test_big_endian_and_signed_sixteen_bits():
    big = TiffImagePlugin.ImageFileDirectory_v2()
    big[339] = 2  # signed
    signed = Image.fromarray(np.array([[-1000, 40, 1000]], np.int16).view(np.uint16))
    image = open_image(save(signed, "TIFF", tiffinfo=big))
    assert [image.getpixel((x, 0))[0] for x in range(3)] == [0, 133, 255]
    signed = Image.fromarray(np.array([[-10_000, 11_000, 30_000]], np.int16).view(np.uint16))
    image = open_image(save(signed, "TIFF", tiffinfo=big))
    assert [image.getpixel((x, 0))[0] for x in range(3)] == [0, 134, 255], "one below zero: not the type's range"
    rows = b"".join(b"\x00" + struct.pack(">3H", 0, 32896, 65535) for _ in range(2))
    assert [open_image(png(3, 2, 16, 0, rows)).getpixel((x, 1))[0] for x in range(3)] == [0, 128, 255]


def test_thirty_two_bits_and_floats():
    long = np.array([[-(10**6), 40_000, 10**6]], np.int32)
    image = open_image(save(Image.fromarray(long), "TIFF"))
    assert [image.getpixel((x, 0))[0] for x in range(3)] == [0, 133, 255]
    unit = np.array([[0.0, 0.25, 0.8]], np.float32)
    image = open_image(save(Image.fromarray(unit), "TIFF"))
    assert [image.getpixel((x, 0))[0] for x in range(3)] == [0, 64, 204]
    wide = np.array([[-40.0, 12.0, 60.0]], np.float32)
    image = open_image(save(Image.fromarray(wide), "TIFF"))
    assert [image.getpixel((x, 0))[0] for x in range(3)] == [0, 133, 255]


def test_non_finite_values_become_the_minimum():
    values = np.array([[np.nan, np.inf, -np.inf, 2.0, 6.0]], np.float32)
    image = open_image(save(Image.fromarray(values), "TIFF"))
    assert [image.getpixel((x, 0))[0] for x in range(5)] == [0, 0, 0, 0, 255]
    nothing = np.full((3, 3), np.nan, np.float32)
    assert open_image(save(Image.fromarray(nothing), "TIFF")).getextrema() == ((0, 0),) * 3


def test_sixteen_bits_a_color_keep_their_color():
    rows = b"\x00" + struct.pack(">6H", 65535, 0, 32768, 0, 65535, 257)
    image = open_image(png(2, 1, 16, 2, rows))
    assert near(image.getpixel((0, 0)), (255, 0, 128), 1) and near(image.getpixel((1, 0)), (0, 255, 1), 1)


# EXIF orientation


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", *(("AVIF",) if features.check("avif") else ())])
@pytest.mark.parametrize("turn", range(1, 9))
def test_every_orientation_is_applied(kind, turn):
    """Oracle: the inverse rotation is applied by hand before the scene is saved with the tag."""
    undo = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.ROTATE_270, Image.Transpose.FLIP_LEFT_RIGHT],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.ROTATE_90, Image.Transpose.FLIP_LEFT_RIGHT],
        8: [Image.Transpose.ROTATE_270],
    }
    held = scene()
    for step in undo.get(turn, []):
        held = held.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = turn
    image = open_image(save(held, kind, exif=exif))
    assert image.size == (48, 32)
    assert_scene(image, by=20)


@pytest.mark.parametrize("turn", [0, 9, 255, 65535])
def test_invalid_orientation_is_ignored(turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    assert_scene(open_image(save(scene(), "JPEG", exif=exif, quality=95)))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_damaged_orientation_tag_is_ignored():
    for note in (
        b"Exif\x00\x00",
        b"Exif\x00\x00MM\x00*\xff\xff\xff\xff",
        b"Exif\x00\x00II*\x00\x08\x00\x00\x00" + b"\xff" * 40,
    ):
        assert_scene(open_image(save(scene(), "JPEG", exif=note, quality=95)))
    assert_scene(open_image(save(scene(), "PNG", exif=b"Exif\x00\x00M\xffT*\x00\x00\x00\x08")))


def test_orientation_is_applied_to_reduced_images(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 32)
    exif = Image.Exif()
    exif[0x0112] = 6
    held = scene((480, 320)).transpose(Image.Transpose.ROTATE_90)
    for kind in ("JPEG", "TIFF", "WEBP"):
        image = open_image(save(held, kind, exif=exif, quality=95))
        assert image.size == (48, 32), kind
        assert_scene(image)


# Color profiles


def test_an_embedded_profile_is_applied():
    data = save(scene(), "PNG", icc_profile=swapped_profile())
    colors = corners(open_image(data))
    assert near(colors["top left"], RED[::-1], 4) and near(colors["bottom left"], BLUE[::-1], 4)


def test_an_embedded_profile_is_applied_under_transparency_and_after_a_palette():
    see_through = scene().convert("RGBA")
    see_through.paste((0, 0, 0, 0), (0, 0, 24, 16))
    colors = corners(open_image(save(see_through, "PNG", icc_profile=swapped_profile())))
    assert colors["top left"] == WHITE and near(colors["bottom left"], BLUE[::-1], 4)
    colors = corners(open_image(save(scene().quantize(4), "PNG", icc_profile=swapped_profile())))
    assert near(colors["top left"], RED[::-1], 8)


@pytest.mark.parametrize(
    "profile", [b"", b"nonsense", b"\x00" * 200, swapped_profile()[:300], b"\xff" * (limits.PROFILE + 1)]
)
def test_a_damaged_profile_is_ignored(profile):
    assert_scene(open_image(save(scene(), "TIFF", icc_profile=profile)))


def test_many_profiles_are_refused():
    """Each is decompressed to a megabyte; a PNG has one."""
    profile = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1_000_000)))
    for count in (1, limits.PROFILES - 1):
        assert open_image(png(2, 1, 8, 0, b"\0\x10\x20", *[profile] * count)).size == (2, 1)
    with pytest.raises(Refused, match="takes too long"):
        open_image(png(2, 1, 8, 0, b"\0\x10\x20", *[profile] * limits.PROFILES))


def test_a_large_webp_is_refused_with_its_own_limit(monkeypatch):
    data = save(Image.new("RGB", (2000, 1001)), "WEBP")
    monkeypatch.setattr(limits, "WEBP", 2_000_000)
    message = r"2000 x 1001 pixels. The maximum for WebP is 2 million, because such a file cannot be read in parts"
    with pytest.raises(Refused, match=message):
        open_image(data)
    monkeypatch.setattr(limits, "WEBP", 2_002_000)
    assert open_image(data).size == (2000, 1001)


def test_too_little_memory_is_the_reason_in_the_message(monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(Refused, match="needs more than 1024 MB of memory"):
        open_image(b"\x89PNG\r\n\x1a\n" + bytes(20))


def test_large_profile_is_not_parsed(monkeypatch):
    monkeypatch.setattr(limits, "PROFILE", 100)
    assert_scene(open_image(save(scene(), "PNG", icc_profile=swapped_profile())))


def test_a_profile_of_another_color_space_is_ignored():
    assert_scene(open_image(save(scene().convert("CMYK"), "TIFF", icc_profile=swapped_profile())))


def test_result_contains_only_pixels():
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    data = save(scene(), "JPEG", exif=exif, comment=b"where I live", icc_profile=swapped_profile())
    image = open_image(data)
    assert image.info == {} and not dict(image.getexif())


# Size


def test_large_image_is_reduced():
    image = open_image(save(scene((4000, 2600)), "JPEG"))
    assert image.size == (round(4000 * limits.SIDE / 2600), limits.SIDE)
    assert_scene(image)


def test_large_jpeg_is_decoded_at_a_reduced_size(monkeypatch):
    decoded, load = [], ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (decoded.append(self.size), load(self))[1])
    monkeypatch.setattr(limits, "SIDE", 100)
    assert open_image(save(scene((1600, 1200)), "JPEG")).size == (133, 100)
    assert decoded[0] == (200, 150), "an eighth is the smallest that is not below the working side"


def test_a_small_image_keeps_its_own_size():
    for size in ((1, 1), (3, 2), (1000, 700)):
        assert open_image(save(scene(size), "PNG")).size == size


def test_a_panorama_is_kept_within_the_working_pixels(monkeypatch):
    monkeypatch.setattr(limits, "WORK_PIXELS", 500_000)
    image = open_image(save(Image.new("L", (6000, 306), 90), "PNG"))
    assert 490_000 < image.width * image.height < 510_000
    assert abs(image.width / image.height - 6000 / 306) < 0.1


# Decompression bombs: refused by the size they declare, before a pixel is decoded


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("sides", [(15000, 15000), (16383, 16383), (16383, 12300)])
def test_decompression_bomb_is_rejected_before_decoding(kind, sides, monkeypatch):
    def decoded(self: Image.Image) -> None:
        raise AssertionError("the file was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        message = refusal(declared(kind, *sides))
    assert "200 million" in message and "pixels" in message


def test_decompression_bomb_is_rejected_if_warnings_are_errors():
    """If warnings are errors, Pillow raises its warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "200 million" in refusal(declared("PNG", 16000, 16000))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_compressed_zeros_are_not_decompressed():
    """15,000 x 15,000 zeros in 1 MB would be 225 MB, and decoding them would take 0.2 s."""
    rows = zlib.compressobj(1)
    data = b"".join(rows.compress(bytes(15001 * 100)) for _ in range(150)) + rows.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 15000, 15000, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    started = time.thread_time()
    assert "200 million" in refusal(bomb)
    assert time.thread_time() - started < 0.1


def test_text_that_expands_to_gigabytes_is_not_decompressed():
    """PNG files can contain compressed text and profiles; Pillow limits them to a megabyte."""
    bomb = zlib.compress(bytes(40 * limits.MB), 1)
    for extra in (
        chunk(b"zTXt", b"a\0\0" + bomb),
        chunk(b"iCCP", b"a\0\0" + bomb),
        chunk(b"iTXt", b"a\0\1\0\0\0" + bomb),
    ):
        started = time.thread_time()
        with_text = png(2, 1, 8, 0, b"\0\x10\x20", extra)
        try:
            assert open_image(with_text).size == (2, 1)
        except Refused as error:
            assert "damaged" in str(error)
        assert time.thread_time() - started < 0.5


def test_jpeg_with_many_scans_is_rejected():
    """Each scan costs a pass over all pixels: 10,000 scans in 100 kB keep a core busy for a minute."""
    data = save(scene(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    scan = data[last:-2]
    assert_scene(open_image(data))
    assert "takes too long" in refusal(data[:-2] + scan * 200 + data[-2:])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP"])
def test_file_with_many_blocks_is_rejected_at_the_time_limit(kind, monkeypatch):
    """Every decoder loop in Python must check the time limit: chunks, segments, comments, runs."""
    monkeypatch.setattr(limits, "DECODE_SECONDS", 0.15)
    gray = save(scene().convert("L"), kind)
    if kind == "PNG":
        data = png(2, 1, 8, 0, b"\0\x10\x20", chunk(b"vpAg", b"") * 300_000)
    elif kind == "JPEG":
        data = gray[:2] + b"\xff\xe5\x00\x02" * 1_000_000 + gray[2:]
    elif kind == "GIF":
        at = 13 + 3 * 2 ** ((gray[10] & 7) + 1)
        data = gray[:at] + b"\x21\xfe\x01a\x00" * 300_000 + gray[at:]
    else:
        side, run = 1500, b"\x01\x05"
        body = (run * side + b"\x00\x00") * side + b"\x00\x01"
        head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 0, 0, 256, 0)
        data = b"BM" + struct.pack("<IHHI", 1078 + len(body), 0, 0, 1078) + head + bytes(1024) + body
    started = time.thread_time()
    message = refusal(data)
    assert "takes too long" in message
    assert time.thread_time() - started < 1.5


def test_png_with_many_chunks_is_rejected():
    """Pillow reads them in Python; parts of the pixels are many in a large image."""

    def image(name: bytes, count: int) -> bytes:
        return png(2, 1, 8, 0, b"\0\x10\x20", chunk(name, b"") * count)

    assert open_image(image(b"vpAg", limits.PARTS - 10)).size == (2, 1)
    assert "takes too long" in refusal(image(b"vpAg", limits.PARTS + 1))
    assert open_image(image(b"IDAT", limits.PARTS + 1000)).size == (2, 1)
    assert "takes too long" in refusal(image(b"IDAT", 20 * limits.PARTS + 100))


def test_narrow_image_is_rejected():
    assert "60000 x 1 pixels" in refusal(save(Image.new("L", (60000, 1)), "PNG"))
    assert "1 x 21 pixels" in refusal(save(Image.new("L", (1, 21)), "PNG"))
    assert open_image(save(Image.new("L", (1, 20)), "PNG")).size == (1, 20)


def test_image_without_pixels_is_rejected():
    for size in ((0, 5), (5, 0), (0, 0)):
        assert "damaged" in refusal(png(*size, 8, 0, b""))
        for kind in ("BMP", "JPEG", "TIFF"):
            assert "damaged" in (message := refusal(declared(kind, *size))) or "times the other" in message, kind


# Files that are not images


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"hello, world", "a text file"),
        ("Grüße".encode(), "a text file"),
        (b"{}", "a text file"),
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
        (b"\x00" * 5000, "in an unknown format"),
        (bytes(range(1, 200)), "in an unknown format"),
    ],
)
def test_other_files_are_rejected_with_their_type(data, kind):
    message = refusal(data)
    assert kind in message and "Choose an image in JPEG, PNG, WebP" in message


@pytest.mark.parametrize("kind", uploads.FORMATS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_truncated_file_is_rejected(kind, share):
    noise = Image.effect_noise((64, 48), 60).convert("RGB")
    data = save(noise, kind)
    cut = data[: max(12, int(len(data) * share))]
    message = refusal(cut)
    assert "damaged or truncated" in message and kind.lower() in message.lower()


def test_signature_without_image_is_reported_as_damaged():
    for start in (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\x00", b"MM\x00*", b"RIFF____WEBP"):
        assert "damaged" in refusal(start + bytes(100))


def test_postscript_is_not_executed(monkeypatch):
    """Pillow would pass EPS files to Ghostscript."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    assert "a text file" in refusal(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) print\n")


# Where files come from


def test_large_file_is_rejected_without_reading_it(tmp_path, monkeypatch):
    heavy = tmp_path / "heavy.png"
    with open(heavy, "wb") as file:
        file.truncate(limits.FILE + 1)
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("the file was opened"))
    message = refusal(heavy)
    assert f"maximum is {limits.FILE // limits.MB} MB" in message and f"{limits.FILE // limits.MB}.1 MB" in message
    assert "maximum" in refusal(bytes(limits.FILE + 1))


def test_folders_pipes_devices_and_missing_files_are_rejected(tmp_path):
    assert "folder" in refusal(tmp_path)
    assert "no longer" in refusal(tmp_path / "gone.png")
    os.mkfifo(tmp_path / "pipe")
    assert "uploaded" in refusal(tmp_path / "pipe")
    assert "uploaded" in refusal("/dev/zero")


@pytest.mark.parametrize(
    "source", [0, 1, 3.5, True, [], ["a.png"], {"path": "a.png"}, object(), ("a",), bytearray(b"x")]
)
def test_value_that_is_not_a_path_is_rejected(source):
    """open() would use a number as a file descriptor of this process."""
    assert "uploaded" in refusal(source)


@pytest.mark.parametrize("source", [None, "", b""])
def test_missing_image_is_reported(source):
    assert "Choose an image" in refusal(source)


@pytest.mark.parametrize(
    "source", ["https://example.org/a.png", "file:///etc/passwd", "data:image/png;base64,AAAA", "ftp://x/y"]
)
def test_links_are_rejected(source):
    assert "Links are not supported" in refusal(source)
    with pytest.raises(Refused, match="Links are not supported"):
        inside_uploads(source)


@pytest.mark.parametrize("source", ["a\x00b.png", "x" * 5000, "\ud800.png"])
def test_invalid_file_names_are_rejected(source):
    assert "no longer" in refusal(source)
    with pytest.raises(Refused):
        inside_uploads(source)


def test_messages_do_not_repeat_the_input(tmp_path):
    evil = tmp_path / "<img src=x onerror=alert(1)>"
    evil.write_bytes(b"<img src=x onerror=alert(1)>")
    for source in (evil, str(evil) + "/x", b"<img src=x onerror=alert(1)>"):
        message = refusal(source)
        assert "<" not in message and "onerror" not in message and str(tmp_path) not in message


# The upload folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an upload folder with one image, as Gradio does."""
    place = tmp_path / "uploads"
    (place / "abc").mkdir(parents=True)
    (place / "abc" / "photo.png").write_bytes(save(scene(), "PNG"))
    (tmp_path / "secret.png").write_bytes(save(scene(), "PNG"))
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(place))
    return place


def test_an_uploaded_file_is_found(folder):
    path = inside_uploads(str(folder / "abc" / "photo.png"))
    assert path == (folder / "abc" / "photo.png").resolve()
    assert_scene(open_image(path))


def test_other_files_are_not_found(folder):
    os.symlink(folder.parent / "secret.png", folder / "abc" / "link.png")
    os.symlink(folder.parent, folder / "out")
    outside = [
        "/etc/passwd",
        folder.parent / "secret.png",
        f"{folder}/../secret.png",
        f"{folder}/abc/../../secret.png",
        folder / "abc" / "link.png",
        folder / "out" / "secret.png",
        f"{folder}-other/x.png",
        folder,
        folder / "abc",
        "abc/photo.png",
        ".",
        "~/x.png",
    ]
    for path in outside:
        with pytest.raises(Refused, match="uploaded here"):
            inside_uploads(path)
    for thing in (None, 3, [], {"path": str(folder / "abc" / "photo.png")}, b"/etc/passwd", ""):
        with pytest.raises(Refused):
            inside_uploads(thing)
    with pytest.raises(Refused, match="no longer"):
        inside_uploads(folder / "abc" / "gone.png")


def test_the_upload_folder_may_be_a_symbolic_link(folder, monkeypatch):
    """On macOS, the folder for temporary files is a link."""
    os.symlink(folder, folder.parent / "alias")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(folder.parent / "alias"))
    assert inside_uploads(folder.parent / "alias" / "abc" / "photo.png").name == "photo.png"


# Fuzzing and threads


def outcome_of(data: bytes) -> str:
    """Return 'image' or 'refused'; any other outcome is a failure."""
    try:
        image = open_image(data)
    except Refused as error:
        assert str(error).endswith(".")
        return "refused"
    assert image.mode == "RGB" and min(image.size) >= 1
    assert (
        image.width * image.height <= limits.WORK_PIXELS * 1.01
        and len(image.tobytes()) == 3 * image.width * image.height
    )
    return "picture"


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_decoded_or_rejected():
    """A longer run: `python -m tests.saliscope.images.test_uploads 5000`."""
    ends = [outcome_of(data) for data in mutations(fuzz_seeds(), 400, random.Random(20))]
    assert ends.count("picture") > 40 and ends.count("refused") > 40, "both outcomes must occur"


def test_concurrent_threads_do_not_affect_each_other():
    """No global setting of Pillow is changed, so threads are independent."""
    files = [save(scene((200, 160)), kind) for kind in uploads.FORMATS]
    failures: list[BaseException] = []

    def read(data: bytes) -> None:
        try:
            for _ in range(4):
                assert_scene(open_image(data), by=20)
        except (Refused, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(data,)) for data in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def _long_run(count: int, start: int, tell: Callable[[str], None] = print) -> None:
    """Fuzz for minutes, and print the slowest file and the outcomes."""
    warnings.simplefilter("ignore")
    seeds, ends, slowest = fuzz_seeds(), {"picture": 0, "refused": 0}, 0.0
    for data in mutations(seeds, count, random.Random(start)):
        began = time.perf_counter()
        ends[outcome_of(data)] += 1
        slowest = max(slowest, time.perf_counter() - began)
    tell(f"{count} files: {ends}, slowest {slowest:.2f} s")


if __name__ == "__main__":
    import sys

    _long_run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
