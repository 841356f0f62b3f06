"""The settings of one question, by the names on the page. Links make theirs in `ui/share/links.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ui import words
from ui.engine import model_cache
from ui.engine.messages import Refused
from ui.serving import bands, uploads
from ui.serving import words as api_words

NAMES = ("model", "layer", "target", "method")
"""The settings that are names, in the order of the page and of links."""
LONGEST = 200  # characters of a name
MOST_OPTIONS = 50


@dataclass(frozen=True)
class Request:
    """What a visitor asks for; empty means the default."""

    picture: str | None = None
    model: str = ""
    layer: str = ""
    target: str = ""
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    forgiving: bool = False
    """Unknown names become the default without a note."""
    plane: int | None = None
    """The plane of a method that gives several; None for the one with the largest norm."""
    bands: str = ""
    """The bands of a picture to show as red, green and blue: "3,2,1"; "3,2,1 of 5" holds for five bands alone."""

    kept: bool = False
    """Whether an answer that was computed before will do."""

    @property
    def signature(self) -> str:
        """Equal for questions with the same answer."""
        settings = [self.picture, *(getattr(self, name) for name in NAMES), self.options, self.bands]
        return json.dumps(settings, sort_keys=True, default=str)


def from_form(picture: str | None, *values: Any) -> Request:
    """The page's form: the picture, then `NAMES`, the bands' component where there is one, the options' component.

    Errors   Refused for a picture that is not an upload of this server, or for numbers that cannot be
    """
    names, (*picker, form) = values[: len(NAMES)], values[len(NAMES) :]
    named = {name: value or "" for name, value in zip(NAMES, names, strict=True)}
    picked = picker[0].get("text") if picker and isinstance(picker[0], dict) else None
    form = form if isinstance(form, dict) else {}
    options, wrong = form.get("values"), form.get("wrong")
    if isinstance(wrong, dict) and wrong:
        raise Refused(words.wrong_numbers(wrong))
    return Request(
        None if picture is None else _uploaded(picture),
        **named,
        bands=picked if isinstance(picked, str) and len(picked) <= LONGEST else "",
        options=options if isinstance(options, dict) else {},
        kept=True,
        # After a change of model, the form may still hold layer and class names of the previous one.
        forgiving=bool(form.get("model")) and form["model"] != (named["model"] or model_cache.first_model()),
    )


def from_api(image: Any = None, options: Any = None, **names: Any) -> Request:
    """A program's arguments, of any type: gradio checks none of them. `image` is a `FileData` or its dictionary.

    Errors   Refused
    """
    picture = None if image is None else _picture(image)
    return Request(picture, **{name: _name(name, value) for name, value in names.items()}, options=_object(options))


def split(changes: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The names and the options among the settings that a click or a remedy changes."""
    changes = changes if isinstance(changes, dict) else {}
    names = {name: changes[name] for name in NAMES if isinstance(changes.get(name), str)}
    return names, {name: value for name, value in changes.items() if name not in NAMES}


def _picture(image: Any) -> str:
    """The path of an uploaded file."""
    path = image.get("path") if isinstance(image, dict) else getattr(image, "path", None)
    if not isinstance(path, str):
        raise Refused(words.UPLOAD_A_FILE)
    return _uploaded(path)


def _uploaded(path: str) -> str:
    """The uploaded file; of a preview, the file that it shows."""
    return str(bands.original(uploads.inside_uploads(path)))


def _name(argument: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > LONGEST:
        raise Refused(api_words.no_text(argument, value, LONGEST))
    return value


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError):
            raise Refused(api_words.NO_OBJECT) from None
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MOST_OPTIONS:
        raise Refused(api_words.NO_OBJECT)
    return value
