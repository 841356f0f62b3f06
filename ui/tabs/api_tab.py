"""The tab that shows the current settings as calls of a program."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ui import words
from ui.engine import packing
from ui.engine.messages import Settings
from ui.tabs.components import canvas
from ui.tabs.tab import Tab


class Api(Tab):
    """A text, and snippets that follow the settings."""

    title, id = words.API, "api"

    def build(self) -> None:
        """Lay the tab out."""
        gr.Markdown(words.API_TEXT, elem_id="hl-api-text")
        self.page.resolved[canvas("snippets", "hl-api", value={"items": []})] = snippets


def snippets(settings: Settings) -> dict[str, Any]:
    """The value of the snippets' component."""
    return {"id": packing.number(), "items": words.snippets(settings)}
