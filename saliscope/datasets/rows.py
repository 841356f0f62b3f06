"""The columns of the rows of a run, one row per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

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


def map_of(row: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the map [h, w] of a row as float32.

    Example
        >>> map_of({"map": b"\\x00\\x3c" * 2, "map_scale": 2.0, "map_height": 1, "map_width": 2}).tolist()
        [[2.0, 2.0]]
    """
    values = np.frombuffer(row["map"], "<f2").astype(np.float32) * np.float32(row["map_scale"])
    return values.reshape(row["map_height"], row["map_width"])
