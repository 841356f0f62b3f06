"""Serve the images of a finished run (`--run FOLDER`), which the links of its report name by their SHA-256."""

from __future__ import annotations

import os
import posixpath
from functools import lru_cache
from pathlib import Path

from saliscope.images import run_images, uploads
from saliscope.images.decoder import pool
from saliscope.runs.finished_run import FinishedRun
from saliscope.runs.items import is_local
from saliscope.runs.shards import open_run
from saliscope.runs.sources.location import IMAGE_SUFFIXES

FOLDER = "SALISCOPE_RUN"
"""Environment variable with the folder of the run."""


def find(digest: str) -> Path | None:
    """Return an image of the run as a copy in the upload folder, or None if the run does not have it any more."""
    folder = os.environ.get(FOLDER)
    run = _open(folder) if folder else None
    path = None if run is None else run.path_of(digest)
    if run is None or path is None:
        return None
    file = uploads.upload_folder() / digest / ("image" + _suffix(path))
    if not file.is_file():
        data = run.read(path, digest)
        if data is None:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(file)
    return uploads.inside_uploads(file)


@lru_cache(maxsize=1)
def _open(folder: str) -> FinishedRun:
    """Return the run.

    Errors   Refused for a folder without a finished run
    """
    return FinishedRun(open_run(folder), pool.open_image)


def use_run(folder: str) -> None:
    """Make the images of a run available to links.

    Errors   Refused for a folder without a finished run
    """
    folder = os.path.abspath(os.path.expanduser(folder)) if is_local(folder) else folder
    _open(folder)
    os.environ[FOLDER] = folder


def _suffix(path: str) -> str:
    suffix = posixpath.splitext(path)[1].lower()
    return suffix if suffix in IMAGE_SUFFIXES else ".jpg"


run_images.find = find
