"""The environment variables of `models`, read at every call; needs neither torch nor torchvision.

HOOKLENS_MODEL      name of the default model; unset or "auto": the first one that needs no download
HOOKLENS_MODELS     comma-separated names, the only models offered; unset: all
HOOKLENS_OFFLINE    anything but "" and "0" forbids downloads
HOOKLENS_CACHE_GB   maximum size of the downloaded weights in gigabytes; unset: no limit

BadLimit(ValueError)   HOOKLENS_CACHE_GB is not a positive number
"""

from __future__ import annotations

import math
import os

AUTO = "auto"


class BadLimit(ValueError):
    """A cache limit that cannot be parsed; the sentence says what to write."""


def first_model(flag: str | None = None) -> str:
    """The requested default model: `flag`, else HOOKLENS_MODEL; "auto" where neither names one."""
    return next((name for name in (flag, os.environ.get("HOOKLENS_MODEL")) if name and name != AUTO), AUTO)


def offered_models() -> frozenset[str]:
    """The names in HOOKLENS_MODELS; empty where all models are offered."""
    names = os.environ.get("HOOKLENS_MODELS", "").split(",")
    return frozenset(name.strip() for name in names) - {""}


def offers(name: str) -> bool:
    """Whether HOOKLENS_MODELS offers this model."""
    names = offered_models()
    return not names or name in names


def offline() -> bool:
    """Whether HOOKLENS_OFFLINE forbids downloads."""
    return os.environ.get("HOOKLENS_OFFLINE", "") not in ("", "0")


def cache_bytes() -> int | None:
    """HOOKLENS_CACHE_GB in bytes (1 GB = 10⁹); None where it is not set.

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
            f"HOOKLENS_CACHE_GB={text!r} is not a size. Give gigabytes as a positive number, such as 5 or 0.5, "
            "or leave it out to keep every file."
        )
    return round(gigabytes * 1e9)
