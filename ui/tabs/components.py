"""Component subclasses, and `canvas`: a component drawn by a script of ui/static/."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr
from gradio.data_classes import ImageData

from ui import words


class Picture(gr.Image):
    """A picture that stays a file: nothing is decoded here, `serving/uploads.py` does that."""

    is_template = True  # the browser would look for a component called "picture" otherwise

    def preprocess(self, payload: ImageData | None) -> str | None:
        """The path of the uploaded file, or None; a picture inside the message is refused."""
        if payload is None:
            return None
        if not payload.path:
            raise gr.Error(words.UPLOAD_A_FILE, print_exception=False)
        return payload.path


class Choice(gr.Dropdown):
    """A drop-down list that does not rely on the server remembering what it offered: `engine` checks every name."""

    is_template = True

    def preprocess(self, payload: Any) -> str | None:
        """The chosen name as it came, or None; anything but one name is refused."""
        if payload is None or isinstance(payload, str):
            return payload
        raise gr.Error(words.CHOOSE_ONE, print_exception=False)


class Named(gr.HTML):
    """A choice that a script draws: its value is a name, what there is to choose from comes in its props."""

    is_template = True

    def preprocess(self, payload: Any) -> str | None:
        """The name as it came, or None for anything else: `engine` checks every name."""
        return payload if isinstance(payload, str) else None

    def postprocess(self, value: Any) -> str | None:
        """The name."""
        return value if isinstance(value, str) else None


class Canvas(gr.HTML):
    """A component whose content a script draws. Its value travels as one JSON string.

    Gradio sends a generator's steps as differences and applies them in place, to the very object that the script holds:
    a dictionary would change, or lose fields, while the script uses it. A string cannot.
    """

    def preprocess(self, payload: Any) -> Any:
        """The value that the script has set; None for what is not JSON."""
        if not isinstance(payload, str):
            return None
        try:
            return json.loads(payload)
        except (ValueError, RecursionError):
            return None

    def postprocess(self, value: Any) -> str | None:
        """The value as JSON."""
        return None if value is None else json.dumps(value, separators=(",", ":"), allow_nan=False)


def canvas(module: str, elem_id: str, *, value: Any = None, **props: Any) -> Canvas:
    """A component that `static/<module>.js` draws ("rail/network"); the data come in `value`, fixed words in `props`.

    Its script may raise the events "select", "submit" and "focus".
    """
    script = (
        "import(new URL('hl/wire.js', document.baseURI))"
        f".then((wire) => wire.start('{module}', element, props, trigger, watch))"
    )
    return Canvas(
        value=value,
        html_template=f"<div class='hl-{module.rpartition('/')[2]}'></div>",
        js_on_load=script,
        apply_default_css=False,
        elem_id=elem_id,
        **props,
    )
