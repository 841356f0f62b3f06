"""The environment variables of `hooklens.zoo`, read at every call. Imports neither torch nor torchvision.

HOOKLENS_MODEL      name of the default model; unset or "auto": the first one that needs no download
HOOKLENS_MODELS     comma-separated names of the models to offer; unset: all
HOOKLENS_OFFLINE    any value except "" and "0" forbids downloads
HOOKLENS_CACHE_GB   maximum size of the downloaded weights in gigabytes; unset: no limit

BadLimit(ValueError)   HOOKLENS_CACHE_GB is not a positive number
"""

from __future__ import annotations

import math
import os

AUTO = "auto"


class BadLimit(ValueError):
    """A cache limit that cannot be parsed."""


def first_model(flag: str | None = None) -> str:
    """Return the requested default model: `flag`, or HOOKLENS_MODEL, or "auto"."""
    return next((name for name in (flag, os.environ.get("HOOKLENS_MODEL")) if name and name != AUTO), AUTO)


def offered_models() -> frozenset[str]:
    """Return the names in HOOKLENS_MODELS; empty if all models are offered."""
    names = os.environ.get("HOOKLENS_MODELS", "").split(",")
    return frozenset(name.strip() for name in names) - {""}


def offers(name: str) -> bool:
    """Return whether HOOKLENS_MODELS offers this model."""
    names = offered_models()
    return not names or name in names


def offline() -> bool:
    """Return whether HOOKLENS_OFFLINE forbids downloads."""
    return os.environ.get("HOOKLENS_OFFLINE", "") not in ("", "0")


def cache_bytes() -> int | None:
    """Return HOOKLENS_CACHE_GB in bytes (1 GB = 10⁹), or None if it is not set.

    Errors   BadLimit
    """
    text = os.environ.get("HOOKLENS_CACHE_GB", "").strip()
    if not text:
        return None
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise BadLimit(
            f"Invalid HOOKLENS_CACHE_GB={text!r}. Set a positive number of gigabytes, such as 5 or 0.5, or unset it to "
            "keep every file."
        )
    return round(gigabytes * 1e9)
