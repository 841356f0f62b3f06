"""Labels and messages of the changes of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saliscope.compute import messages
from saliscope.compute.erase.messages import change, value
from saliscope.percentages import number

if TYPE_CHECKING:
    from saliscope.compute.interventions.answers import BeforeAfter, Changed, ClassChange

INVALID = "The change is not valid. Reload the page and try again."
NONE_SELECTED = "No channel is selected. Select tiles, or enter channels such as 3, 17-24."
NO_OTHER = "No second image. Choose an example or upload an image."
NO_CLASSES = (
    "Channels can be changed for networks that classify images. This network returns objects or regions instead of "
    "scores of classes."
)
NO_LIMIT = "Both limits are empty. Enter a lower limit, an upper limit, or both."
POSITIONS = "Swapping one position after another"
STOPPED = "Stopped before the result was complete. Press Apply to start again."

BAD_PART = "“{text}” is not a channel or a range of channels. Enter numbers and ranges such as 3, 17-24."
CHANGE = {
    "group": "Change channels",
    "channels": "Channels",
    "example": "for example 3, 17-24",
    "top": "Top 10 by effect",
    "top_title": "The ten channels whose removal lowers the class score most. Measures the effect of every channel",
    "all": "All",
    "none": "None",
    "count": "{count} of {total} selected",
    "kind": "Change",
    "kinds": [
        ["zeros", "Set to zero"],
        ["scale", "Scale"],
        ["clamp", "Clamp"],
        ["mean", "Replace by the mean"],
        ["noise", "Add noise"],
        ["swap", "Swap with a second image"],
    ],
    "numbers": {
        "scale": [["factor", "Factor", "2"]],
        "clamp": [["low", "From", "0"], ["high", "to", "1"]],
        "noise": [["std", "Standard deviations", "1"]],
    },
    "where": "Positions",
    "wheres": [["all", "Whole channels"], ["each", "One position after another"]],
    "apply": "Apply",
    "reset": "Reset",
    "reset_title": "Remove the change and the selection",
    "stop": "Stop",
    "waiting": "Computing …",
    "old": "Result of former settings: ",
    "bad_part": BAD_PART,
    "bad_channel": "Layer {layer} has no channel {number}. Choose channels from 0 to {last}.",
    "columns": ["Class", "Before", "After", "Change"],
    "before": "Before the change",
    "after": "After the change",
    "maps_waiting": "The maps are being computed.",
    "clicked": "Click a position to swap only that one.",
}
"""Labels used by the scripts in page/interventions/."""


def wrong_number(name: str, text: str, low: float, high: float) -> str:
    """Return the message for a number that is missing or outside its range."""
    label = {"factor": "factor", "low": "lower limit", "high": "upper limit", "std": "number of standard deviations"}
    shown = f"“{messages.short(text, 20)}” is not a valid {label[name]}" if text else f"The {label[name]} is missing"
    return f"{shown}. Enter a number from {low:g} to {high:g}.".replace("from -", "from −")


def empty_range(low: float, high: float) -> str:
    """Return the message for a lower limit above the upper limit."""
    return f"The lower limit {low:g} is above the upper limit {high:g}. Swap them or change one.".replace("-", "−")


def no_channel_text(text: str) -> str:
    """Return the message for a part of the list of channels that is not a channel or a range."""
    return BAD_PART.format(text=messages.short(text, 30))


def other_size(other: tuple[int, ...], own: tuple[int, ...]) -> str:
    """Return the message for a second image whose input has another size."""
    sizes = [" × ".join(map(str, size)) for size in (other, own)]
    return (
        f"The second image has an input of {sizes[0]} pixels, but the explained image has {sizes[1]}. Resize the "
        "second image to the size of the first, or choose another one."
    )


def map_of(title: str, *, changed: bool) -> str:
    """Return the status while a map of a long method is computed."""
    return f"{title} of the {'changed' if changed else 'unchanged'} network"


def title(step: Changed) -> str:
    """Return what was changed, in one sentence."""
    count, place, change = len(step.place.channels), step.place, step.change
    if count == step.total:
        which = f"All {count:,} channels of {place.layer}"
    elif count == 1:
        which = f"Channel {place.channels[0]} of {place.layer}"
    else:
        which = f"{count:,} channels of {place.layer}"
    return f"{which} {_what(change, step)}."


def _what(change: Any, step: Changed) -> str:
    numbers = {name: number(value, "g") for name, value in change.numbers.items()}
    if change.kind == "zeros":
        return "set to zero"
    if change.kind == "mean":
        return "replaced by the mean over all positions"
    if change.kind == "scale":
        return f"multiplied by {numbers['factor']}"
    if change.kind == "noise":
        many = "" if change.numbers["std"] == 1 else "s"
        return f"with noise of {numbers['std']} standard deviation{many}"
    if change.kind == "clamp":
        low, high = numbers.get("low"), numbers.get("high")
        if low is None or high is None:
            return f"limited to at most {high}" if low is None else f"limited to at least {low}"
        return f"limited to {low} to {high}"
    if step.shown_cell is None:
        return "swapped with those of the second image"
    row, column = step.shown_cell
    return f"swapped with those of the second image at row {row + 1}, column {column + 1}"


def row(each: ClassChange, step: BeforeAfter) -> list[str]:
    """Return a class with its values before and after, and the difference, as text."""
    loaded = step.settings.loaded
    shares = loaded.has_probabilities and not loaded.encodes_text
    return [value(each.before, shares), value(each.after, shares), change(each.before, each.after, shares)]


def summary(step: BeforeAfter) -> str:
    """Return the effect on the top prediction in one sentence."""
    before = max(step.classes, key=lambda each: each.before)
    after = max(step.classes, key=lambda each: each.after)
    if before is after:
        return f"The prediction is still {after.name}."
    return f"The prediction changes from {before.name} to {after.name}."


def map_title(step: BeforeAfter) -> str:
    """Return the heading of both maps."""
    settings = step.settings
    target = f" for {step.subject}" if settings.method.reads_class else ""
    return f"{settings.method.title}{target}"


def note(step: BeforeAfter) -> str:
    """Return a note on the maps: that they are equal, or that a long method was stopped early; or an empty string."""
    maps = step.maps
    if maps is None:
        return ""
    if maps.share < 1:
        return f"The time limit stopped the second map at {100 * maps.share:.0f}%."
    return "Both maps are equal." if bool((maps.before == maps.after).all()) else ""


def effects(step: Changed) -> tuple[str, str]:
    """Return the heading of the map of positions, and its unit."""
    unit = step.settings.measure
    return f"Change of the {unit} of {step.subject} by position", unit
