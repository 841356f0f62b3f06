"""Messages about links and bundles."""

from __future__ import annotations

from typing import Any

from saliscope.compute.messages import short
from saliscope.names import did_you_mean

GONE = (
    "The image of this link was uploaded by a user, and this browser no longer has it. Choose the file again or "
    "choose an example. The other settings were restored."
)

SHARED = (
    "This link is about an image of the person who shared it, and links do not contain images. Choose an image or "
    "an example."
)

NOT_HERE = (
    "The image of this link is not available on this server. Choose its file, or start the app with its run "
    "(--run FOLDER). The other settings were restored from the link."
)


LATER_LINK = (
    "The link was created by a later version of Saliscope, so the defaults are used. Update Saliscope to open the link."
)


def damaged(names: list[str]) -> str:
    """Return the note on parameters of a link that are ignored."""
    return f"The link is damaged: {', '.join(names)} cannot be read, so the defaults are used. Copy the link again."


NO_QUESTION = "The bundle does not specify which map to compute. Download it again."
NOT_SHOWN = "The image has changed since this map was computed. Press Explain and save again."
SAVED_IMAGE = {
    True: "The original file without metadata (location, time, camera, comments). The pixels are unchanged.",
    False: "The pixels of the original file, re-encoded because its format has metadata that cannot be removed.",
}

SAVE: dict[str, Any] = {
    "save": "Save",
    "preparing": "Preparing…",
    "png": ["Figure, PNG", "Image, map, color bar and caption"],
    "svg": ["Figure, SVG", "The same figure as SVG, with editable text and contours"],
    "pdf": ["Figure, PDF", "The same figure as PDF, with text and contours as vector graphics"],
    "copy": ["Copy figure", "The figure as an image for the clipboard"],
    "bibtex": ["Copy BibTeX", "The papers of the method, for the clipboard"],
    "map": ["Map only, PNG", "Transparent where values are small"],
    "shown": ["As shown, PNG", "At the resolution of the image"],
    "values": ["Values, .npy", "The raw map, float32"],
    "bundle": ["Bundle, zip", "Image, raw map, figure and all parameters, for use with `saliscope replay`"],
    "stopped": "A stopped map depends on the elapsed time, so it cannot be recomputed.",
    "options": {
        "title": "Settings of figures",
        "fields": {
            "width": ["Width", "mm"],
            "dpi": ["Resolution", "dpi"],
            "letters": ["Panel letters", ""],
            "caption": ["Caption", ""],
        },
    },
    "copied": "Copied.",
    "not_copied": "This browser did not allow copying. Save the file instead.",
    "no_paper": "No paper is known for this method.",
    "not_ready": "The page is not ready yet. Open the Explain view and try again.",
    "no_image": "The image could not be downloaded. Try again.",
}
"""Labels and messages used by page/share/."""


# Replaying a bundle

NO_BUNDLE = (
    "This is not a Saliscope bundle, or it was modified: its files or its bundle.json do not have the expected format."
)
DAMAGED = "The zip archive is damaged or incomplete. Download the bundle again."
TOO_LARGE = "A file in the zip archive exceeds the size limit of a bundle, so the archive was not read."
OTHER_VERSION = "The bundle was created by a later version of Saliscope. Update Saliscope to replay it."
STOPPED = "This map is incomplete because its run was stopped. It depends on the elapsed time and cannot be recomputed."
NOTHING = "The network detects nothing in the image of the bundle, so there is no map to compare."
CHANGED = "Map         hash mismatch: the stored map was modified"
FAILED = "The bundle could not be replayed because of an internal error. See the log for details."


def no_file(path: str) -> str:
    """Return the message for a missing file."""
    return f"File not found: “{short(path, 200)}”."


def no_option(method: str, unknown: list[str], near: list[str], known: list[str]) -> str:
    """Return the message for options in a link or an API call that the method does not have."""
    names = ", ".join(f"“{short(name)}”" for name in unknown[:3]) + (" and more" if len(unknown) > 3 else "")
    plural = "options" if len(unknown) > 1 else "option"
    available = f"Available: {', '.join(known)}." if known else "It has no options."
    return f"{method} has no {plural} {names}. {did_you_mean(near)}{available}"
