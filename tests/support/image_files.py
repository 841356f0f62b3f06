"""Small images of all formats, and hostile files made from bytes; the benchmarks use them too."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from saliscope.images import uploads

RED, GREEN, BLUE, GOLD = (220, 30, 30), (30, 200, 30), (30, 30, 210), (220, 200, 40)
MARKS = {"top left": RED, "top right": GREEN, "bottom left": BLUE, "bottom right": GOLD}
WHITE = (255, 255, 255)


def scene(size: tuple[int, int] = (48, 32)) -> Image.Image:
    """Return an image with four colored quarters, wider than high."""
    width, height = size
    image = Image.new("RGB", size)
    for index, color in enumerate(MARKS.values()):
        box = (index % 2 * width // 2, index // 2 * height // 2)
        image.paste(color, (*box, box[0] + width // 2, box[1] + height // 2))
    return image


def save(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the image as a file of this format."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    """Return a PNG chunk with its checksum."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, depth: int, color: int, rows: bytes, *extra: bytes) -> bytes:
    """Write a PNG that Pillow cannot write; `extra` are complete chunks."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + data


def swapped_profile() -> bytes:
    """Return an RGB profile with red and blue exchanged; ignoring it shows blue instead of red."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack_from(">I", data, 128)[0]
    entries = {bytes(data[132 + 12 * k : 136 + 12 * k]): 132 + 12 * k for k in range(count)}
    red, blue = entries[b"rXYZ"], entries[b"bXYZ"]
    data[red + 4 : red + 12], data[blue + 4 : blue + 12] = data[blue + 4 : blue + 12], data[red + 4 : red + 12]
    return bytes(data).replace("sRGB".encode("utf-16-be"), "swap".encode("utf-16-be")).replace(b"sRGB", b"swap")


def declared(kind: str, width: int, height: int) -> bytes:
    """Return a small file of this format whose header declares these sides."""
    data = bytearray(save(Image.new("RGB", (16, 16)), kind, **({"lossless": True} if kind == "WEBP" else {})))
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


def mutations(seeds: list[bytes], count: int, rng: random.Random) -> Iterator[bytes]:
    """Yield damaged images: bytes changed, removed, repeated or exchanged between files, or extreme numbers."""
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
