"""The argument `image` of a tool: an example's name, base64, a data URL, or a path of this machine."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from gradio.data_classes import FileData

from saliscope import limits
from saliscope.compute.messages import short
from saliscope.errors import Refused
from saliscope.images import examples, npy, uploads
from saliscope.page.agents import messages

STORED = "image.png"
"""The file name of a stored image; the format follows from its content."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".npy")
"""Suffixes of the files that a path may name. No other file is read."""
LONGEST_PATH = 1024  # characters
LONGEST_NAME = 64  # characters of what may be a misspelled example rather than base64
PATH = re.compile(r"[/\\~]|\.{1,2}[/\\]|[A-Za-z]:[/\\]|file:", re.IGNORECASE)
"""How a path starts. A relative path may also be recognized by its suffix."""
LINK = re.compile(r"(https?|ftp|s3|gs)://", re.IGNORECASE)
URL_SAFE = str.maketrans("-_", "+/")
EXAMPLE_PATH = "C:\\photos\\dog.jpg" if os.name == "nt" else "/home/me/dog.jpg"


def read_image(text: str, *, local: bool) -> FileData:
    """Store the image that an agent names, in the folder from which the page reads and deletes images.

    `local` is whether the agent runs on this machine: otherwise, no path is looked at.

    Errors   Refused if the example or file does not exist, or if the text is not an image
    """
    text = text.strip()
    example = examples.all_examples().get(text)
    return _store(example.path.read_bytes() if example else _bytes(text, local=local))


def _bytes(text: str, *, local: bool) -> bytes:
    """Return the content of an image file. Base64 may start with "/" like a path, so it is tried first."""
    if text[:5].lower() == "data:":
        return _from_data_url(text)
    if LINK.match(text):
        raise Refused(messages.NO_LINKS)
    data = _decode(text)
    if data is not None and is_image(data):
        return data
    if len(text) <= LONGEST_PATH and (PATH.match(text) or text.lower().endswith(SUFFIXES)):
        if not local:
            raise Refused(messages.NO_PATHS.format(examples=", ".join(examples.all_examples())))
        return _read(text)
    if len(text) <= LONGEST_NAME:
        raise Refused(messages.unknown_image(text, examples.all_examples()))
    if not data:
        raise Refused(no_base64())
    return data  # the decoder says what it is


def is_image(data: bytes) -> bool:
    """Return whether a file starts like an image of a supported format, or like an array of bands."""
    return uploads.is_supported(data) or data.startswith(npy.START)


def no_base64() -> str:
    """Return the message for a text that is not base64."""
    return messages.NO_BASE64.format(most=limits.FILE // limits.MB)


def _decode(text: str) -> bytes | None:
    """Return what base64 encodes, with or without padding, or None if the text is not base64."""
    compact = "".join(text.split()).translate(URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True)
    except ValueError:
        return None


def _from_data_url(text: str) -> bytes:
    head, comma, content = text.partition(",")
    data = _decode(unquote(content)) if comma and head.lower().endswith(";base64") else None
    if not data:
        raise Refused(no_base64())
    return data


def _read(text: str) -> bytes:
    """Return the content of an image file of this machine, by its absolute path or file: URL.

    Nothing else is opened: the name must be that of an image, and the content must be one.
    """
    path = _path(text)
    shown = short(text, LONGEST_PATH)
    if not path.lower().endswith(SUFFIXES):
        raise Refused(messages.NO_SUFFIX.format(path=shown, suffixes=", ".join(SUFFIXES)))
    if not os.path.isabs(path) or path.startswith(("//", "\\\\")):  # the latter are shares of other machines
        raise Refused(messages.RELATIVE.format(path=shown, example=EXAMPLE_PATH))
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise Refused(messages.NO_FILE.format(path=shown))
    data = uploads.read(path)
    if not is_image(data):
        raise Refused(messages.NO_IMAGE_FILE.format(path=shown))
    return data


def _path(text: str) -> str:
    if text[:5].lower() != "file:":
        return os.path.expanduser(text)
    try:
        parts = urlsplit(text)
    except ValueError:
        return text
    return url2pathname(parts.path) if parts.hostname in (None, "", "localhost") else text


def _store(data: bytes) -> FileData:
    """Store an image in one step, because another call may read the same file at the same time."""
    if len(data) > limits.FILE:
        raise Refused(uploads.too_large_file(len(data)))
    uploaded = uploads.upload_folder()
    path = uploaded / hashlib.sha256(data).hexdigest() / STORED
    path.parent.mkdir(parents=True, exist_ok=True)
    written = uploaded / f"tmp{secrets.token_hex(16)}"
    written.write_bytes(data)
    written.replace(path)
    return FileData(path=str(path), orig_name=STORED)
