"""The few component subclasses, and `canvas`: a component that is drawn by one of our own scripts."""

from __future__ import annotations

from typing import Any

import gradio as gr
from gradio.data_classes import ImageData

from ui import words


class Picture(gr.Image):
    """A picture that stays a file: nothing is decoded here, `uploads.py` does that."""

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


def canvas(module: str, elem_id: str, *, value: Any = None, **props: Any) -> gr.HTML:
    """A component whose inside belongs to `static/<module>.js`; the data come in `value`, fixed words in `props`.

    Its script may raise the events "select", "submit" and "focus".
    """
    script = (
        f"import(new URL('hl/{module}.js', document.baseURI))"
        ".then((module) => module.mount(element, props, trigger, watch))"
    )
    return gr.HTML(
        value=value,
        html_template=f"<div class='hl-{module}'></div>",
        js_on_load=script,
        apply_default_css=False,
        elem_id=elem_id,
        **props,
    )
