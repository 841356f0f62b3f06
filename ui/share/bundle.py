"""The server's part of a bundle: the photograph without metadata, hashes, versions. The page adds map and figure.

Nothing is kept between an answer and its bundle: the page sends back what the answer said of itself (`record`), and the
picture that it has now must be the one that was explained.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from ui.engine import engine
from ui.engine.messages import Refused, Settings
from ui.engine.request import Request, from_api
from ui.serving import bands, uploads
from ui.share import links, photograph, record, words

MOST = 4
"""Maps of one photograph in a bundle."""


def asked(question: Any) -> Request:
    """The request of a bundle's question, of any type: it may come from anybody's file.

    Errors   Refused
    """
    if not isinstance(question, dict):
        raise Refused(words.NO_QUESTION)
    names = {name: question.get(name) for name in ("model", "layer", "method", "bands")}
    return from_api(None, question.get("options"), target=question.get("class"), **names)


def request(question: Any, picture: str) -> Request:
    """The same about this picture.

    Errors   Refused
    """
    plane = question.get("plane")
    return replace(asked(question), picture=picture, plane=plane if type(plane) is int else None)


def settled(question: Any) -> Settings:
    """Its settings, all of them known here.

    Errors   Refused for names that are unknown here
    """
    named = asked(question)
    settings = engine.resolve(named)
    if notes := [*settings.notes, *links.unknown_options(settings, named)]:
        raise Refused(notes[0].split(" Shown instead")[0])
    return settings


def part(records: Any, picture: str | None, folder: Path) -> dict[str, Any]:
    """What the page adds to the maps of these records; the photograph is written to the folder.

    Errors   Refused where the picture is not the one that was explained
    """
    if picture is None or not isinstance(records, list) or not 0 < len(records) <= MOST:
        raise Refused(words.NOT_SHOWN)
    path = str(bands.original(uploads.inside_uploads(picture)))
    weights, channels = {}, 3
    for each in records:
        question = each.get("question") if isinstance(each, dict) else None
        settings = settled(question)
        _, photo, _ = engine.opened(settings, request(question, path))
        seen = each.get("input")
        if not isinstance(seen, dict) or seen.get("sha256") != record.pixels(settings.loaded.model.crop(photo)):
            raise Refused(words.NOT_SHOWN)
        weights[settings.loaded.name] = record.weights(settings.loaded)
        channels = settings.loaded.model.channels
    data = Path(path).read_bytes()
    travels = photograph.plain(data, channels)
    target = folder / f"tmp{secrets.token_hex(32)}{travels.suffix}"
    target.write_bytes(travels.data)
    return {
        "format": record.FORMAT,
        "version": record.VERSION,
        "photograph": {
            "file": f"photograph{travels.suffix}",
            "sha256": hashlib.sha256(travels.data).hexdigest(),
            "uploaded_sha256": hashlib.sha256(data).hexdigest(),
            "note": words.TRAVELS[travels.same_file],
        },
        "weights": weights,
        "versions": record.versions(),
        "upload": str(target),
    }
