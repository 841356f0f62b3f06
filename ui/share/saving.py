"""The component behind the page's bundles: it has no look of its own, a menu's script asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from ui import words
from ui.engine import engine
from ui.share import bundle
from ui.tabs.components import canvas
from ui.tabs.tab import Page, event_data, queued


class Saving:
    """Gives the server's part of a bundle to the script that asks for it."""

    def __init__(self, page: Page) -> None:
        self.picture, self.asked = page.panel.picture, canvas("share/bundle", "hl-bundle")

    def wire(self) -> None:
        """Beside the runs of networks: a picture is decoded and hashed, nothing is computed."""
        beside = queued("lab", trigger_mode="multiple", show_progress="hidden")
        self.asked.submit(self.given, self.picture, self.asked, **beside)

    def given(self, event: gr.EventData, picture: str | None) -> dict[str, Any]:
        """What `static/share/bundle.js` waits for under this number: the part, or why there is none."""
        data = event_data(event)
        number, folder = data.get("number"), Path(get_upload_folder())
        try:
            return {"number": number, "part": bundle.part(data.get("records"), picture, folder)}
        except Exception as error:
            return {"number": number, "refused": engine.sentence_of(error, words.UNKNOWN)}
