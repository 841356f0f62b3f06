"""Messages about edits that cannot be applied."""

from __future__ import annotations

NAMES = {
    "rotate": ("Rotation", "degrees"),
    "shift": ("Shift", "pixels"),
    "brightness": ("Brightness", "percent"),
    "contrast": ("Contrast", "percent"),
    "noise": ("Noise", "percent"),
    "jpeg": ("JPEG quality", ""),
    "top": ("The part of the map", "tenths of a percent"),
    "first": ("The number of pixels of the map", ""),
}
"""What an operation changes, and its unit."""

NO_SIZE = "The brush has the size 0. Choose a larger size."
EMPTY = "The region is empty and the image is not changed. Paint on the image, or choose a change of the whole image."
ALL = "The region is the whole image, so no pixel is left to inpaint from. Make it smaller, or choose another fill."
NO_SECOND = "No second image is chosen. Choose one below, or another fill."
NO_ORDER = "The map is constant or not finite, so its pixels have no order. Use another layer or method."
ONLY_PHOTOS = (
    "{name} needs a gray or color image, but this one has bands in other units. Change the region or the "
    "position instead."
)


def too_long(length: int, longest: int) -> str:
    """Return the message for an edit with too many strokes."""
    return f"The edit has {length:,} characters; at most {longest:,} can be sent. Undo strokes, or use larger ones."


def unknown(part: str) -> str:
    """Return the message for a part of an edit that cannot be read."""
    shown = part if len(part) <= 40 else f"{part[:39]}…"
    return f"“{shown}” is not part of an edit, so the link is damaged. Copy it again."


def no_number(name: str, given: str, count: int) -> str:
    """Return the message for a value that is not a whole number."""
    what = "a whole number" if count == 1 else f"{count} whole numbers"
    return f"{NAMES[name][0]} needs {what}, not “{given[:40]}”."


def out_of_range(name: str, number: float, low: float, high: float) -> str:
    """Return the message for a number outside its range."""
    title, unit = NAMES[name]
    if name == "top":
        number, low, high, unit = number / 10, low / 10, high / 10, "percent"
    return f"{title} {number:g} is out of range. Give {low:g} to {high:g}{f' {unit}' if unit else ''}."


def other_size(second: tuple[int, ...], first: tuple[int, ...]) -> str:
    """Return the message for a second image that does not fit; shapes are (channels, height, width)."""
    shapes = [" × ".join(map(str, shape)) for shape in (second, first)]
    return (
        f"The second image has {shapes[0]} values (channels, height, width), and the first has {shapes[1]}. Choose an "
        "image of the same size."
    )
