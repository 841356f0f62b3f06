"""Small images of all formats, and hostile files made from bytes; the benchmarks use them too."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from PIL import Image, ImageCms

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
