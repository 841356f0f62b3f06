"""Faults of the processes that decode images and load weights: functions that plant one in this process."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from typing import Any

from saliscope import limits
from saliscope.images import uploads
from saliscope.images.decoder import sandbox


def _without(mechanism: str) -> Callable[[], None]:
    """Return a function that leaves a mechanism of the sandbox out."""

    def plant() -> None:
        enter = sandbox.enter

        def other(
            memory: int, seconds: int | None, parent: int | None = None, using: Any = sandbox.MECHANISMS
        ) -> list[str]:
            return enter(memory, seconds, parent, [each for each in using if each != mechanism])

        setattr(sandbox, "enter", other)  # noqa: B010 mypy refuses a plain assignment

    return plant


def decode_everything() -> None:
    """Decode images of any size as a whole, without limits of the process."""
    _without("limits")()
    for name in ("PIXELS", "WHOLE", "WEBP", "HUGE", "RAW", "EXPANSION", "COEFFICIENTS"):
        setattr(limits, name, 10**12)


def crash() -> None:
    """End the process at an image that is not valid."""
    find = uploads.open_image

    def other(source: Any) -> Any:
        try:
            return find(source)
        except Exception:
            os._exit(3)

    setattr(uploads, "open_image", other)  # noqa: B010 as above


def run_code() -> None:
    """Load weights with `pickle`, which runs the code in them."""
    from saliscope.zoo import checkpoints  # decoders do not have torch

    load = checkpoints.load

    def other(network: Any, path: Any) -> Any:
        with contextlib.suppress(Exception):  # it may be no pickle; its code has been run
            pickle.loads(path.read_bytes())
        return load(network, path)

    setattr(checkpoints, "load", other)  # noqa: B010 as above


FAULTS: dict[str, Callable[[], None]] = {
    "decoders without limits": _without(sandbox.LIMITS),
    "decoders without seccomp": _without(sandbox.SECCOMP),
    "decoders that decode everything": decode_everything,
    "decoders that crash": crash,
    "weights that run code": run_code,
}
