"""Files of the page among the uploads, where Gradio serves them; the guard removes old ones."""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import quote

from saliscope.images import uploads


def new_file(name: str) -> Path:
    """Return the path of a new file with an unguessable name, which ends with `name`."""
    folder = uploads.upload_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"tmp{secrets.token_hex(32)}-{name}"


def address(path: Path | str) -> str:
    """Return the address of a file, relative to the page, as `fileAddress` in stored_images.js."""
    return f"gradio_api/file={quote(str(path))}"
