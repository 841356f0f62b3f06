"""The text of an edit, as in an address, and its operations. Nothing here computes.

    brush.0c.4k2B4k9Z_invert_fill.mean_rotate.90

Operations are separated by "_" and have fields after ".". Those of the region are applied in their order. Positions are
fractions of the width and height of the crop in two digits to base 62, so that a point of a stroke has four characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from saliscope.errors import Refused

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FINEST = len(DIGITS) ** 2 - 1
"""The number of steps from 0 to 1 of a position."""
LONGEST = 12_000  # characters of an edit; a request has at most 20 kB
IN_ADDRESS = 4_000  # characters of an edit in an address, as in page/shared/address.js
FILLS = ("blur", "mean", "noise", "inpaint", "image")
NUMBERS = {
    "rotate": (-180, 180, "Rotation", "degrees"),
    "shift": (-4096, 4096, "Shift", "pixels"),
    "brightness": (0, 300, "Brightness", "percent"),
    "contrast": (0, 300, "Contrast", "percent"),
    "noise": (0, 100, "Noise", "percent"),
    "jpeg": (1, 100, "JPEG quality", ""),
    "top": (1, 1000, "The part of the map", "tenths of a percent"),
    "first": (0, 10**9, "The number of pixels of the map", ""),
}
"""The operations with whole numbers: their range, what they change, and its unit."""
RANGES = {name: (low, high) for name, (low, high, *_) in NUMBERS.items()}
FLIPS = ("x", "y", "xy")
EMPTY = "The region is empty and the image is not changed. Paint on the image, or choose a change of the whole image."
NO_SECOND = "No second image is chosen. Choose one below, or another fill."
NO_ORDER = "The map is constant or not finite, so its pixels have no order. Use another layer or method."

Point = tuple[float, float]


@dataclass(frozen=True)
class Stroke:
    """The pixels within `radius` (a fraction of the shorter side) of a line, added to the region or removed from it."""

    points: tuple[Point, ...]
    radius: float
    add: bool = True


@dataclass(frozen=True)
class Box:
    """The pixels between two corners, added to the region or removed from it."""

    corners: tuple[Point, Point]
    add: bool = True


@dataclass(frozen=True)
class Highest:
    """The pixels with the highest values of the map, added to the region: a `share` of all, or their `count`."""

    share: float | None = None
    count: int | None = None


@dataclass(frozen=True)
class Invert:
    """All pixels that are not in the region."""


Operation = Stroke | Box | Highest | Invert


@dataclass(frozen=True)
class Whole:
    """Changes of the whole image, in the order in which they are applied; the defaults change nothing."""

    flip: str = ""
    """ "x" exchanges left and right, "y" exchanges top and bottom, "xy" both."""
    rotate: int = 0
    """Degrees, counterclockwise."""
    shift: tuple[int, int] = (0, 0)
    """Pixels of the network input, to the right and down."""
    brightness: int = 100
    """Percent of each value."""
    contrast: int = 100
    """Percent of the distance from the mean brightness."""
    noise: int = 0
    """Standard deviation of Gaussian noise, in percent of the range of the values."""
    jpeg: int | None = None
    """Quality of a JPEG."""


@dataclass(frozen=True)
class Edit:
    """A region with its fill, then changes of the whole image."""

    region: tuple[Operation, ...] = ()
    fill: str = "blur"
    whole: Whole = Whole()

    @property
    def needs_map(self) -> bool:
        """Whether the region depends on the map."""
        return any(isinstance(operation, Highest) for operation in self.region)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is changed."""
        return not self.region and self.whole == Whole()


def parse(text: str) -> Edit:
    """Return the edit of a text, which may come from an untrusted link.

    Errors   Refused for an unknown operation, a value out of its range, or a text that is too long
    """
    if len(text) > LONGEST:
        raise Refused(
            f"The edit has {len(text):,} characters; at most {LONGEST:,} can be sent. Undo strokes, or use larger ones."
        )
    region: list[Operation] = []
    values: dict[str, str | int | tuple[int, int]] = {}
    fill = "blur"
    for part in filter(None, text.split("_")):
        name, *fields = part.split(".")
        match name, fields:
            case "brush" | "unbrush", [radius, points]:
                stroke = Stroke(_points(part, points), _fraction(part, radius), name == "brush")
                if not stroke.radius:
                    raise Refused("The brush has the size 0. Choose a larger size.")
                region.append(stroke)
            case "box" | "unbox", [corners] if len(corners) == 8:
                first, second = _points(part, corners)
                region.append(Box((first, second), name == "box"))
            case "top", _:
                region.append(Highest(share=_numbers(name, fields)[0] / 1000))
            case "first", _:
                region.append(Highest(count=_numbers(name, fields)[0]))
            case "invert", []:
                region.append(Invert())
            case "fill", [kind] if kind in FILLS:
                fill = kind
            case "flip", [axes] if axes in FLIPS:
                values["flip"] = axes
            case "shift", _:
                x, y = _numbers(name, fields, 2)
                values["shift"] = x, y
            case "rotate" | "brightness" | "contrast" | "noise" | "jpeg", _:
                values[name] = _numbers(name, fields)[0]
            case _:
                raise Refused(_unknown(part))
    return Edit(tuple(region), fill, Whole(**values))  # type: ignore[arg-type]


def _numbers(name: str, fields: list[str], count: int = 1) -> list[int]:
    """Return the whole numbers of an operation.

    Errors   Refused if they are not whole numbers in the range of the operation
    """
    low, high, title, _ = NUMBERS[name]
    if len(fields) != count or not all(re.fullmatch(r"-?[0-9]{1,10}", field) for field in fields):
        what = "a whole number" if count == 1 else f"{count} whole numbers"
        raise Refused(f"{title} needs {what}, not “{'.'.join(fields)[:40]}”.")
    for number in map(int, fields):
        if not low <= number <= high:
            raise Refused(out_of_range(name, number, low, high))
    return [int(field) for field in fields]


def _points(part: str, text: str) -> tuple[Point, ...]:
    """Return the points of a stroke or the corners of a box."""
    if not text or len(text) % 4:
        raise Refused(_unknown(part))
    numbers = [_fraction(part, text[at : at + 2]) for at in range(0, len(text), 2)]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _fraction(part: str, text: str) -> float:
    if len(text) != 2 or not (text.isascii() and text.isalnum()):
        raise Refused(_unknown(part))
    return (DIGITS.index(text[0]) * len(DIGITS) + DIGITS.index(text[1])) / FINEST


def _unknown(part: str) -> str:
    """Return the message for a part of an edit that cannot be read."""
    shown = part if len(part) <= 40 else f"{part[:39]}…"
    return f"“{shown}” is not part of an edit, so the link is damaged. Copy it again."


def out_of_range(name: str, number: float, low: float, high: float) -> str:
    """Return the message for a number outside its range."""
    *_, title, unit = NUMBERS[name]
    if name == "top":
        number, low, high, unit = number / 10, low / 10, high / 10, "percent"
    return f"{title} {number:g} is out of range. Give {low:g} to {high:g}{f' {unit}' if unit else ''}."
