"""The second image of an edit, as a script or a bundle refers to it."""

from __future__ import annotations

from typing import Any

from saliscope.compute.erase import messages
from saliscope.errors import Refused
from saliscope.images import examples, uploads


def second_image(value: Any) -> str | None:
    """Return the path of the second image: {"example": id} or {"file": path of an upload}; None for anything else.

    Errors   Refused for a file that is not an upload of this server, and for an unknown example
    """
    if not isinstance(value, dict):
        return None
    if "example" in value:
        example = examples.all_examples().get(str(value["example"]))
        if example is None:
            raise Refused(messages.NO_EXAMPLE)
        return str(example.path)
    file = value.get("file")
    return str(uploads.inside_uploads(file)) if isinstance(file, str) else None
