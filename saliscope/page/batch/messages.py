"""Labels and messages of the batch tab."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saliscope import limits
from saliscope.runs.formats import plural

BATCH = "Batch"
NONE = "No files selected. Choose images or a zip archive of images."
TOO_MANY = "{count} images selected, but at most {most} are supported. Select fewer, or run `saliscope explain`."
EMPTY = "No images found in {names}. Choose images or a zip archive of images."
DAMAGED = "{name} is not a readable zip archive. Create it again, or choose the images themselves."
MEGABYTES = limits.BATCH_BYTES // limits.MB
TOO_MUCH = f"The images are larger than {MEGABYTES} MB in total. Select fewer, or run `saliscope explain`."
LOCKED = "{name} is encrypted. Create a zip archive without a password."
COMPRESSION = "{name} does not use the usual compression (Deflate). Create it again with the default settings."
TOO_MANY_FILES = "The zip archive contains too many files. Create one with only the images."
LONG = "{title} is too slow for a batch. Choose a method that takes at most about a second, or run `saliscope explain`."
CLASSIFIER = "{title} is not a classifier, and reports only support classifiers. Choose another network."
CHANNELS = "{title} needs {channels} channels, but images have 3. Choose another network."
LENT = "This server provides a GPU for a few seconds at a time, too short for a batch. Run the app on your own machine."
STOPPED = "Stopped before the first batch. Press Explain all or Index channels to start again."
UNPACKING = "Unpacking the archives …"
EXPLAINING = "{done} of {total} images explained"
INDEXING = "{done} of {total} images indexed"
CROPPING = "Cropping the strongest images: {done} of {total}"
DRAWING = "Report: {done} of {total} images rendered"
TESTING = "Report: testing other preprocessings"
UNKNOWN = "Internal error. See the server log for details. Press Explain all or Index channels to try again."

TITLE = "Explain or index a batch of images"
FOR_CLASS, FOR_SENTENCE = "its predicted class", "the sentence under Text"
TEXT = (
    "Explain all: explains every image with the current network, method and layer, for {target}. The report shows "
    "misclassified images, mean maps, and clusters of maps within a class, which can reveal shortcuts.\n"
    "Index channels: finds the images to which each channel of the layer and of the network's stages responds most, "
    "for the Channels view. Only you see them, until you leave the page.\n"
    "If the folders of a zip archive are named by class, they are used as labels. Up to "
    f"{limits.BATCH} images with at most {MEGABYTES} MB in total. Each file, including a zip archive, can have at most "
    f"{limits.FILE // limits.MB} MB."
)

TERMS: dict[str, Any] = {
    "start": "Explain all",
    "index": "Index channels",
    "open": "Open Channels",
    "gone": "The index of your images was of {title} and was removed, because the network changed. Press Index "
    "channels in the Batch view to index them again.",
    "stop": "Stop",
    "stop_name": "Stop the batch",
    "save": "Save report",
    "asked": "Waiting for the network …",
    "progress": "Progress",
    "frame": "Report",
    "choose": "Choose images or a zip archive",
    "drop": "or drop them here",
    "examples": "Try it with the {count} examples",
    "show": "Explain {name} on the page",
    "clear": "Clear",
    "shown": "Selected files",
    "selected": ["1 file, {size} MB", "{count} files, {size} MB"],
    "sending": "{done} of {all} files uploaded …",
    "heavy": f"{{name}} has {{size}} MB, but at most {limits.FILE // limits.MB} MB are supported. Save a smaller file.",
    "many": TOO_MANY.replace("{most}", str(limits.BATCH)),
    "large": TOO_MUCH,
    "failed": "{name} could not be uploaded. Choose it again.",
}

STEPS: dict[str, str] = {
    "group": "Images of the batch",
    "previous": "Previous image",
    "next": "Next image",
    "close": "Close the batch",
    "at": "{number} of {count}: {name}",
}
"""Labels used by batch/steps.js."""


def indexed(done: int, total: int, counts: Mapping[str, int], title: str, layers: Sequence[str]) -> str:
    """Return the summary of a finished or stopped index."""
    read = counts["images"]
    count = f"{read} of {total} images" if read < total else plural(read, "image")
    text = f"{'Stopped: ' * (done < total)}{count} indexed for {title} at {', '.join(layers)}"
    if counts["unreadable"]:
        text += f"; {counts['unreadable']} could not be read"
    names = f" {plural(counts['named'], 'channel')} got a name from the labels." if counts["named"] else ""
    return f"{text}.{names} Channels shows the images to which each channel responds most."


def finished(done: int, total: int, unreadable: int, title: str, method: str) -> str:
    """Return the summary of a finished or stopped run."""
    read = done - unreadable
    count = f"{read} of {total} images" if read < total else plural(read, "image")
    text = f"{'Stopped: ' * (done < total)}{count} explained with {method} for {title}"
    return text + (f"; {unreadable} could not be read." if unreadable else ".")
