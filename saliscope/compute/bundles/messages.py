"""Messages about links and bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saliscope.compute.messages import short
from saliscope.compute.text_messages import similarity
from saliscope.names import did_you_mean
from saliscope.percentages import percent

if TYPE_CHECKING:
    from saliscope.compute.answers import Settings

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


def caption(record: dict[str, Any]) -> list[str]:
    """Return the caption of a saved figure: method, class, layer and model, then the options if there are any."""
    question, answer = record["question"], record["answer"]
    text, probability = answer["title"], answer["probability"]
    if answer["reads_class"]:
        values = "" if probability is None else f" ({percent(probability)})"
        if answer.get("similarities"):
            values = f" (cosine {similarity(answer['similarities'])})"
        text += f" for {answer.get('subject', question['class'])}{values}"
    if answer["takes_layer"]:
        text += f" at layer {question['layer']}"
    text += f" of {answer['model']}"
    if question["plane"] is not None:
        text += f", plane {question['plane']}"
    if question.get("edit"):
        text += ", after an edit of the image"
    if answer["share"] < 1:
        text += f", stopped at {100 * answer['share']:.0f}%"
    text += f", computed on {answer['device']}"
    options = ", ".join(f"{name.replace('_', ' ')} {_option(value)}" for name, value in question["options"].items())
    return [f"{text}.", *([f"Options: {options}."] if options else [])]


def _option(value: Any) -> str:
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:.12g}" if isinstance(value, float) else str(value)
    )


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


def image_line(matches: bool) -> str:
    """Return the line that tells whether the image has the stored hash."""
    return f"Image       {'hash matches' if matches else 'hash mismatch: this is not the image that was explained'}"


def heading(name: str, settings: Settings, question: Any) -> str:
    """Return the line that names the recomputed map."""
    target = f" for {short(str(question.get('class')))}" if settings.method.reads_class else ""
    layer = f" at {settings.layer}" if settings.takes_layer else ""
    text = f"{settings.method.title}{target}{layer} of {settings.loaded.title}"
    return f"\n{short(name)}: {text}" if name else f"Recomputing {text}"


def weights(match: bool, title: str) -> str:
    """Return the line that tells whether the weights have the stored hash."""
    return f"Weights     {'hash matches' if match else f'hash mismatch: {title} has different weights here'}"


def shapes(one: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return the line for two maps of different sizes."""
    stored, now = (" x ".join(map(str, shape)) for shape in (one, other))
    return f"Map         {stored} in the bundle, {now} now: different"


def difference(largest: float, size: float, equal: bool, exact: bool) -> str:
    """Return the line that compares the values of the two maps."""
    verdict = "bitwise equal" if exact else "equal within rounding" if equal else "different"
    return f"Map         largest difference {largest:.3g} for values up to {size:.3g}: {verdict}"


def device(then: Any, now: str) -> str:
    """Return the line for a map that another device computed, or an empty string."""
    return f"Device      {short(str(then))} then, {now} now" if then and then != now else ""


def versions(then: dict[str, str], now: dict[str, str]) -> str:
    """Return the line with the versions that differ, or an empty string."""
    changed = [
        f"{name} {short(value)} then, {now.get(name, 'none')} now"
        for name, value in then.items()
        if now.get(name) != value
    ]
    return f"Versions    {'; '.join(changed)}" if changed else ""


def no_option(method: str, unknown: list[str], near: list[str], known: list[str]) -> str:
    """Return the message for options in a link or an API call that the method does not have."""
    names = ", ".join(f"“{short(name)}”" for name in unknown[:3]) + (" and more" if len(unknown) > 3 else "")
    plural = "options" if len(unknown) > 1 else "option"
    available = f"Available: {', '.join(known)}." if known else "It has no options."
    return f"{method} has no {plural} {names}. {did_you_mean(near)}{available}"
