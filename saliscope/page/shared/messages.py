"""Labels of parts that several views use."""

from saliscope import install

NAVIGATION = {
    "views": "Views",
    "view": "{name} view",
    "more": "More",
    "theme": "Light or dark theme",
    "present": "Presentation mode",
    "leave": "Leave presentation mode (Esc)",
    "tour": "Tour in one minute",
    "links": [
        ["Documentation", f"{install.REPOSITORY}/blob/main/docs/page.md"],
        ["Source code", install.REPOSITORY],
    ],
}
"""Labels used by navigation/navigation.js."""

TOUR = {
    "step": "{at} of {count} · {title}",
    "back": "Back",
    "next": "Next",
    "end": "Done",
    "close": "Leave the tour",
    "steps": [
        [
            "hl-examples",
            "Image",
            "Choose one of these examples, or upload an image. The model predicts a class for it.",
        ],
        [
            "hl-bars",
            "Class",
            "These are the most likely classes. Choose one: the map shows the evidence for this class.",
        ],
        ["hl-strip", "Layer", "The image passes these layers from left to right. Choose one to see the map there."],
        [
            "hl-cover",
            "Cover",
            "Does the prediction depend on the bright region? Cover it, and see what happens.",
        ],
        [
            "hl-next",
            "Compare",
            "Compare the maps of two classes, layers, methods or models next to each other.",
        ],
    ],
}
"""Labels used by tour/tour.js: of each step, what it is about (an id or a class), its title and its text."""

SNIPPETS = {
    "copy": "Copy",
    "copy_named": "Copy: {name}",
    "copied": "Copied",
    "failed": "Copying failed: select and copy the text",
}
"""Labels used by panel/snippets.js."""

READING = {
    "cell": "{value} at row {row}, column {column} of {h} × {w}",
    "color_range": "Colors from {low} to {high} {unit}",
    "percent": "{percent} percent",
    "color_maps": {"auto": "Automatic", "magma": "Magma", "viridis": "Viridis", "signed": "Blue to red"},
}
"""Labels of a drawn map, used by the overlay and the comparison."""

DRAWING = {
    "cells": "{h} × {w} cells. ",
    "contours": "Contours at {low}% and {high}% of the color range.",
    "signed_contours": "Contours at {low}% and {high}% of the color range, dark around negative values.",
    "drawn_magnitudes": "magnitudes",
    "saturated": "saturated at the {percentile}th percentile",
    "blurred": "blurred by {pixels}",
    "pixel": "a pixel",
    "pixels": "{count} pixels",
    "gradient": "|gradient|",
    "magnitude": "|score|",
    "in_unit": "{quantity} in {unit}",
}
"""How a map is drawn; labels used by drawing/describe.js."""

MAP = (
    READING
    | DRAWING
    | {
        "shown": "Display mode",
        "modes": {
            "overlay": ["Overlay", "The map over the desaturated image"],
            "photograph": ["Image", "Only the image. Press and hold for a quick look, or hold P on the image"],
            "map": ["Map", "Only the map"],
            "swipe": ["Swipe", "Image and overlay with a draggable divider"],
        },
        "divider": "Divider between image and overlay",
        "divided": "image on the left {percent} percent",
        "opacity": "Opacity",
        "colors_and_range": "Colors",
        "colors": "Color map",
        "smooth": "Smooth",
        "smooth_title": "Off: show the map's cells with their edges",
        "signed": "Signed",
        "signed_title": "Show negative values in blue; off: show magnitudes",
        "cached": "Cached",
        "progress": "Progress",
        "progress_title": "Partial maps of the run",
        "final_map": ", the final map",
        "limits": "Color limits",
        "low": "Lower limit",
        "high": "Upper limit",
        "to": "to",
        "pin": "Pin",
        "pinned": "Pinned",
        "pin_title": "Keep these limits for other layers, classes, methods and images whose maps have the same unit",
        "reset": "Reset",
        "reset_title": "Reset to the map's own limits",
        "no_number": "Enter a number for both limits. The last valid limits are still in use.",
        "not_less": "The lower limit must be less than the upper limit. The last valid limits are still in use.",
        "other_unit": "The limits are pinned for maps in {pinned}. This map is in {unit} and has its own limits.",
        "no_unit": "values without a unit",
        "drawing": "The read-out and the saved array contain the unmodified map",
        "histogram": "Histogram of {count} values from {low} to {high}, on the axis of the color bar. "
        "Heights are square roots of the counts.",
    }
)
"""Labels used by overlay/overlay.js."""

SECOND_IMAGE = {
    "title": "Second image",
    "example": "Second image: {name}",
    "upload": "Upload",
    "uploading": "Uploading …",
    "uploaded": "Uploaded: {name}",
    "upload_failed": "The file could not be uploaded. Try again, or choose a smaller file.",
    "gone": "The second image was uploaded by a user, and links do not contain images. Choose it again.",
    "accept": "image/*,.npy,.tif,.tiff",
}
"""Labels used by panel/second_image.js."""

STOPPING = "The server is stopping. Try again in a moment."
NO_METRICS = f"--monitoring needs the package prometheus_client, which is not installed. {install.hint('monitoring')}."
