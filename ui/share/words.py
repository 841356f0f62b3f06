"""What is said about kept and shared things."""

from __future__ import annotations

from ui.words import short

GONE = (
    "The picture of this address was a visitor's own, and this browser does not have it any more. Choose it again or "
    "click an example; the other settings are as they were."
)

NO_QUESTION = "The file does not say which map is meant."
NOT_SHOWN = "The picture on the page is not the one of this map any more. Press Explain and save again."
TRAVELS = {
    True: "The file that was given, without metadata (place, time, camera, comments); its pixels are unchanged.",
    False: "The pixels of the file that was given, written anew: its format holds metadata that cannot be cut out.",
}


def no_option(method: str, unknown: list[str], near: list[str], known: list[str]) -> str:
    """When a link or a program gives options that the method does not have."""
    named = ", ".join(f"“{short(name)}”" for name in unknown[:3]) + (" and more" if len(unknown) > 3 else "")
    plural = "options" if len(unknown) > 1 else "option"
    hint = f" Did you mean {near[0]}?" if near else ""
    has = f"It has {', '.join(known)}." if known else "It has none."
    return f"{method} has no {plural} {named}.{hint} {has}"
