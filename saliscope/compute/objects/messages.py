"""Labels and messages of detected objects and regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saliscope.compute import messages

if TYPE_CHECKING:
    from saliscope.compute.answers import DetectedObject, Settings

ONLY_BACKGROUND = (
    "The network assigns every pixel of this image to the background. Choose another image, or choose the background "
    "as the class."
)
AT_LOWER_SCORE = "Lower the min score to explain the strongest detection."


def other_layer(wanted: str, used: str) -> str:
    """Return the message for a detection that does not depend on the default layer."""
    return f"This detection comes from another scale and does not depend on layer {wanted}. The map uses layer {used}."


OBJECTS = {"detection": ("Detected objects", "Object"), "segmentation": ("Regions by area", "Region")}
"""By task: the title of the list of objects, and the label of the target field."""
HIDE = {"detection": "Boxes", "segmentation": "Regions"}
"""By task: the label of the switch that hides the objects on the image."""
STRONGEST = {"detection": "Strongest detection", "segmentation": "Largest region"}


def nothing_found(settings: Settings, strongest: list[DetectedObject]) -> str:
    """Return the message if no detection reaches the minimum score; `strongest` has the best one, if any."""
    best = f" (the strongest detection is {strongest[0].name} with {strongest[0].share:.2f})" if strongest else ""
    return (
        f"No object detected with a score of at least {settings.min_score:g}{best}. Lower min score under Options, or "
        "choose another image."
    )


def not_detected(settings: Settings, detected: list[str], default: str) -> str:
    """Return the message for a requested object that was not detected."""
    floor = f" with a score of at least {settings.min_score:g}" if settings.loaded.model.task == "detection" else ""
    names = ", ".join(detected[:6]) + (" and more" if len(detected) > 6 else "")
    name = settings.names["target"]
    used = f"{messages.DEFAULT_USED}{default}."
    return f"“{messages.short(name)}” was not detected in this image{floor}. Detected: {names}.{used}"


def no_detections(output: Any) -> str:
    """Return the message for a detector with an unsupported output."""
    return (
        f"The detector returned a {type(output).__name__}. It must return a list with one dictionary of boxes, labels "
        "and scores per image, like the detectors of torchvision."
    )


def no_pixel_scores(output: Any) -> str:
    """Return the message for a segmentation network with an unsupported output."""
    return (
        f"The segmentation network returned a {type(output).__name__}. It must return scores [N, classes, height, "
        'width] as a tensor, as {"out": scores} or as an output with `logits`.'
    )
