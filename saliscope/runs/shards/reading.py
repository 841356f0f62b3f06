"""Open a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from saliscope.errors import Refused
from saliscope.runs.run_data import RunData, damaged
from saliscope.runs.settings import check_format
from saliscope.runs.stores import MANIFEST, SETTINGS, LocalStore, open_store


def open_run(folder: str | Path) -> RunData:
    """Return the rows and the manifest of a finished run. Rows are read when they are needed.

    Args     folder: a local path, or a URL that fsspec opens, such as `s3://bucket/run`
    Errors   Refused for a folder without a run, and for an unfinished or a damaged run
    """
    data = RunData(open_store(folder).folder, read_manifest(folder))
    len(data)  # reads the end of every file
    return data


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a finished run.

    Errors   Refused for a folder without a run, for an unfinished or a damaged run, and for a newer format
    """
    store = open_store(folder)
    content = store.read(MANIFEST)
    if content is None:
        if store.read(SETTINGS) is not None:
            raise Refused(f"The run in {str(folder)!r} is not finished ({MANIFEST} is missing). Run the command again.")
        if not (store.root.is_dir() if isinstance(store, LocalStore) else store.sizes()):
            raise Refused(f"Folder not found: {str(folder)!r}. Pass the folder of `saliscope explain`.")
        raise Refused(f"{str(folder)!r} does not contain a run ({MANIFEST} is missing).")
    try:
        manifest = _checked(json.loads(content))
    except ValueError as error:
        raise Refused(damaged(folder, error)) from None
    check_format(manifest["settings"], folder)
    return manifest


def _checked(manifest: Any) -> dict[str, Any]:
    kinds = {"parts": list, "settings": dict, "weights_sha256": str}
    for name, kind in kinds.items():
        if not isinstance(manifest, dict) or not isinstance(manifest.get(name), kind):
            raise ValueError(f"{MANIFEST} has no {name}")
    if not all(isinstance(part, str) for part in manifest["parts"]):
        raise ValueError(f"the parts in {MANIFEST} are not names of files")
    return manifest
