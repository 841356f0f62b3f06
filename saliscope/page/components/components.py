"""Gradio component subclasses, and `canvas`, a component drawn by a script in saliscope/page/static/."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import gradio as gr
from gradio.data_classes import ImageData

from saliscope.compute import messages
from saliscope.images import examples
from saliscope.page.components.list_columns import HEADS

GRADIO_SCRIPT = "import(new URL('hl/gradio.js', document.baseURI))"

COMBOBOX: dict[str, Any] = {
    "no_match": "No match for “{text}”. Try a shorter word.",
    "more": "{count} more: scroll, or type to find them",
    "found": ["1 match", "{count} matches"],
    "waiting": "The list appears here after the model is loaded.",
    "jump": "Jump to a group",
    "unused": "not used",
    "none": "none",
}
"""Labels used by static/lists/combobox.js."""

Item = str | tuple[str, str] | tuple[str, str, list[str]] | tuple[str, str, list[str], dict[str, Any]]
"""A name, or a label, a name, the texts of its columns, and the other fields of an item in static/lists/search.js."""
Items = Sequence[Item]


def example_items() -> list[dict[str, str]]:
    """Return the example images as the scripts list them: ID, description, note and address of the thumbnail."""
    files = examples.thumbnail_names()
    return [
        {"id": each.id, "alt": each.alt, "note": each.note, "src": f"hl/thumbnails/{files[each.id]}"}
        for each in examples.all_examples().values()
    ]


class ImageUpload(gr.Image):
    """An image component that passes the file path without decoding it; `saliscope.images.uploads` decodes the file."""

    is_template = True  # otherwise the browser looks for a component with the name of this class

    def preprocess(self, payload: ImageData | None) -> str | None:
        """Return the path of the uploaded file, or None; image data in the message is refused."""
        if payload is None:
            return None
        if not payload.path:
            raise gr.Error(messages.UPLOAD_A_FILE, print_exception=False)
        return payload.path


class Named(gr.HTML):
    """A selection drawn by a script: its value is a name, and its props contain the choices."""

    is_template = True

    def preprocess(self, payload: Any) -> str | None:
        """Return the name, or None for anything else; `engine` checks every name."""
        return payload if isinstance(payload, str) else None

    def postprocess(self, value: Any) -> str | None:
        """Return the name."""
        return value if isinstance(value, str) else None


def named(module: str, elem_id: str, **props: Any) -> Named:
    """Create a selection drawn by `static/<module>.js`; its script gets Gradio's own props, and raises "input"."""
    return Named(value="", **_drawn_by(module, elem_id, "false"), **props)


def choice(
    elem_id: str, label: str, setting: str, items: Items = (), module: str = "lists/choice", **props: Any
) -> Named:
    """Create a selection with search from a list of names; it raises "input" with the name of its setting."""
    texts = {"title": label, "words": COMBOBOX, "heads": HEADS[setting]}
    return named(module, elem_id, setting=setting, names=_names(items), **texts, **props)


def update_choice(items: Items, **more: Any) -> Any:
    """Return the update of a selection to another list, and to another `value` or `title`."""
    return gr.update(names=_names(items), **more)


def _names(items: Items) -> str:
    pairs = [(item, item) if isinstance(item, str) else item for item in items]
    return json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))


class Canvas(gr.HTML):
    """A component drawn by a script. Its value is sent as one JSON string.

    Gradio sends the steps of a generator as differences and applies them in place to the object that the script uses.
    A dictionary could therefore change or lose fields while the script uses it; a string cannot.
    """

    def preprocess(self, payload: Any) -> Any:
        """Return the value that the script has set, or None if it is not valid JSON."""
        if not isinstance(payload, str):
            return None
        try:
            return json.loads(payload)
        except (ValueError, RecursionError):
            return None

    def postprocess(self, value: Any) -> str | None:
        """Return the value as JSON."""
        return self.pack(value)

    @staticmethod
    def pack(value: Any) -> str | None:
        """Return a value as JSON."""
        return None if value is None else json.dumps(value, separators=(",", ":"), allow_nan=False)


def canvas(module: str, elem_id: str, *, value: Any = None, events: Sequence[str] = (), **props: Any) -> Canvas:
    """Create a component drawn by `static/<module>.js`, such as "rail/rail".

    `value` contains the data and `props` the fixed labels. The script may raise events of Gradio, such as "select", and
    the additional `events`.
    """
    shown = _drawn_by(module, elem_id)
    shown["js_on_load"] += f" // {json.dumps(events)}"  # Gradio accepts the events that it finds in quotes here
    return Canvas(value=value, **shown, **props)


def _drawn_by(module: str, elem_id: str, *options: str) -> dict[str, Any]:
    """Return the keyword arguments of a component drawn by a script; `options` are passed to `start` in gradio.js."""
    arguments = ", ".join([f"'{module}'", "element", "props", "trigger", "watch", *options])
    return {
        "html_template": f"<div class='hl-{module.rpartition('/')[2]}'></div>",
        "js_on_load": f"{GRADIO_SCRIPT}.then((gradio) => gradio.start({arguments}))",
        "apply_default_css": False,
        "elem_id": elem_id,
    }


def script_of(component: gr.blocks.Block) -> str | None:
    """Return the path below static/ of the script that draws a component, or None for a component of Gradio."""
    found = re.search(r"gradio\.start\('([^']+)'", getattr(component, "js_on_load", None) or "")
    return f"{found[1]}.js" if found else None


def receiver(elem_id: str, into: str, field: int | None = None) -> Canvas:
    """Create a hidden component that sets a value of the state in static/store.js, or one field of it."""
    return canvas("page/receiver", elem_id, into=into, field=field, elem_classes=["hl-unseen"])


def set_state(key: str, value: str) -> str:
    """Return a JavaScript handler for Gradio that sets a value of the state from its inputs, an array `inputs`."""
    return f"async (...inputs) => (await {GRADIO_SCRIPT}).receive('{key}', {value})"
