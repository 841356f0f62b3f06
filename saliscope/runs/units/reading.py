"""Open a finished index of units."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet as pq

from saliscope.errors import Refused
from saliscope.runs.settings import check_format
from saliscope.runs.stores import MANIFEST, SETTINGS, open_store
from saliscope.runs.units.tables import PHOTOS, TOP, UNITS
from saliscope.zoo.weights import weights_hash

if TYPE_CHECKING:
    from saliscope.zoo import Model

METADATA = b"saliscope"
"""The key of the settings in the metadata of units.parquet, which can be used without the other files."""


@dataclass(frozen=True)
class StoredIndex:
    """A finished index: the settings, the manifest, and the tables `units`, `top` and `photos`."""

    folder: Path | str
    settings: dict[str, Any]
    manifest: dict[str, Any]
    units: pa.Table
    top: pa.Table
    photos: pa.Table | None = None


def open_index(folder: str | Path, model: Model | None = None) -> StoredIndex:
    """Return a finished index.

    Args     folder: a local path, or a URL that fsspec opens
             model: the network with which the index will be used
    Errors   Refused for a folder without an index, an unfinished, damaged or newer one, and one of another network
    """
    store = open_store(folder)
    found = {name: store.read(name) for name in (SETTINGS, MANIFEST, UNITS, TOP, PHOTOS)}
    if found[SETTINGS] is None:
        raise Refused(
            f"{str(folder)!r} does not contain an index of units. Pass the --out folder of `saliscope index`."
        )
    if found[MANIFEST] is None:
        raise Refused(f"The index in {str(folder)!r} is not finished. Run the same `saliscope index` command again.")
    try:
        settings, manifest = (json.loads(found[name] or b"") for name in (SETTINGS, MANIFEST))
        weights = settings["weights_sha256"]
        units, top = (pq.read_table(pa.BufferReader(found[name] or b"")) for name in (UNITS, TOP))
        photos = found[PHOTOS] and pq.read_table(pa.BufferReader(found[PHOTOS]))  # may be left out
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise Refused(f"The index in {str(folder)!r} is damaged ({error}). Delete it, and index again.") from None
    check_format(settings, folder, "index")
    if model is not None and weights_hash(model) != weights:
        raise Refused(
            f"The index in {str(folder)!r} is of {settings['model']} with other weights than those of {model.name}. "
            "Index again, or load that model."
        )
    return StoredIndex(store.folder, settings, manifest, units, top, photos or None)
