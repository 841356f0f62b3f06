"""Labels of the list of methods and of the map guide. Texts of single methods are in lines.py and explanations.py."""

from __future__ import annotations

from saliscope.compute import messages as session_messages
from saliscope.percentages import number

INSTANT, SECONDS, MINUTE = "instant", "seconds", "up to a minute"
NO_MAP = "It returns a number for each channel instead of a map (see Channels, sorted by effect)."
GUIDE = "What does this map show?"


def no_map(title: str, default: str) -> str:
    """Return the message for a requested method that returns no map."""
    return f"{title} has no map. {NO_MAP}{session_messages.DEFAULT_USED}{default}."


def unsuitable(title: str, reason: str, default: str) -> str:
    """Return the message for a requested method that does not support the network."""
    why = " ".join(reason.split()).partition(". ")[0].rstrip(".")  # the rest of the message is about code
    unused = session_messages.plain(f"{title} does not support this network: {why}.")
    return f"{unused}{session_messages.DEFAULT_USED}{default}."


def unavailable(count: int) -> str:
    """Return the title of the group of methods that do not support the model or layer."""
    return f"Not available ({count})"


def measured(title: str) -> str:
    """Return the note on measured times below the list."""
    return f"Times: measured for {title} on two idle CPU cores."


def estimated(title: str) -> str:
    """Return the note on estimated times below the list."""
    return f"Times: estimated for {title} from one forward pass on this machine."


# Badges

NO_CLASS = "class-agnostic"
NO_CLASS_TIP = "The method does not use the class, so its map is the same for every class."
NO_WEIGHTS = "hardly depends on the weights"
HERE = "on this network"


def weights_tip(last: float, everything: float, limits: tuple[float, float], network: str) -> str:
    """Return the result of the parameter randomization test."""
    return (
        f"Rank correlation with the map of {network} after randomizing its weights: {number(last, '.2f')} for the last "
        f"layer, {number(everything, '.2f')} for all layers. The test fails at {limits[0]:g} or more for "
        f"the last layer, or {limits[1]:g} or more for all layers."
    )


def controls_tip(results: str, count: int, network: str, test: str) -> str:
    """Return the comparison with each control; `results` are in the words of a verdict."""
    over = f"{count} image{'s' * (count != 1)}"
    return (
        f"Insertion minus deletion over {over} with {network}: {results} ({test}, p < 0.05, adjusted "
        "for the number of comparisons)."
    )
