"""The messages of the server to the page."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

from saliscope.page.elements import Part, Props

Updates = dict[Part | str, Any]
"""New values by part, or by name of the state in store.js; "name.field" sets one field of it."""
_count = itertools.count(1)


def new_number() -> int:
    """Return a new number of an answer or a message, larger than all previous ones."""
    return next(_count)


def base64_text(data: bytes) -> str:
    """Return bytes as text in base64, as `bytes` in wire.js reads them."""
    return base64.b64encode(data).decode("ascii")


def pack(updates: Updates, question: int | None = None) -> str:
    """Return a message as JSON: new props by part, and of the state; `question` is the number of its question."""
    props, state = {}, {}
    for key, value in updates.items():
        if isinstance(key, str):
            state[key] = value
        else:
            props[key.id] = value if isinstance(value, Props) else {"value": value}
    message = {"id": new_number(), "question": question, "props": props, "state": state}
    return json.dumps(message, separators=(",", ":"), allow_nan=False)
