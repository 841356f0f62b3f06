"""Hostile and unusual picture files, each built here from bytes: right pixels come out, or one sentence.

The pictures carry four marks (each quarter has a colour of its own), so that a rotation, a wrong channel or a wrong
background shows in the pixels and not only in the size.
"""

from __future__ import annotations

import io
import os
import random
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile, TiffImagePlugin, features

from ui import limits
from ui.serving import uploads
from ui.serving.uploads import Refused, inside_uploads, open_picture

RED, GREEN, BLUE, GOLD = (220, 30, 30), (30, 200, 30), (30, 30, 210), (220, 200, 40)
MARKS = {"top left": RED, "top right": GREEN, "bottom left": BLUE, "bottom right": GOLD}
WHITE = (255, 255, 255)


def scene(size: tuple[int, int] = (48, 32)) -> Image.Image:
    """Four coloured quarters, wider than high."""
    width, height = size
    picture = Image.new("RGB", size)
    for index, colour in enumerate(MARKS.values()):
        box = (index % 2 * width // 2, index // 2 * height // 2)
        picture.paste(colour, (*box, box[0] + width // 2, box[1] + height // 2))
    return picture


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """The picture as a file of this kind."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def corners(picture: Image.Image) -> dict[str, tuple[int, ...]]:
    """The colours inside the four quarters."""
    width, height = picture.size
    x, y = (width // 4, 3 * width // 4), (height // 4, 3 * height // 4)
    return {
        "top left": picture.getpixel((x[0], y[0])),
        "top right": picture.getpixel((x[1], y[0])),
        "bottom left": picture.getpixel((x[0], y[1])),
        "bottom right": picture.getpixel((x[1], y[1])),
    }


def near(actual: tuple[int, ...], expected: tuple[int, ...], by: int = 12) -> bool:
    """Equal up to what lossy compression does to a flat area."""
    return max(abs(a - b) for a, b in zip(actual, expected, strict=True)) <= by


def assert_scene(picture: Image.Image, by: int = 12) -> None:
    """The picture is the scene: mode, and each mark in its own quarter."""
    assert picture.mode == "RGB"
    for place, colour in corners(picture).items():
        assert near(colour, MARKS[place], by), (place, colour)


def chunk(name: bytes, body: bytes) -> bytes:
    """One PNG chunk with its check sum."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    """A PNG by hand, for what Pillow does not write; `extra` are whole chunks."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + data


def refusal(source: Any) -> str:
    """The sentence with which a source is refused; it must be one that a visitor can read."""
    with pytest.raises(Refused) as caught:
        open_picture(source)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "{" not in sentence and "\n" not in sentence and "Error" not in sentence, sentence
    return sentence


# Formats and modes


@pytest.mark.parametrize("kind", uploads.FORMATS)
def test_every_allowed_format_gives_its_pixels(kind):
    picture = open_picture(saved(scene(), kind))
    assert picture.size == (48, 32)
    assert_scene(picture)


def test_the_allow_list_is_complete_and_closed():
    """A decoder that Pillow has but the list has not is never tried, whatever its bytes say."""
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"} <= set(uploads.FORMATS)
    assert ("AVIF" in uploads.FORMATS) == features.check("avif")
    for kind in ("ICO", "PPM", "TGA", "PCX", "SGI", "DDS", "IM", "QOI"):
        assert "Choose a photograph" in refusal(saved(scene(), kind))


def test_the_allow_list_reaches_pillow(monkeypatch):
    """Some of Pillow's decoders know no signature: a file that begins like a TIFF may still be theirs."""
    given, real = [], Image.open
    monkeypatch.setattr(Image, "open", lambda file, **options: (given.append(options), real(file, **options))[1])
    assert_scene(open_picture(saved(scene(), "PNG")))
    assert given == [{"formats": uploads.FORMATS}]


def test_the_content_decides_and_not_the_name(tmp_path):
    lying = tmp_path / "notes.txt"
    lying.write_bytes(saved(scene(), "PNG"))
    assert_scene(open_picture(lying))
    assert_scene(open_picture(str(lying)))
    page = tmp_path / "photo.png"
    page.write_bytes(b"<!DOCTYPE html><html><body>hello</body></html>")
    assert "a web page" in refusal(page)


def test_a_jpeg_of_several_pictures_opens_as_its_first():
    """MPO: a JPEG with a second one behind it (depth, gain map)."""
    data = saved(scene(), "MPO", save_all=True, append_images=[Image.new("RGB", (48, 32), "black")], quality=95)
    assert_scene(open_picture(data))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_shows_its_first_frame(kind):
    others = [Image.new("RGB", (48, 32), "black"), Image.new("RGB", (48, 32), "white")]
    assert_scene(open_picture(saved(scene(), kind, save_all=True, append_images=others)))


def test_grey_and_bilevel_pictures_become_grey_rgb():
    ramp = Image.linear_gradient("L").resize((64, 64))
    assert open_picture(saved(ramp, "PNG")).tobytes() == ramp.convert("RGB").tobytes()
    dots = ramp.convert("1")
    assert open_picture(saved(dots, "PNG")).tobytes() == dots.convert("RGB").tobytes()


def test_cmyk_is_not_shown_as_a_negative():
    """Adobe's CMYK JPEGs are stored inverted; without a profile Pillow's plain conversion is the reference."""
    inks = scene().convert("CMYK")
    assert_scene(open_picture(saved(inks, "TIFF")))
    assert_scene(open_picture(saved(inks, "JPEG", quality=95)))


def test_lab_and_luma_become_rgb():
    lab = ImageCms.profileToProfile(
        scene(), ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
    )
    assert_scene(open_picture(saved(lab, "TIFF")))
    assert_scene(open_picture(saved(scene(), "TIFF", compression="jpeg", quality=95)))


# Transparency


def test_transparency_lies_on_white():
    picture = scene().convert("RGBA")
    picture.putalpha(Image.new("L", (48, 32), 255))
    picture.paste((0, 0, 0, 0), (0, 0, 24, 16))
    for kind in ("PNG", "TIFF", *(("WEBP",) if features.check("webp") else ())):
        options = {"lossless": True} if kind == "WEBP" else {}
        colours = corners(open_picture(saved(picture, kind, **options)))
        assert colours.pop("top left") == WHITE, kind
        assert all(near(colour, MARKS[place], 2) for place, colour in colours.items())


def test_half_transparency_mixes_with_white():
    picture = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    assert open_picture(saved(picture, "PNG")).getpixel((4, 4)) == (127, 127, 127)
    grey = Image.new("LA", (8, 8), (0, 128))
    assert open_picture(saved(grey, "PNG")).getpixel((4, 4)) == (127, 127, 127)


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_palette_with_a_transparent_colour_lies_on_white(kind):
    picture = scene().quantize(4)
    hole = picture.getpixel((2, 2))
    colours = corners(open_picture(saved(picture, kind, transparency=hole)))
    assert colours.pop("top left") == WHITE
    assert all(near(colour, MARKS[place], 6) for place, colour in colours.items())


def test_a_palette_with_an_alpha_for_each_colour():
    picture = scene().quantize(4)
    alphas = bytearray(b"\xff\xff\xff\xff")
    alphas[picture.getpixel((2, 2))] = 0
    assert corners(open_picture(saved(picture, "PNG", transparency=bytes(alphas))))["top left"] == WHITE


def test_a_transparent_colour_without_a_palette():
    assert corners(open_picture(saved(scene(), "PNG", transparency=RED)))["top left"] == WHITE
    grey = scene().convert("L")
    assert corners(open_picture(saved(grey, "PNG", transparency=grey.getpixel((2, 2)))))["top left"] == WHITE
    deep = png(2, 1, 16, 0, b"\x00" + struct.pack(">2H", 9000, 50000), chunk(b"tRNS", struct.pack(">H", 9000)))
    assert [open_picture(deep).getpixel((x, 0))[0] for x in (0, 1)] == [255, round(50000 / 257)]


def test_shrinking_does_not_mix_in_the_colour_under_the_transparent_part(monkeypatch):
    """Black under full transparency must not leave a dark rim when the picture is made smaller."""
    monkeypatch.setattr(limits, "SIDE", 30)
    picture = Image.new("RGBA", (90, 90), (0, 0, 0, 0))
    picture.paste((255, 255, 255, 255), (31, 0, 90, 90))
    small = open_picture(saved(picture, "PNG"))
    assert small.size == (30, 30)
    assert min(min(channel) for channel in small.getextrema()) >= 254


# More than 8 bits


def test_sixteen_bits_keep_the_range_of_their_type_when_they_use_it():
    values = np.array([[0, 257, 25700, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        picture = open_picture(saved(Image.fromarray(values), kind))
        assert [picture.getpixel((x, 0)) for x in range(4)] == [(v, v, v) for v in (0, 1, 100, 255)]


def test_twelve_bits_in_sixteen_are_stretched_from_their_own_minimum():
    values = np.array([[1000, 1500, 2000, 3000]], np.uint16)
    picture = open_picture(saved(Image.fromarray(values), "PNG"))
    assert [picture.getpixel((x, 0))[0] for x in range(4)] == [0, 64, 128, 255]


def test_big_endian_and_signed_sixteen_bits():
    big = TiffImagePlugin.ImageFileDirectory_v2()
    big[339] = 2  # signed
    signed = Image.fromarray(np.array([[-1000, 40, 1000]], np.int16).view(np.uint16))
    picture = open_picture(saved(signed, "TIFF", tiffinfo=big))
    assert [picture.getpixel((x, 0))[0] for x in range(3)] == [0, 133, 255]
    signed = Image.fromarray(np.array([[-10_000, 11_000, 30_000]], np.int16).view(np.uint16))
    picture = open_picture(saved(signed, "TIFF", tiffinfo=big))
    assert [picture.getpixel((x, 0))[0] for x in range(3)] == [0, 134, 255], "one below zero: not the type's range"
    rows = b"".join(b"\x00" + struct.pack(">3H", 0, 32896, 65535) for _ in range(2))
    assert [open_picture(png(3, 2, 16, 0, rows)).getpixel((x, 1))[0] for x in range(3)] == [0, 128, 255]


def test_thirty_two_bits_and_floats():
    long = np.array([[-(10**6), 40_000, 10**6]], np.int32)
    picture = open_picture(saved(Image.fromarray(long), "TIFF"))
    assert [picture.getpixel((x, 0))[0] for x in range(3)] == [0, 133, 255]
    unit = np.array([[0.0, 0.25, 0.8]], np.float32)
    picture = open_picture(saved(Image.fromarray(unit), "TIFF"))
    assert [picture.getpixel((x, 0))[0] for x in range(3)] == [0, 64, 204]
    wide = np.array([[-40.0, 12.0, 60.0]], np.float32)
    picture = open_picture(saved(Image.fromarray(wide), "TIFF"))
    assert [picture.getpixel((x, 0))[0] for x in range(3)] == [0, 133, 255]


def test_non_finite_values_become_the_minimum():
    values = np.array([[np.nan, np.inf, -np.inf, 2.0, 6.0]], np.float32)
    picture = open_picture(saved(Image.fromarray(values), "TIFF"))
    assert [picture.getpixel((x, 0))[0] for x in range(5)] == [0, 0, 0, 0, 255]
    nothing = np.full((3, 3), np.nan, np.float32)
    assert open_picture(saved(Image.fromarray(nothing), "TIFF")).getextrema() == ((0, 0),) * 3


def test_sixteen_bits_a_colour_keep_their_colour():
    rows = b"\x00" + struct.pack(">6H", 65535, 0, 32768, 0, 65535, 257)
    picture = open_picture(png(2, 1, 16, 2, rows))
    assert near(picture.getpixel((0, 0)), (255, 0, 128), 1) and near(picture.getpixel((1, 0)), (0, 255, 1), 1)


# EXIF orientation


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", *(("AVIF",) if features.check("avif") else ())])
@pytest.mark.parametrize("turn", range(1, 9))
def test_every_orientation_comes_out_upright(kind, turn):
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
    picture = open_picture(saved(held, kind, exif=exif))
    assert picture.size == (48, 32)
    assert_scene(picture, by=20)


@pytest.mark.parametrize("turn", [0, 9, 255, 65535])
def test_an_orientation_that_does_not_exist_is_ignored(turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    assert_scene(open_picture(saved(scene(), "JPEG", exif=exif, quality=95)))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_damaged_orientation_tag_is_ignored():
    for note in (
        b"Exif\x00\x00",
        b"Exif\x00\x00MM\x00*\xff\xff\xff\xff",
        b"Exif\x00\x00II*\x00\x08\x00\x00\x00" + b"\xff" * 40,
    ):
        assert_scene(open_picture(saved(scene(), "JPEG", exif=note, quality=95)))
    assert_scene(open_picture(saved(scene(), "PNG", exif=b"Exif\x00\x00M\xffT*\x00\x00\x00\x08")))


def test_orientation_is_applied_to_reduced_pictures(monkeypatch):
    monkeypatch.setattr(limits, "SIDE", 32)
    exif = Image.Exif()
    exif[0x0112] = 6
    held = scene((480, 320)).transpose(Image.Transpose.ROTATE_90)
    for kind in ("JPEG", "TIFF", "WEBP"):
        picture = open_picture(saved(held, kind, exif=exif, quality=95))
        assert picture.size == (48, 32), kind
        assert_scene(picture)


# Colour profiles


def swapped_profile() -> bytes:
    """An RGB profile whose red and blue are exchanged: whoever ignores it shows blue for red."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack_from(">I", data, 128)[0]
    entries = {bytes(data[132 + 12 * k : 136 + 12 * k]): 132 + 12 * k for k in range(count)}
    red, blue = entries[b"rXYZ"], entries[b"bXYZ"]
    data[red + 4 : red + 12], data[blue + 4 : blue + 12] = data[blue + 4 : blue + 12], data[red + 4 : red + 12]
    return bytes(data).replace("sRGB".encode("utf-16-be"), "swap".encode("utf-16-be")).replace(b"sRGB", b"swap")


def test_an_embedded_profile_is_applied():
    data = saved(scene(), "PNG", icc_profile=swapped_profile())
    colours = corners(open_picture(data))
    assert near(colours["top left"], RED[::-1], 4) and near(colours["bottom left"], BLUE[::-1], 4)


def test_an_embedded_profile_is_applied_under_transparency_and_after_a_palette():
    see_through = scene().convert("RGBA")
    see_through.paste((0, 0, 0, 0), (0, 0, 24, 16))
    colours = corners(open_picture(saved(see_through, "PNG", icc_profile=swapped_profile())))
    assert colours["top left"] == WHITE and near(colours["bottom left"], BLUE[::-1], 4)
    colours = corners(open_picture(saved(scene().quantize(4), "PNG", icc_profile=swapped_profile())))
    assert near(colours["top left"], RED[::-1], 8)


@pytest.mark.parametrize(
    "profile", [b"", b"nonsense", b"\x00" * 200, swapped_profile()[:300], b"\xff" * (limits.PROFILE + 1)]
)
def test_a_damaged_profile_is_ignored(profile):
    assert_scene(open_picture(saved(scene(), "TIFF", icc_profile=profile)))


def test_a_profile_of_megabytes_is_not_even_parsed(monkeypatch):
    monkeypatch.setattr(limits, "PROFILE", 100)
    assert_scene(open_picture(saved(scene(), "PNG", icc_profile=swapped_profile())))


def test_a_profile_of_another_colour_space_is_ignored():
    assert_scene(open_picture(saved(scene().convert("CMYK"), "TIFF", icc_profile=swapped_profile())))


def test_nothing_of_the_file_but_pixels_comes_out():
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    data = saved(scene(), "JPEG", exif=exif, comment=b"where I live", icc_profile=swapped_profile())
    picture = open_picture(data)
    assert picture.info == {} and not dict(picture.getexif())


# Size


def test_a_large_photograph_comes_out_at_the_working_side():
    picture = open_picture(saved(scene((4000, 2600)), "JPEG"))
    assert picture.size == (round(4000 * limits.SIDE / 2600), limits.SIDE)
    assert_scene(picture)


def test_a_large_jpeg_is_not_decoded_whole(monkeypatch):
    decoded, load = [], ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (decoded.append(self.size), load(self))[1])
    monkeypatch.setattr(limits, "SIDE", 100)
    assert open_picture(saved(scene((1600, 1200)), "JPEG")).size == (133, 100)
    assert decoded[0] == (200, 150), "an eighth is the smallest that is not below the working side"


def test_a_small_picture_keeps_its_own_size():
    for size in ((1, 1), (3, 2), (1000, 700)):
        assert open_picture(saved(scene(size), "PNG")).size == size


def test_a_panorama_is_kept_within_the_working_pixels(monkeypatch):
    monkeypatch.setattr(limits, "WORK_PIXELS", 500_000)
    picture = open_picture(saved(Image.new("L", (6000, 306), 90), "PNG"))
    assert 490_000 < picture.width * picture.height < 510_000
    assert abs(picture.width / picture.height - 6000 / 306) < 0.1


# Decompression bombs: refused by the size they declare, before a pixel is decoded


def declared(kind: str, width: int, height: int) -> bytes:
    """A small file of this kind whose header declares these sides."""
    data = bytearray(saved(Image.new("RGB", (16, 16)), kind, **({"lossless": True} if kind == "WEBP" else {})))
    if kind == "PNG":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif kind == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", height, width)
    elif kind == "GIF":
        data[6:10] = struct.pack("<HH", width, height)
    elif kind == "BMP":
        data[18:26] = struct.pack("<ii", width, height)
    elif kind == "WEBP":
        at = data.index(b"VP8L") + 9
        rest = struct.unpack_from("<I", data, at)[0] & 0xF0000000
        data[at : at + 4] = struct.pack("<I", rest | (height - 1) << 14 | (width - 1))
    elif kind == "TIFF":
        for tag, value in ((256, width), (257, height)):
            at = data.index(struct.pack("<HHI", tag, 4, 1))
            data[at : at + 12] = struct.pack("<HHII", tag, 4, 1, value)
    return bytes(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("sides", [(9000, 9000), (16000, 16000), (16383, 5000)])
def test_a_bomb_is_refused_before_it_is_decoded(kind, sides, monkeypatch):
    def decoded(self: Image.Image) -> None:
        raise AssertionError("the bomb went off")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decoded)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        sentence = refusal(declared(kind, *sides))
    assert "64 million" in sentence and "pixels" in sentence


def test_a_bomb_is_refused_where_warnings_are_errors():
    """Where warnings are errors Pillow's own warning arrives as one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "64 million" in refusal(declared("PNG", 10000, 10000))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_real_bomb_of_zeros_is_not_decompressed():
    """10,000 x 10,000 zeros in 450 kB: 100 MB when decoded, and a tenth of a second if anything were."""
    rows = zlib.compressobj(1)
    data = b"".join(rows.compress(bytes(10001 * 100)) for _ in range(100)) + rows.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 10000, 10000, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    started = time.thread_time()
    assert "64 million" in refusal(bomb)
    assert time.thread_time() - started < 0.1


def test_text_that_expands_to_gigabytes_is_not_decompressed():
    """PNG may carry compressed text and profiles; Pillow stops them at a megabyte."""
    bomb = zlib.compress(bytes(40 * limits.MB), 1)
    for extra in (
        chunk(b"zTXt", b"a\0\0" + bomb),
        chunk(b"iCCP", b"a\0\0" + bomb),
        chunk(b"iTXt", b"a\0\1\0\0\0" + bomb),
    ):
        started = time.thread_time()
        with_text = png(2, 1, 8, 0, b"\0\x10\x20", extra)
        try:
            assert open_picture(with_text).size == (2, 1)
        except Refused as error:
            assert "damaged" in str(error)
        assert time.thread_time() - started < 0.5


def test_a_jpeg_of_endless_scans_is_refused_unread():
    """Each scan costs a pass over all pixels: 10,000 scans in 100 kB keep a core busy for a minute."""
    data = saved(scene(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    scan = data[last:-2]
    assert_scene(open_picture(data))
    assert "takes too long" in refusal(data[:-2] + scan * 200 + data[-2:])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP"])
def test_a_file_of_endless_blocks_is_refused_at_the_time_limit(kind, monkeypatch):
    """Every decoder loop that Python runs must check the time limit: chunks, segments, comments, runs."""
    monkeypatch.setattr(limits, "DECODE_SECONDS", 0.15)
    grey = saved(scene().convert("L"), kind)
    if kind == "PNG":
        data = png(2, 1, 8, 0, b"\0\x10\x20", chunk(b"vpAg", b"") * 300_000)
    elif kind == "JPEG":
        data = grey[:2] + b"\xff\xe5\x00\x02" * 1_000_000 + grey[2:]
    elif kind == "GIF":
        at = 13 + 3 * 2 ** ((grey[10] & 7) + 1)
        data = grey[:at] + b"\x21\xfe\x01a\x00" * 300_000 + grey[at:]
    else:
        side, run = 1500, b"\x01\x05"
        body = (run * side + b"\x00\x00") * side + b"\x00\x01"
        head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 0, 0, 256, 0)
        data = b"BM" + struct.pack("<IHHI", 1078 + len(body), 0, 0, 1078) + head + bytes(1024) + body
    started = time.thread_time()
    sentence = refusal(data)
    assert "takes too long" in sentence
    assert time.thread_time() - started < 1.5


def test_a_picture_too_narrow_to_be_resized_is_refused():
    assert "60000 x 1 pixels" in refusal(saved(Image.new("L", (60000, 1)), "PNG"))
    assert "1 x 21 pixels" in refusal(saved(Image.new("L", (1, 21)), "PNG"))
    assert open_picture(saved(Image.new("L", (1, 20)), "PNG")).size == (1, 20)


def test_a_picture_without_pixels_is_refused():
    for size in ((0, 5), (5, 0), (0, 0)):
        assert "damaged" in refusal(png(*size, 8, 0, b""))
        for kind in ("BMP", "JPEG", "TIFF"):
            assert "damaged" in (said := refusal(declared(kind, *size))) or "times the other" in said, kind


# Files that are no picture


@pytest.mark.parametrize(
    ("data", "said"),
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
        (b"\x00\x00\x00\x18ftypheic" + bytes(40), "a HEIC picture"),
        (b"\x00\x00\x00\x18ftypmp42" + bytes(40), "a video"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(20), "an audio file"),
        (b"\x7fELF" + bytes(60), "a program"),
        (b"\x93NUMPY\x01\x00", "a NumPy array"),
        (b"\x00" * 5000, "not a picture of a known format"),
        (bytes(range(1, 200)), "not a picture of a known format"),
    ],
)
def test_files_of_other_types_are_refused_naming_their_type(data, said):
    sentence = refusal(data)
    assert said in sentence and "Choose a photograph in JPEG, PNG, WebP" in sentence


@pytest.mark.parametrize("kind", uploads.FORMATS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_a_file_that_ends_too_early_is_refused_and_never_half_shown(kind, share):
    noise = Image.effect_noise((64, 48), 60).convert("RGB")
    data = saved(noise, kind)
    cut = data[: max(12, int(len(data) * share))]
    sentence = refusal(cut)
    assert "damaged or ends too early" in sentence and kind.lower() in sentence.lower()


def test_a_signature_without_a_picture_is_reported_as_damaged():
    for start in (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\x00", b"MM\x00*", b"RIFF____WEBP"):
        assert "damaged" in refusal(start + bytes(100))


def test_a_script_in_postscript_never_reaches_an_interpreter(monkeypatch):
    """EPS would be handed to Ghostscript by Pillow."""
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a program was started"))
    assert "a text file" in refusal(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) print\n")


# Where files come from


def test_a_file_too_heavy_is_refused_unread(tmp_path, monkeypatch):
    heavy = tmp_path / "heavy.png"
    with open(heavy, "wb") as file:
        file.truncate(limits.FILE + 1)
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("the file was opened"))
    sentence = refusal(heavy)
    assert f"at most {limits.FILE // limits.MB} MB" in sentence and f"{limits.FILE // limits.MB}.1 MB" in sentence
    assert "at most" in refusal(bytes(limits.FILE + 1))


def test_folders_pipes_devices_and_missing_files_are_refused(tmp_path):
    assert "folder" in refusal(tmp_path)
    assert "no longer" in refusal(tmp_path / "gone.png")
    os.mkfifo(tmp_path / "pipe")
    assert "uploaded" in refusal(tmp_path / "pipe")
    assert "uploaded" in refusal("/dev/zero")


@pytest.mark.parametrize(
    "source", [0, 1, 3.5, True, [], ["a.png"], {"path": "a.png"}, object(), ("a",), bytearray(b"x")]
)
def test_a_value_that_is_no_path_is_refused(source):
    """A number would be taken by open() for an open file of this process."""
    assert "uploaded" in refusal(source)


@pytest.mark.parametrize("source", [None, "", b""])
def test_no_file_is_refused_with_the_remedy(source):
    assert "Choose a photograph" in refusal(source)


@pytest.mark.parametrize(
    "source", ["https://example.org/a.png", "file:///etc/passwd", "data:image/png;base64,AAAA", "ftp://x/y"]
)
def test_links_are_refused(source):
    assert "Links are not opened" in refusal(source)
    with pytest.raises(Refused, match="Links are not opened"):
        inside_uploads(source)


@pytest.mark.parametrize("source", ["a\x00b.png", "x" * 5000, "\ud800.png"])
def test_names_that_no_file_can_have_are_refused(source):
    assert "no longer" in refusal(source)
    with pytest.raises(Refused):
        inside_uploads(source)


def test_a_sentence_never_repeats_what_the_visitor_wrote(tmp_path):
    evil = tmp_path / "<img src=x onerror=alert(1)>"
    evil.write_bytes(b"<img src=x onerror=alert(1)>")
    for source in (evil, str(evil) + "/x", b"<img src=x onerror=alert(1)>"):
        sentence = refusal(source)
        assert "<" not in sentence and "onerror" not in sentence and str(tmp_path) not in sentence


# The upload folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An upload folder with one picture in it, as Gradio lays it out."""
    place = tmp_path / "uploads"
    (place / "abc").mkdir(parents=True)
    (place / "abc" / "photo.png").write_bytes(saved(scene(), "PNG"))
    (tmp_path / "secret.png").write_bytes(saved(scene(), "PNG"))
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(place))
    return place


def test_an_uploaded_file_is_found(folder):
    path = inside_uploads(str(folder / "abc" / "photo.png"))
    assert path == (folder / "abc" / "photo.png").resolve()
    assert_scene(open_picture(path))


def test_nothing_else_is_found(folder):
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
    """On macOS the folder for temporary files is itself a link."""
    os.symlink(folder, folder.parent / "alias")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(folder.parent / "alias"))
    assert inside_uploads(folder.parent / "alias" / "abc" / "photo.png").name == "photo.png"


# Fuzzing and threads


def mutations(seeds: list[bytes], count: int, rng: random.Random) -> Iterator[bytes]:
    """Files that were pictures: bytes changed, cut out, repeated, exchanged between two, or numbers made extreme."""
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 6)):
            at, length = rng.randrange(len(data)), rng.randint(1, 16)
            how = rng.randrange(6)
            if how == 0:
                data[at : at + length] = rng.randbytes(len(data[at : at + length]))
            elif how == 1:
                data[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x00\x00\xff\xff"])
            elif how == 2:
                del data[at : at + length]
            elif how == 3:
                data[at:at] = data[at : at + length] * rng.randint(1, 30)
            elif how == 4:
                other = rng.choice(seeds)
                start = rng.randrange(len(other))
                data[at : at + length] = other[start : start + length]
            else:
                data[at % min(len(data), 64)] ^= 1 << rng.randrange(8)
            data = data or bytearray(b"\x00")
        yield bytes(data)


def fuzz_seeds() -> list[bytes]:
    """One small file of every kind and mode that is read."""
    small, see_through = scene((24, 16)), scene((24, 16)).convert("RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [Image.new("RGB", (24, 16), "black")]
    deep = Image.fromarray(np.arange(384, dtype=np.uint16).reshape(16, 24) * 150)
    seeds = [saved(small, kind) for kind in uploads.FORMATS]
    seeds += [saved(small, "JPEG", progressive=True, exif=exif), saved(small.convert("CMYK"), "JPEG")]
    seeds += [saved(small, "PNG", icc_profile=swapped_profile()), saved(small.quantize(8), "PNG", transparency=1)]
    seeds += [saved(small, kind, save_all=True, append_images=frames) for kind in ("GIF", "WEBP", "PNG", "TIFF")]
    seeds += [saved(see_through, kind) for kind in ("PNG", "WEBP", "TIFF")]
    seeds += [
        saved(deep, "PNG"),
        saved(deep, "TIFF"),
        saved(small.quantize(8), "BMP"),
        saved(small.convert("1"), "TIFF"),
    ]
    seeds += [saved(small, "TIFF", compression=how) for how in ("tiff_lzw", "jpeg", "packbits", "tiff_adobe_deflate")]
    return seeds


def survives(data: bytes) -> str:
    """What became of a file: 'picture' or 'refused'; any other end is a failure of the test."""
    try:
        picture = open_picture(data)
    except Refused as error:
        assert str(error).endswith(".")
        return "refused"
    assert picture.mode == "RGB" and min(picture.size) >= 1
    assert (
        picture.width * picture.height <= limits.WORK_PIXELS * 1.01
        and len(picture.tobytes()) == 3 * picture.width * picture.height
    )
    return "picture"


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_give_a_picture_or_a_refusal():
    """The long run behind this: `python -m tests.test_uploads 5000`."""
    ends = [survives(data) for data in mutations(fuzz_seeds(), 400, random.Random(20))]
    assert ends.count("picture") > 40 and ends.count("refused") > 40, "both ends must have been reached"


def test_concurrent_threads_do_not_affect_each_other():
    """No global setting of Pillow is changed, so threads share none."""
    files = [saved(scene((200, 160)), kind) for kind in uploads.FORMATS]
    failures: list[BaseException] = []

    def read(data: bytes) -> None:
        try:
            for _ in range(4):
                assert_scene(open_picture(data), by=20)
        except (Refused, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(data,)) for data in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def _long_run(count: int, start: int, tell: Callable[[str], None] = print) -> None:
    """Fuzz for minutes: slowest file and the ends that were reached."""
    warnings.simplefilter("ignore")
    seeds, ends, slowest = fuzz_seeds(), {"picture": 0, "refused": 0}, 0.0
    for data in mutations(seeds, count, random.Random(start)):
        began = time.perf_counter()
        ends[survives(data)] += 1
        slowest = max(slowest, time.perf_counter() - began)
    tell(f"{count} files: {ends}, slowest {slowest:.2f} s")


if __name__ == "__main__":
    import sys

    _long_run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
