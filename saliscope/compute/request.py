"""The settings of one request. `saliscope/compute/bundles/links.py` creates requests from links."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import Any

from saliscope.compute import api_messages, messages
from saliscope.errors import Refused
from saliscope.images import bands, uploads

NAMES = ("model", "layer", "target", "method")
"""The settings that are names, in the order of the page and of links."""
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
    """An edit of the image, see `saliscope/images/edits/edit.py`; only `session/erase/engine.py` applies it."""
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

    @property
    def signature(self) -> str:
        """A text that is equal for requests with the same answer."""
        settings = [self.image, *(getattr(self, name) for name in NAMES), self.options, self.bands]
        settings += [self.edit, self.second] if self.edit else []
        return json.dumps(settings, sort_keys=True, default=str)


def from_form(image: str | None, *values: Any) -> Request:
    """Return the request of the form: the image, `NAMES`, the bands component (if any) and the options component.

    Errors   Refused for an image that is not an upload of this server, or for invalid numbers
    """
    names, (*picker, form) = values[: len(NAMES)], values[len(NAMES) :]
    names_by_field: dict[str, Any] = {name: value or "" for name, value in zip(NAMES, names, strict=True)}
    bands_text = picker[0].get("text") if picker and isinstance(picker[0], dict) else None
    form = form if isinstance(form, dict) else {}
    options, wrong = form.get("values"), form.get("wrong")
    if isinstance(wrong, dict) and wrong:
        raise Refused(messages.wrong_numbers(wrong))
    return Request(
        None if image is None else _uploaded(image),
        **names_by_field,
        bands=bands_text if isinstance(bands_text, str) and len(bands_text) <= LONGEST else "",
        options=options if isinstance(options, dict) else {},
        use_cache=True,
        form_model=str(form.get("model") or ""),
    )


def from_api(image: Any = None, options: Any = None, **names: Any) -> Request:
    """Return the request of an API call; gradio does not check the types of its arguments.

    `image` is a `FileData` or its dictionary.

    Errors   Refused
    """
    image = None if image is None else _image(image)
    checked: dict[str, Any] = {name: _name(name, value) for name, value in names.items()}
    return Request(image, **checked, options=_object(options))


def split(changes: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """Split the settings changed by a click or a remedy into names and options."""
    changes = changes if isinstance(changes, dict) else {}
    names = {name: changes[name] for name in NAMES if isinstance(changes.get(name), str)}
    return names, {name: value for name, value in changes.items() if name not in NAMES}


def _image(image: Any) -> str:
    """Return the path of an uploaded file."""
    path = image.get("path") if isinstance(image, dict) else getattr(image, "path", None)
    if not isinstance(path, str):
        raise Refused(messages.UPLOAD_A_FILE)
    return _uploaded(path)


def _uploaded(path: str) -> str:
    """Return the path of an upload; for a preview, the path of the original file."""
    return str(bands.original(uploads.inside_uploads(path)))


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
