"""`show`: the maps of several explanations next to each other in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explainers.display.display import Display, Displayed
from explainers.errors import BadOption, WrongType, kind_of, shorten
from explainers.explanation.figures import MOST, display_maps
from explainers.explanation.result import Explanation


def show(
    explanations: Explanation | Sequence[Explanation] | Displayed,
    images: Any = None,
    *,
    labels: Sequence[str] | None = None,
    signed: bool | None = None,
    colors: str | None = None,
    limits: tuple[float, float] | None = None,
    most: int = MOST,
) -> Display:
    """Show the maps of one or several explanations next to each other, with controls, in a notebook.

    `images` are the images below the maps, one for each map of an explanation, as `Explanation.overlay` accepts them;
    by default those that the network received, with the normalization undone. `labels` are the names of the classes.
    `signed`, `colors` and `limits` are as in `overlay`. At most `most` maps are shown.

    Other results, such as those of `evaluate`, `intervene` and `compare_models`, are shown one at a time with the names
    of their classes; they take no other arguments than `labels`.

    Returns  a `Display`, which a notebook shows if it is the last value of a cell
    Errors   ImportError without Pillow; WrongType for values without a display; BadImages if the number of images is
             not the number of maps; BadOption as in `overlay`, if `most` is not a positive integer, or if a result
             other than explanations gets more than `labels`

    Example
        >>> e = explain("grad_cam", model, images, 281, layer="layer4")
        >>> show(e)
        Display(1 map)
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise BadOption(f"Invalid most={shorten(most)}. Give an integer of at least 1.")
    if isinstance(explanations, Displayed) and not isinstance(explanations, Explanation):
        given = {"images": images, "signed": signed, "colors": colors, "limits": limits}
        if unused := [name for name, value in given.items() if value is not None]:
            kind = type(explanations).__name__
            raise BadOption(f"show of a {kind} takes only labels; {', '.join(unused)} would have no effect.")
        return explanations.display(labels)
    listed: list[Any] = list(explanations) if isinstance(explanations, (list, tuple)) else [explanations]
    for each in listed:
        if not isinstance(each, Explanation):
            raise WrongType(f"show takes explanations, not {kind_of(each)}. Give the result of explain, or a list.")
    return display_maps(listed, images, labels=labels, signed=signed, colors=colors, limits=limits, most=most)
