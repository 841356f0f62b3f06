"""Labels and messages of the erase view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from saliscope.compute.messages import capitalize
from saliscope.percentages import number, percent, points

if TYPE_CHECKING:
    from saliscope.compute.answers import Answer, Refining

ERASE = "Erase"
NO_MAP = "There is no map to start from. Choose an image and a method on the Explain view."
STOPPED = "The map of the image without the edit is not complete, because its run was stopped. Press Try again."
NO_INPAINTING = (
    "Inpainting depends on the region, so the smallest region cannot be searched with it. Choose another fill, such as "
    "blur."
)
NO_PROBABILITIES = (
    "The scores of this network are not probabilities, so half of a probability cannot be kept. Choose Smallest region "
    "that keeps the class instead."
)
NO_SECOND_BANDS = "A second image cannot fill an image with several bands. Choose blur, mean, noise or inpainting."
ONLY_CLASSIFIERS = (
    "This view compares class probabilities, and this model detects objects or regions. Choose a classifier."
)
ONLY_CLASSES = "The smallest region is that of a predicted class. Choose a class instead of a sentence or channel."
ACCEPTED = "image/*,.tif,.tiff"
"""Files offered as a second image; unlike the changes of channels, an edit needs pixels with colors."""


TERMS = {
    "before": "Before",
    "before_hint": "The image as the network receives it. Paint on it to erase a part.",
    "after": "After",
    "tools": "Tools",
    "tool": "Tool",
    "brush": "Brush",
    "box": "Rectangle",
    "mode": "Mode",
    "add": "Erase",
    "remove": "Restore",
    "size": "Size",
    "size_value": "{percent}% of the image",
    "top": "Highest part of the map, percent",
    "top_unit": "%",
    "top_button": "Erase the highest",
    "invert": "Invert",
    "clear": "Clear",
    "clear_hint": "Remove the region and all changes of the image",
    "undo": "Undo",
    "redo": "Redo",
    "fill": "Fill",
    "fills": {
        "blur": ["Blur", "The blurred image"],
        "mean": ["Mean", "The mean color of the image"],
        "noise": ["Noise", "Random values in the range of the image"],
        "inpaint": ["Inpaint", "Each pixel is the mean of its neighbors: the surroundings are continued smoothly"],
        "image": ["Second image", "The pixels of another image at the same position"],
    },
    "whole": "Image changes",
    "whole_changed": "Image changes ({count})",
    "flip_x": "Flip left and right",
    "flip_y": "Flip top and bottom",
    "rotate": ["Rotate", "°"],
    "right": ["Shift right", "pixels"],
    "down": ["Shift down", "pixels"],
    "brightness": ["Brightness", "%"],
    "contrast": ["Contrast", "%"],
    "noise": ["Noise", "%"],
    "jpeg": ["JPEG quality", ""],
    "none": "none",
    "reset": "Reset",
    "keep": "Smallest region that keeps the class",
    "half": "Smallest region that keeps half of its probability",
    "change": "Smallest region that changes it",
    "search_hint": "Bisection over the order of the map, with the selected fill",
    "opacity": "Map opacity",
    "predictions": "Predictions",
    "columns": ["Class", "Before", "After", "Change"],
    "points": "Change in percentage points (pp)",
    "explained": "explained",
    "computing": "Computing …",
    "again": "Try again",
    "old": "Outdated: this is the answer to an earlier edit.",
    "no_image": "Choose an image or an example.",
    "start": "Paint on the image, or choose a change. The map of the edited image appears here.",
    "canvas": "Image to paint on. Arrow keys move the brush, Space paints, Enter sets the corners of a rectangle.",
    "brush_at": "Brush at {x}%, {y}%",
    "same_range": "Both maps have one color range",
    "too_long": "The edit is too long for the address ({count} characters, at most {most}). Save a bundle instead.",
    "link_without_image": "The address does not contain the uploaded second image.",
    "stop": "Stop",
}
"""Labels used by page/erase/."""


def before(step: Refining) -> str:
    """Return the progress of the map without the edit."""
    return f"{step.settings.method.title} of the image without the edit: {100 * step.fraction:.0f}%"


def refining(step: Refining) -> str:
    """Return the progress of the map of the edited image."""
    return f"{step.settings.method.title} of the edited image: {100 * step.fraction:.0f}%"


def region(pixels: int, total: int) -> str:
    """Return the size of a region."""
    return f"{pixels:,} of {total:,} pixels ({percent(pixels / total)})"


def not_predicted(before: Answer) -> str:
    """Return why there is no smallest region for a class that is not predicted."""
    predicted = before.settings.loaded.names[before.top[0][0]]
    return (
        f"The smallest region is that of the predicted class, {predicted}, but the map is for {before.name}. Choose "
        f"{predicted} as the class."
    )


KEPT = {"keep": "the class", "half": "the class and half of its probability"}
"""What a region keeps, by the goal of the search."""


def found(goal: str, fraction: float, pixels: int, passes: int) -> str:
    """Return the result of a search."""
    what = "change the class if they are erased" if goal == "change" else f"keep {KEPT[goal]}"
    return f"{percent(fraction)} of the pixels ({pixels:,}) are enough to {what} ({passes} forward passes)."


def not_reached(goal: str, passes: int) -> str:
    """Return the result of a search without a region."""
    if goal == "change":
        return f"Erasing any part of the map, in its order, does not change the class ({passes} forward passes)."
    return f"No part of the map, in its order, keeps {KEPT[goal]} ({passes} forward passes)."


def whole_image(goal: str, passes: int) -> str:
    """Return the result of a search whose region leaves nothing to erase."""
    if goal == "change":
        return f"The class changes even if nothing is erased ({passes} forward passes)."
    kept = f"{capitalize(KEPT[goal])} {'are' if goal == 'half' else 'is'}"
    return f"{kept} kept only by the whole image ({passes} forward passes)."


def change(before: float, after: float, has_probabilities: bool) -> str:
    """Return the change of a score: percentage points for probabilities."""
    difference = after - before
    if has_probabilities:
        return points(difference)
    return number(difference, "+.3g") if difference else "0"


def value(score: float, has_probabilities: bool) -> str:
    """Return a score."""
    return percent(score) if has_probabilities else number(score)


def result(before: Answer, after: Answer) -> str:
    """Return the sentence about the explained class and the prediction after an edit."""
    loaded, names = before.settings.loaded, before.settings.class_names
    old, new = _scores(before, after)
    text = f"{capitalize(names[_explained(before)])}: {old} before, {new} after."
    first, last = before.top[0][0], after.top[0][0]
    if loaded.encodes_text:
        return text
    if even := loaded.no_preference(after.probabilities):
        return f"{text} {even}"
    if first == last:
        return f"{text} The prediction is still {names[first]}."
    return f"{text} The prediction changes from {names[first]} to {names[last]}."


def headline(before: Answer | Refining, after: Answer | Refining) -> list[str]:
    """Return the two sentences about the edited image: its prediction, and what is left of the explained class."""
    names, explained = before.settings.class_names, _explained(before)
    last, score = after.top[0]
    even = after.settings.loaded.no_preference(after.probabilities)
    prediction = f"{names[last]}, {value(score, before.settings.loaded.has_probabilities)}."
    shown = f"After the edit: {even[:1].lower()}{even[1:]}" if even else f"After the edit: {prediction}"
    old, new = _scores(before, after)
    change = f"{old} before" if last == explained else f"{capitalize(names[explained])}: {old} before, {new} after"
    return [shown, f"{change}{_kept(before, after)}."]


def _explained(before: Answer | Refining) -> int:
    """Return the class that the edit is judged by: the explained one, or the prediction if a channel is explained."""
    index = before.top[0][0] if before.settings.unit else before.target
    assert index is not None, "a classifier"
    return index


def _values(before: Answer | Refining, after: Answer | Refining) -> tuple[float, float]:
    """Return the score of the explained class before and after the edit."""
    assert before.probabilities is not None and after.probabilities is not None, "a classifier"
    index = _explained(before)
    return float(before.probabilities[index]), float(after.probabilities[index])


def _scores(before: Answer | Refining, after: Answer | Refining) -> tuple[str, str]:
    old, new = (value(each, before.settings.loaded.has_probabilities) for each in _values(before, after))
    return old, new


def _kept(before: Answer | Refining, after: Answer | Refining) -> str:
    """Return the fraction of the probability that is left, or an empty string if it has not fallen."""
    old, new = _values(before, after)
    if not before.settings.loaded.has_probabilities or not 0 <= new < old:
        return ""
    return f"; {percent(new / old)} of its probability is kept"
