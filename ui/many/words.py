"""Every sentence of the tab."""

from __future__ import annotations

from typing import Any

from ui import limits

MANY = "Many pictures"
NONE = "Choose pictures, or a zip of them, first."
TOO_MANY = "These are {count} pictures; at most {most} are explained here. Leave some out, or use: hooklens explain."
EMPTY = "There is no picture in {names}. Choose photographs, or a zip of them."
DAMAGED = "{name} is no zip that can be read. Make it anew, or choose the pictures themselves."
MEGABYTES = limits.MANY_BYTES // limits.MB
TOO_MUCH = f"These files have more than {MEGABYTES} MB together. Leave some out, or use: hooklens explain."
LOCKED = "{name} is encrypted. Make a zip without a password."
TOO_LARGE = "{name} unpacks to more than {limit} MB. Choose fewer or smaller pictures."
LONG = (
    "{title} takes long for each picture. Choose one that is instant or takes about a second, or use: hooklens explain."
)
CLASSIFIER = "{title} finds things in a picture; reports are for networks that name the whole. Choose another network."
CHANNELS = "{title} takes {channels} channels, photographs have 3. Choose another network."
LENT = "This page is lent a processor for seconds at a time: too short for many pictures. Run the app on your machine."
STOPPED = "Stopped before the first pictures. Press Explain all to begin again."
UNKNOWN = "Internal error; the server's log has details. Press Explain all to try again."

TITLE = "What do the maps of many pictures have in common?"
TEXT = (
    "Every picture is explained by the network, method and layer that the page shows, for its predicted class. The "
    "report has mistakes, mean maps, and clusters of maps within a class: where shortcuts show. A zip of folders named "
    f"by class says what is right. Up to {limits.MANY} pictures, together at most {MEGABYTES} MB; "
    f"each file, a zip too, at most {limits.FILE // limits.MB} MB."
)

TERMS: dict[str, Any] = {
    "start": "Explain all",
    "stop": "Stop",
    "save": "Save report",
    "asked": "Waiting for the network …",
    "frame": "Report",
    "choose": "Choose pictures, or a zip",
    "drop": "or drop them here",
    "clear": "Clear",
    "shown": "What was chosen",
    "file": "file",
    "files": "files",
    "sending": "{done} of {all} files sent …",
    "heavy": f"{{name}} has {{size}} MB; at most {limits.FILE // limits.MB} MB are read. Save it smaller.",
    "many": TOO_MANY.replace("{most}", str(limits.MANY)),
    "large": TOO_MUCH,
    "failed": "{name} could not be sent. Choose it again.",
}


def going(done: int, total: int) -> str:
    """How far it is."""
    return f"{done} of {total} pictures explained"


def drawing(done: int, total: int) -> str:
    """How far the report is."""
    return f"Report: {done} of {total} pictures drawn"


def over(total: int, asked: int, unreadable: int, title: str, method: str) -> str:
    """The end."""
    text = f"{total} picture{'s' * (total != 1)} explained by {method} for {title}"
    text += f" of {asked}: stopped" if total < asked else ""
    return text + (f"; {unreadable} could not be read." if unreadable else ".")
