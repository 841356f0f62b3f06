"""The server part of a bundle: the image without metadata, hashes and versions. The page adds maps and figures.

The server keeps no state between an answer and its bundle. The page sends back the record of the answer (`record`), and
its current image must be the explained image.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

from saliscope.compute import engine
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import Settings
from saliscope.compute.bundles import links, messages, record
from saliscope.compute.request import Request, from_api
from saliscope.errors import Refused
from saliscope.images import uploads
from saliscope.images.decoder import pool
from saliscope.images.pixels import pixel_hash

MOST = 4
"""Maximum number of maps in a bundle."""


def parse_question(question: Any) -> Request:
    """Return the request of a question in a bundle, which may come from an untrusted file.

    Errors   Refused
    """
    if not isinstance(question, dict):
        raise Refused(messages.NO_QUESTION)
    names = {name: question.get(name) for name in ("model", "layer", "method", "bands")}
    return from_api(None, question.get("options"), target=question.get("class"), **names)


def request(question: Any, image: str, second: str | None = None) -> Request:
    """Return the request of a question for this image; `second` is the second image of its edit.

    Errors   Refused
    """
    plane, edit = question.get("plane"), question.get("edit")
    if not isinstance(edit, (str, NoneType)):
        raise Refused(messages.NO_QUESTION)
    more: dict[str, Any] = {"edit": edit or "", "second": second if edit else None}
    return replace(parse_question(question), image=image, plane=plane if type(plane) is int else None, **more)


def resolve_settings(question: Any) -> Settings:
    """Return the settings of a question.

    Errors   Refused for unknown names
    """
    parsed = parse_question(question)
    settings = engine.resolve(parsed)
    if notes := [*settings.notes, *links.unknown_options(settings, parsed)]:
        raise Refused(page_messages.without_default(notes[0]))
    return settings


def server_part(records: Any, image: str | None, folder: Path, second: str | None = None) -> dict[str, Any]:
    """Return the server part of a bundle for these records; the image is written to the folder.

    `second` is the path of the second image of an edit, which is written as well if a record uses it.

    Errors   Refused if the image or the second image is not that of the answer
    """
    if image is None or not isinstance(records, list) or not 0 < len(records) <= MOST:
        raise Refused(messages.NOT_SHOWN)
    path = image
    weights, channels, uses_second = {}, 3, False
    for entry in records:
        question = entry.get("question") if isinstance(entry, dict) else None
        settings = resolve_settings(question)
        _, full_image, _ = engine.load_input(settings, request(question, path))
        stored_input = entry.get("input")
        if not isinstance(stored_input, dict) or stored_input.get("sha256") != pixel_hash(
            settings.loaded.model.crop(full_image)
        ):
            raise Refused(messages.NOT_SHOWN)
        if known := stored_input.get("second_sha256"):
            uses_second = True
            if second is None or known != _crop_hash(settings, second):
                raise Refused(messages.NOT_SHOWN)
        weights[settings.loaded.name] = record.weights(settings.loaded)
        channels = settings.loaded.model.channels
    entry, upload = _write_image(path, "photograph", channels, folder)
    more: dict[str, Any] = {}
    if uses_second and second is not None:
        more["second"], more["second_upload"] = _write_image(second, "second", channels, folder)
    return {
        "format": record.FORMAT,
        "version": record.VERSION,
        "photograph": entry,
        **more,
        "weights": weights,
        "versions": record.versions(),
        "upload": upload,
    }


def _crop_hash(settings: Settings, path: str) -> str:
    return pixel_hash(settings.loaded.model.crop(pool.open_image(uploads.read(path))))


def _write_image(path: str, name: str, channels: int, folder: Path) -> tuple[dict[str, Any], str]:
    """Write an image without metadata to the folder; return its entry in the index, and its path."""
    data = uploads.read(path)
    stripped = pool.strip_metadata(data, channels)
    target = folder / f"tmp{secrets.token_hex(32)}{stripped.suffix}"
    target.write_bytes(stripped.data)
    entry = {
        "file": f"{name}{stripped.suffix}",
        "sha256": hashlib.sha256(stripped.data).hexdigest(),
        "uploaded_sha256": hashlib.sha256(data).hexdigest(),
        "note": messages.SAVED_IMAGE[stripped.same_file],
    }
    return entry, str(target)
