"""JSON bodies: what Gradio would accept unchecked."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, NoReturn

from saliscope import limits
from saliscope.page.serving.door import uploads
from saliscope.page.serving.door.bodies import TOO_DEEP
from saliscope.page.serving.door.refusals import Refusal

BAD_JSON = "The request body is not valid JSON."
NO_FILE = "Unknown file. Upload the image first."
NO_LINKS = "Links are not supported. Download the image and upload the file."
BAD_SESSION = "Invalid session name."
SESSION = re.compile(rf"[A-Za-z0-9_-]{{0,{limits.SESSION_NAME}}}")


def check_json(text: bytes, *, agents: bool = False) -> Any:
    """Parse and check a JSON body. Agents may send images as data, which `uploads` decodes.

    Errors   Refusal 400: invalid JSON, NaN or infinity, too deep, too many values, lone surrogates, files without
             Gradio's marker. Refusal 403: links instead of files.
    """
    if not text:
        return None
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refusal(400, BAD_JSON) from None
    if isinstance(value, dict) and not agents:
        name = value.get("session_hash")
        if name is not None and not (isinstance(name, str) and SESSION.fullmatch(name)):
            raise Refusal(400, BAD_SESSION)
    _walk(value, files=not agents)
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _walk(root: object, *, files: bool) -> None:
    """Check every value, depth first, without recursion, because the depth is not trusted."""
    stack, count = [(root, 1)], 0
    while stack:
        value, depth = stack.pop()
        count += 1
        if depth > limits.JSON_DEPTH or count > limits.JSON_ITEMS:
            raise Refusal(400, TOO_DEEP)
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, float) and not math.isfinite(value):  # 1e999
            raise Refusal(400, BAD_JSON)
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)
        elif isinstance(value, dict):
            if files:
                _check_file(value)
            stack.extend((item, depth + 1) for pair in value.items() for item in pair)


def _check_text(text: str) -> None:
    """Refuse lone surrogates, which cannot be encoded."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refusal(400, BAD_JSON) from None


def _check_file(value: dict[str, Any]) -> None:
    """Refuse file objects that Gradio does not check: only plain paths of uploads are allowed, without a URL."""
    url = value.get("url")
    if isinstance(url, str) and url.lstrip().lower().startswith("data:"):
        raise Refusal(400, NO_FILE)
    if "path" not in value:
        return
    path, meta = value["path"], value.get("meta")
    if isinstance(path, str) and "://" in path:
        raise Refusal(403, NO_LINKS)
    if not isinstance(path, str) or not isinstance(meta, dict) or meta.get("_type") != "gradio.FileData":
        raise Refusal(400, NO_FILE)
    if not all(isinstance(value.get(name), str | None) for name in ("url", "orig_name", "mime_type")):
        raise Refusal(400, NO_FILE)
    if not _is_uploaded(path):  # Gradio also refuses it, but without a message
        raise Refusal(403, NO_FILE)
    uploads.touch(path)


def _is_uploaded(path: str) -> bool:
    try:
        return os.path.realpath(path).startswith(uploads.folder() + os.sep)
    except (OSError, ValueError):  # invalid file names
        return False
