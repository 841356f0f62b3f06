"""The environment variables of `saliscope.zoo`, read at every call. Imports neither torch nor torchvision.

SALISCOPE_MODEL      name of the default model; unset or "auto": the first one that needs no download
SALISCOPE_MODELS     comma-separated names of the models to offer; unset: all
SALISCOPE_OFFLINE    any value except "" and "0" forbids downloads
SALISCOPE_CACHE_GB   maximum size of the downloaded weights in gigabytes; unset: no limit

BadLimit(ValueError)   SALISCOPE_CACHE_GB is not a positive number
"""

from __future__ import annotations

import math
import os

AUTO = "auto"


class BadLimit(ValueError):
    """A cache limit that cannot be parsed."""


def first_model(flag: str | None = None) -> str:
    """Return the requested default model: `flag`, or SALISCOPE_MODEL, or "auto"."""
    return next((name for name in (flag, os.environ.get("SALISCOPE_MODEL")) if name and name != AUTO), AUTO)


def offered_models() -> frozenset[str]:
    """Return the names in SALISCOPE_MODELS; empty if all models are offered."""
    names = os.environ.get("SALISCOPE_MODELS", "").split(",")
    return frozenset(name.strip() for name in names) - {""}


def offers(name: str) -> bool:
    """Return whether SALISCOPE_MODELS offers this model."""
    names = offered_models()
    return not names or name in names


def offline() -> bool:
    """Return whether SALISCOPE_OFFLINE forbids downloads."""
    return os.environ.get("SALISCOPE_OFFLINE", "") not in ("", "0")


def cache_bytes() -> int | None:
    """Return SALISCOPE_CACHE_GB in bytes (1 GB = 10⁹), or None if it is not set.

    Errors   BadLimit
    """
    text = os.environ.get("SALISCOPE_CACHE_GB", "").strip()
    if not text:
        return None
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise BadLimit(
            f"Invalid SALISCOPE_CACHE_GB={text!r}. Set a positive number of gigabytes, such as 5 or 0.5, or unset it "
            "to keep every file."
        )
    return round(gigabytes * 1e9)
