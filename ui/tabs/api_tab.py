"""The tab that says how to ask the same questions from a program."""

from __future__ import annotations

import gradio as gr

from ui import words
from ui.tabs.components import canvas


def build() -> gr.HTML:
    """Lay the tab out; the snippets follow the settings."""
    gr.Markdown(words.API_TEXT, elem_id="hl-api-text")
    return canvas("snippets", "hl-api", value={"items": []})
