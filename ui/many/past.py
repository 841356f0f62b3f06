"""The pictures of a finished run, which the links of its report name by their SHA-256: `--run FOLDER`."""

from __future__ import annotations

import os
import posixpath
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ui.engine.messages import Refused
from ui.serving import uploads

if TYPE_CHECKING:
    from dataset.past.again import Past

FOLDER = "HOOKLENS_RUN"
"""The environment's name of the run's folder."""
_DIGEST = re.compile("[0-9a-f]{64}")


def is_digest(name: str) -> bool:
    """Whether a name is a SHA-256, not that of an example."""
    return _DIGEST.fullmatch(name) is not None


def find(digest: str) -> Path | None:
    """The file of a picture of the run, copied among the uploads; None where no run has it, or it is there no more."""
    folder = os.environ.get(FOLDER)
    past, paths = _open(folder) if folder and is_digest(digest) else (None, {})
    if past is None or digest not in paths:
        return None
    from gradio.utils import get_upload_folder  # gradio comes after gradio_setup, which the page imports

    file = Path(get_upload_folder()) / digest / ("picture" + _suffix(paths[digest]))
    if not file.is_file():
        data = past.data(paths[digest])
        if data is None:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{os.getpid()}")
        beside.write_bytes(data)
        beside.replace(file)
    return uploads.inside_uploads(file)


@lru_cache(maxsize=1)
def _open(folder: str) -> tuple[Past, dict[str, str]]:
    """The run, and the paths of its pictures by SHA-256.

    Errors   dataset.errors.Refused for a folder without a finished run
    """
    from dataset.past.again import Past  # what a page without a run does not need
    from dataset.shards import open_run  # as above

    past = Past(open_run(folder, ["path", "sha256"]), uploads.open_picture)
    return past, {digest: path for path, digest in past.hashes.items() if digest}


def begin(folder: str) -> None:
    """Open the pictures of a run from now on.

    Errors   ui.engine.messages.Refused for a folder without a finished run
    """
    from dataset.errors import Refused as NoRun  # what a page without a run does not need

    folder = os.path.abspath(os.path.expanduser(folder))
    try:
        _open(folder)
    except NoRun as refusal:
        raise Refused(str(refusal)) from None
    os.environ[FOLDER] = folder


def _suffix(path: str) -> str:
    from dataset.sources.place import PICTURES  # as above

    suffix = posixpath.splitext(path)[1].lower()
    return suffix if suffix in PICTURES else ".jpg"
