"""The words of the picker and of "What am I seeing?"; those of single methods are in lines.py and seen.py."""

from __future__ import annotations

from typing import Any

PICKER: dict[str, Any] = {
    "choose": "Choose a method",
    "search": "Search by name or by word",
    "jump": "Go to a question",
    "none": "No method matches “{query}”. Try a shorter word, such as gradient, mask or channel.",
    "found": ["1 method", "{count} methods"],
    "waiting": "The methods appear here once the network is loaded.",
    "others": "Others, and why ({count})",
    "unfit": "does not fit this network",
    "close": "Close",
}
"""The fixed words that the script shows; {query} and {count} are filled in there."""

INSTANT, SECONDS, MINUTE = "instant", "seconds", "up to a minute"
NO_MAP = "It gives a number for each channel, not a map: see Feature maps, sorted by effect."
GUIDE = "What am I seeing?"


def measured(title: str) -> str:
    """Below the list: where the badges' times come from."""
    return f"Times: {title}, measured on two idle cores."


def estimated(title: str) -> str:
    """The same for another network."""
    return f"Times: estimated for {title} from one forward pass on this machine."
