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


# Badges

NO_CLASS = "does not depend on the class"
NO_CLASS_TIP = "The method reads no class: its map is the same for every class."
NO_WEIGHTS = "hardly depends on the weights"
HERE = "here"
CONTROLS = {"random": "random maps", "edge": "edges", "centre": "a centre blob"}


def weights_tip(last: float, everything: float, limits: tuple[float, float], network: str) -> str:
    """What the randomisation test found."""
    return (
        f"Rank correlation with the map of {network} after its weights were drawn anew: {signed(last)} for the last "
        f"layer’s alone, {signed(everything)} for all layers’; from {limits[0]:g}, or {limits[1]:g}, on it is hardly "
        "another map."
    )


def no_better(verdicts: dict[str, str], where: str) -> str:
    """The badge: of one control by its name, of several together."""
    names = [CONTROLS.get(control, control) for control, verdict in verdicts.items() if verdict != "better"]
    return f"no better than {names[0] if len(names) == 1 else 'the controls'} {where}"


def controls_tip(verdicts: dict[str, str], photographs: int, network: str) -> str:
    """The place beside each control."""
    parts = []
    for verdict, say in (("better", "better than"), ("level", "level with"), ("worse", "worse than")):
        names = [CONTROLS.get(control, control) for control, each in verdicts.items() if each == verdict]
        if names:
            parts.append(f"{say} {', '.join(names[:-1]) + ' and ' if len(names) > 1 else ''}{names[-1]}")
    over = f"{photographs} photograph{'s' * (photographs != 1)}"
    return f"By insertion less deletion over {over} with {network}: {', '.join(parts)} (paired t-test, p < 0.05)."


def signed(value: float) -> str:
    """Two digits, with a minus sign."""
    return f"{value:.2f}".replace("-", "−")
