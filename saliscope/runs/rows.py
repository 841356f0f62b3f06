"""The columns of the rows of a run, one row per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from saliscope.errors import Refused

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
_CLASS = pa.struct([("class", pa.string()), ("index", pa.int32()), ("probability", pa.float32())])
_STATISTIC = pa.struct([("name", pa.string()), ("value", pa.float64())])  # `datasets` cannot read columns of maps

SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        ("sha256", pa.string()),
        ("label", pa.string()),
        ("label_index", pa.int32()),
        ("label_probability", pa.float32()),
        ("prediction", pa.string()),
        ("prediction_index", pa.int32()),
        ("probability", pa.float32()),
        ("correct", pa.bool_()),
        ("top5", pa.list_(_CLASS)),
        ("target", pa.string()),
        ("target_index", pa.int32()),
        ("score", pa.float32()),
        ("statistics", pa.list_(_STATISTIC)),
        ("findings", pa.list_(pa.string())),
        ("finding_texts", pa.list_(pa.string())),
        ("seconds", pa.float32()),
        ("device", pa.string()),
        ("map", pa.binary()),
        ("map_scale", pa.float32()),
        ("map_height", pa.int32()),
        ("map_width", pa.int32()),
        ("error", pa.string()),
    ]
)
"""`map` is little-endian float16 in row-major order, to be multiplied by `map_scale`, which is 1 except for very large
and very small maps. If an image could not be read, only path, label and `error` are not null.
"""


def unpack(maps: Sequence[bytes], height: int, width: int) -> NDArray[np.float64]:
    """Return the values `[n, h, w]` of stored maps of one size, without their scales.

    Errors   Refused if the number of bytes does not fit the size
    """
    wrong = next((len(each) for each in maps if len(each) != 2 * height * width), None)
    if wrong is not None or height < 1 or width < 1:
        size = f"{height} × {width}"
        raise Refused(f"The run is damaged: a map of {size} has {wrong or 0} bytes. Run saliscope explain again.")
    return np.frombuffer(b"".join(maps), "<f2").reshape(len(maps), height, width).astype(float)


def maps_of(table: pa.Table) -> Floats:
    """Return the maps [n, h, w] of the rows of a table, which all have maps of one size.

    Errors   Refused, as `unpack`
    """
    height, width = (table[name][0].as_py() for name in ("map_height", "map_width"))
    scales = np.asarray(table["map_scale"].cast("float64").fill_null(1.0))
    return unpack(table["map"].to_pylist(), height, width) * scales[:, None, None]


def map_of(row: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return the map [h, w] of a row as float32.

    Errors   Refused, as `unpack`

    Example
        >>> map_of({"map": b"\\x00\\x3c" * 2, "map_scale": 2.0, "map_height": 1, "map_width": 2}).tolist()
        [[2.0, 2.0]]
    """
    scale = np.float32(1.0 if row["map_scale"] is None else row["map_scale"])
    return unpack([row["map"]], row["map_height"], row["map_width"])[0].astype(np.float32) * scale
