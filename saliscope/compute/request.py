"""The settings of one request. `saliscope/compute/bundles/links.py` creates requests from links."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saliscope.compute import api_messages, messages
from saliscope.errors import Refused
from saliscope.images import examples, uploads

NAMES = ("model", "layer", "target", "method")
"""The settings that are names, in the order of the page and of links."""
EXAMPLE = "example:"
"""The start of an image of the page that is an example; its name follows."""
LONGEST = 500  # characters of a name, or of two sentences
MOST_OPTIONS = 50


@dataclass(frozen=True)
class Request:
    """The settings of one request; empty values mean the default."""

    image: str | None = None
    model: str = ""
    layer: str = ""
    target: str = ""
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    lenient: bool = False
    """Whether unknown names are replaced by the default without a note."""
    form_model: str = field(default="", compare=False)
    """The model whose names a form has. After a change of model, `engine.resolve` makes the request lenient."""
    plane: int | None = None
    """The plane of a method that returns several; None for the plane with the largest norm."""
    bands: str = ""
    """The bands to show as red, green and blue: "3,2,1"; "3,2,1 of 5" only applies to images with five bands."""
    edit: str = ""
    """An edit of the image, see `saliscope/compute/erase/edit.py`; only `compute/erase/engine.py` applies it."""
    second: str | None = None
    """The path of the image that fills the region of an edit."""

    use_cache: bool = False
    """Whether a cached answer can be used."""

    @property
    def size(self) -> int | None:
        """The size of the image file in bytes, or None without an image."""
        with contextlib.suppress(OSError, ValueError):
            return os.path.getsize(self.image) if self.image else None
        return None


def from_form(form: Mapping[str, Any]) -> Request:
    """Return the request of the settings that the page shows.

    `form` has the image ("example:NAME", or the path of an upload), `NAMES`, the bands as text, and the options:
    {"values": by name, "wrong": what is not a number, "model": the one of its lists}.

    Errors   Refused for an image that is neither an example nor an upload of this server, or for invalid numbers
    """
    image, bands_text, given = form.get("image"), form.get("bands"), form.get("options")
    names: dict[str, Any] = {name: form[name] for name in NAMES if isinstance(form.get(name), str)}
    listed = given if isinstance(given, dict) else {}
    options, wrong = listed.get("values"), listed.get("wrong")
    if isinstance(wrong, dict) and wrong:
        raise Refused(messages.wrong_numbers(wrong))
    return Request(
        None if not image else _shown(image),
        **names,
        bands=bands_text if isinstance(bands_text, str) and len(bands_text) <= LONGEST else "",
        options=options if isinstance(options, dict) else {},
        use_cache=True,
        form_model=str(listed.get("model") or ""),
    )


def from_api(image: Any = None, options: Any = None, **names: Any) -> Request:
    """Return the request of an API call; gradio does not check the types of its arguments.

    `image` is a `FileData` or its dictionary.

    Errors   Refused
    """
    image = None if image is None else _image(image)
    checked: dict[str, Any] = {name: _name(name, value) for name, value in names.items()}
    return Request(image, **checked, options=_object(options))


def second_image(value: Any) -> str | None:
    """Return the path of a second image: {"example": id} or {"file": path of an upload}; None for anything else.

    Errors   Refused for a file that is not an upload of this server, and for an unknown example
    """
    if not isinstance(value, dict):
        return None
    if "example" in value:
        example = examples.all_examples().get(str(value["example"]))
        if example is None:
            raise Refused(messages.NO_EXAMPLE)
        return str(example.path)
    return uploaded(value["file"]) if isinstance(value.get("file"), str) else None


def parse_cell(value: Any) -> tuple[int, int] | None:
    """Return a cell (row, column) that a script sent, or None for anything else."""
    fits = isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)
    return (value[0], value[1]) if fits else None


def _image(image: Any) -> str:
    """Return the path of an uploaded file."""
    path = image.get("path") if isinstance(image, dict) else getattr(image, "path", None)
    if not isinstance(path, str):
        raise Refused(messages.UPLOAD_A_FILE)
    return uploaded(path)


def _shown(image: Any) -> str:
    """Return the path of the image that the page shows: of an example, or of an upload."""
    if not isinstance(image, str) or not image.startswith(EXAMPLE):
        return uploaded(image)
    example = examples.all_examples().get(image.removeprefix(EXAMPLE))
    if example is None:
        raise Refused(messages.UPLOAD_A_FILE)
    return str(example.path)


def uploaded(path: Any) -> str:
    """Return the path of an upload.

    Errors   Refused for anything else
    """
    return str(uploads.inside_uploads(path))


def _name(argument: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > LONGEST:
        raise Refused(api_messages.invalid_text(argument, value, LONGEST))
    return value


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError):
            raise Refused(api_messages.INVALID_OPTIONS) from None
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MOST_OPTIONS:
        raise Refused(api_messages.INVALID_OPTIONS)
    return value
