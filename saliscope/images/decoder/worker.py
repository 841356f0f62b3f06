"""A decoder process: reads requests from its standard input and writes answers to its standard output.

It has limited memory and processor time, writes no files, and starts no programs. `python -m
saliscope.images.decoder.worker` is started by pool.py; it ends with the page, which closes its input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import os
import warnings
from pathlib import Path
from typing import Any

from PIL import Image

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import bands, uploads
from saliscope.images.decoder import protocol

resource: Any
try:
    resource = importlib.import_module("resource")
except ImportError:  # Windows, where only the time limit of pool.py applies
    resource = None

Answer = tuple[dict[str, Any], list[bytes]]


def main() -> None:
    """Answer requests until the input ends."""
    import numpy as np  # noqa: F401  takes 0.1 s, so before the first request

    warnings.simplefilter("ignore")
    source = os.fdopen(os.dup(0), "rb")
    target = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # what a decoder prints must not be part of an answer
        os.dup2(nothing, stream)
    Image.init()  # imports all decoders, before no more files may be opened
    limit_process()
    while (message := protocol.read(source)) is not None:
        header, data = message
        allow_seconds(limits.DECODE_SECONDS)
        answer, parts = respond(header, bytes(data))
        protocol.write(target, answer, *parts)


def limit_process() -> None:
    """Limit memory and processor time, and forbid files, programs and core dumps, as far as the system can."""
    with contextlib.suppress(OSError):  # only Linux has it: without memory, the system ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if resource is None:
        return
    _limit("RLIMIT_AS", limits.DECODE_MEMORY)
    _limit("RLIMIT_FSIZE", 0)
    _limit("RLIMIT_CORE", 0)
    _limit("RLIMIT_NPROC", 0)  # has no effect for root
    _limit("RLIMIT_NOFILE", 16)


def allow_seconds(seconds: float) -> None:
    """Let the system end this process after more seconds of processor time; the decoders have the same limit."""
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _limit("RLIMIT_CPU", math.ceil(usage.ru_utime + usage.ru_stime + seconds + 2), hard=False)


def _limit(name: str, value: int, *, hard: bool = True) -> None:
    number = getattr(resource, name, None)
    if number is None:
        return
    with contextlib.suppress(OSError, ValueError):  # macOS refuses some limits
        highest = resource.getrlimit(number)[1]
        if highest != resource.RLIM_INFINITY:
            value = min(value, highest)
        resource.setrlimit(number, (value, value if hard else highest))


def respond(header: dict[str, Any], data: bytes) -> Answer:
    """Return the answer to one request."""
    try:
        if header["task"] == "preview":
            return _preview(data, header)
        if header["task"] == "image":
            return _pack_image(uploads.open_image(data))
        opened = bands.open_file(data, header["channels"], raw=header["raw"], requested=header["requested"])
        return _pack_bands(opened) if isinstance(opened, bands.Bands) else _pack_image(opened)
    except Refused as error:
        return {"refused": str(error)}, []
    except MemoryError:
        return {"refused": uploads.TOO_LARGE_UNSEEN.format(limit=limits.PIXELS // 10**6)}, []


def _pack_image(image: Image.Image) -> Answer:
    notes = image.info.get("notes")
    return {"size": list(image.size)} | ({"notes": notes} if notes else {}), [image.tobytes()]


def _pack_bands(opened: bands.Bands) -> Answer:
    import numpy as np  # takes 0.1 s, and is only needed for raw values

    values = np.ascontiguousarray(opened.values, "<f4")
    choice = dataclasses.asdict(opened.choice)
    header = {"size": list(opened.image.size), "shape": list(values.shape), "choice": choice, "note": opened.note}
    return header, [opened.image.tobytes(), values.tobytes()]


def _preview(data: bytes, header: dict[str, Any]) -> Answer:
    found = bands.preview_image(data, header["channels"], header["requested"])
    if found is None:
        return {"size": None}, []
    image, three = found
    return {"size": list(image.size), "three": list(three)}, [image.convert("RGB").tobytes()]


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt, protocol.Broken):
        main()
