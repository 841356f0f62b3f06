"""Read a change of channels as the page sends it."""

from __future__ import annotations

import math
import re
from typing import Any

from saliscope.compute.channels.messages import no_channel
from saliscope.compute.interventions import messages
from saliscope.compute.interventions.answers import Change
from saliscope.compute.request import parse_cell, second_image
from saliscope.errors import Refused

LONGEST = 20_000
"""Characters of a list of channels: 2048 single channels have about 10,000."""
LIMITS = {"factor": (-1000.0, 1000.0), "low": (-1e6, 1e6), "high": (-1e6, 1e6), "std": (0.0, 100.0)}
"""Range of each number."""
KINDS = {"zeros": (), "scale": ("factor",), "clamp": ("low", "high"), "mean": (), "noise": ("std",), "swap": ()}
"""The kinds of changes, and the numbers that each needs."""
OPTIONAL = ("low", "high")
"""Numbers that may be missing if the other one is given."""
ITEM = re.compile(r"(\d{1,7})(?:\s*[-–]\s*(\d{1,7}))?")


def parse(data: dict[str, Any]) -> Change:
    """Return the change that a script sent.

    Errors   Refused for an unknown kind, a number outside its range, or a missing second image
    """
    channels, kind, texts = data.get("channels"), data.get("kind"), data.get("numbers")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(channels, str) or len(channels) > LONGEST:
        raise Refused(messages.INVALID)
    texts = texts if isinstance(texts, dict) else {}
    numbers = {name: _number(name, texts.get(name)) for name in KINDS[kind]}
    found = {name: value for name, value in numbers.items() if value is not None}
    if kind == "clamp" and not found:
        raise Refused(messages.NO_LIMIT)
    if kind == "clamp" and found.get("low", -math.inf) > found.get("high", math.inf):
        raise Refused(messages.empty_range(found["low"], found["high"]))
    if kind != "swap":
        return Change(channels, kind, found)
    other = second_image(data.get("second"))
    if other is None:
        raise Refused(messages.NO_OTHER)
    return Change(channels, kind, found, other, bool(data.get("positions")), parse_cell(data.get("cell")))


def _number(name: str, text: Any) -> float | None:
    text = text.strip().replace("−", "-") if isinstance(text, str) else ""
    if not text and name in OPTIONAL:
        return None
    low, high = LIMITS[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise Refused(messages.wrong_number(name, text, low, high))
    return value


def parse_channels(text: str, count: int, layer: str) -> list[int]:
    """Return the channels in a text such as "3, 17-24", in ascending order.

    Errors   Refused for an empty or invalid text, and for channels that the layer with `count` channels does not have
    """
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = ITEM.fullmatch(part)
        if match is None:
            raise Refused(messages.no_channel_text(part))
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise Refused(messages.no_channel_text(part))
        if last >= count:
            raise Refused(no_channel(last, layer, count))
        found.update(range(first, last + 1))
    if not found:
        raise Refused(messages.NONE_SELECTED)
    return sorted(found)
