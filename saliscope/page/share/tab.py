"""The hidden component that provides the server part of bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from saliscope.compute import engine, messages
from saliscope.compute.bundles import bundle
from saliscope.compute.erase.second import second_image
from saliscope.compute.jobs import runs
from saliscope.compute.jobs.places import places
from saliscope.page.components.components import canvas
from saliscope.page.shared.tab import Page, event_data, queue_options


class Saving:
    """Sends the server part of a bundle to the script that requests it."""

    def __init__(self, page: Page) -> None:
        self.image, self.request = page.panel.image, canvas("share/bundle", "hl-bundle")

    def wire(self) -> None:
        """Connect the request; it does not use the model queue because it only decodes and hashes the image."""
        shared = queue_options("lab", trigger_mode="multiple", show_progress="hidden")
        self.request.submit(self.answer, self.image, self.request, **shared)

    def answer(self, event: gr.EventData, request: gr.Request, image: str | None) -> dict[str, Any]:
        """Return the part that `static/share/bundle.js` requested under this number, or an error."""
        data = event_data(event)
        number, folder = data.get("number"), Path(get_upload_folder())
        try:
            with runs.start(f"{request.session_hash}/bundle", again=True) as run:
                for _ in places.wait(run, "lab") if run else ():
                    pass
                second = second_image(data.get("second"))
                return {"number": number, "part": bundle.server_part(data.get("records"), image, folder, second)}
        except Exception as error:
            return {"number": number, "refused": engine.message_of(error, messages.UNKNOWN)}
