"""A decoder process: reads requests from its standard input and writes answers to its standard output.

`python -m saliscope.images.decoder.worker` is started by pool.py; it ends with the page, which closes its input. On
Linux, it reads nothing itself: each request is read by a separate child process, which has all modules imported and
enters the sandbox first. A file that takes over a decoder therefore sees no other file. Other systems have one process
for many files.

The standard error has a message for each of these: `ready`, the active mechanisms of the sandbox, before a file is
read; and `ended`, the exit status, the processor time in seconds and the memory in bytes. No file can write there.
"""

from __future__ import annotations

import codecs
import contextlib
import gc
import io
import math
import os
import platform
import signal
import sys
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import bands, metadata, pixels, uploads
from saliscope.images.decoder import protocol, sandbox

Answer = tuple[dict[str, Any], bytes]
TASKS: dict[str, Callable[..., Any]] = {
    "image": uploads.open_image,
    "open": bands.open_file,
    "preview": bands.preview_image,
    "strip": metadata.strip_metadata,
}
"""The functions of the tasks; a request has their other arguments."""
FORKS = sys.platform == "linux"
"""Whether each file has a separate process. Libraries of macOS do not work after a fork, and Windows has none."""
SAMPLE_SIDE = 256
"""Pixels of a side of an image that a decoder opens before the first file."""
PAGE_SECONDS = 5.0
"""Seconds until a decoder notices that the page has ended while a file is decoded."""
MOST_FILES = 500
"""Files until a decoder is replaced, in case that a library leaks memory for damaged files."""
SECONDS = math.ceil(limits.DECODE_SECONDS) + 2
"""Processor time of a file; the decoders have almost the same limit, and a message."""


def respond(header: dict[str, Any], data: bytes) -> Answer:
    """Return the answer to one request, which may be a refusal."""
    try:
        return decode(header, data)
    except Refused as error:
        return {"refused": str(error)}, b""
    except MemoryError:
        return {"refused": uploads.TOO_MUCH_MEMORY.format(limit=limits.DECODE_MEMORY // limits.MB)}, b""


def decode(header: dict[str, Any], data: bytes) -> Answer:
    """Return what a request wants to know about a file: a header and the bytes of pixels, or of a file.

    Errors   Refused
    """
    found = TASKS[header["task"]](data, **{name: value for name, value in header.items() if name != "task"})
    if isinstance(found, metadata.StrippedFile):
        return {"suffix": found.suffix, "same_file": found.same_file}, found.data
    if isinstance(found, Image.Image):
        notes = found.info.get("notes")
        return {"size": found.size} | ({"notes": notes} if notes else {}), found.tobytes()
    answer = {"size": found.image.size, "shape": found.values.shape, "choice": vars(found.choice), "note": found.note}
    return answer, b"".join([found.image.tobytes(), np.ascontiguousarray(found.values, "<f4").data])


def main(
    answer: Callable[[dict[str, Any], bytes], Answer] = respond, using: Collection[str] = sandbox.MECHANISMS
) -> None:
    """Answer requests until the input ends. Tests have another `answer`, and a system with fewer mechanisms."""
    warnings.simplefilter("ignore")
    sample = prepare()
    source, target, status = (os.fdopen(os.dup(number), mode) for number, mode in enumerate(("rb", "wb", "wb")))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # what a decoder prints must not be part of an answer
        os.dup2(nothing, number)
    os.close(nothing)
    with contextlib.suppress(OSError):  # only Linux has it: without memory, the system ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if not FORKS:
        active = sandbox.enter(limits.DECODE_MEMORY, MOST_FILES * SECONDS, using=using)
        while True:
            protocol.write(status, {"ready": active})
            protocol.write(target, *answer(*protocol.read(source)))
            protocol.write(status, {"ended": [0, 0, 0]})
    gc.freeze()  # the children share the memory of all objects until now
    parent, page = os.getpid(), os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    code = 0
    while code == 0:
        child = os.fork()
        if child == 0:
            try:
                os.environ.clear()
                active = sandbox.enter(limits.DECODE_MEMORY, SECONDS, parent, using)
                uploads.open_image(sample)  # writes to memory that an image needs: half of the time of a small one
                protocol.write(status, {"ready": active})
                status.close()
                protocol.write(target, *answer(*protocol.read(source)))
                os._exit(0)
            finally:
                os._exit(1)
        while not (end := os.wait4(child, os.WNOHANG))[0]:
            if os.getppid() != page:
                return  # which ends the child as well
            signal.sigtimedwait({signal.SIGCHLD}, PAGE_SECONDS)
        code, used = os.waitstatus_to_exitcode(end[1]), end[2]
        protocol.write(status, {"ended": [code, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss]})


def prepare() -> bytes:
    """Import and initialize what decoding needs, because no file can be opened in the sandbox; return an image."""
    for encoding in ("ascii", "latin-1", "utf-8", "utf-16", "utf-32"):  # of names and texts in a file
        codecs.lookup(encoding)
    Image.init()
    if "AVIF" in uploads.FORMATS:
        from PIL import AvifImagePlugin  # Pillow may not have it

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the sandbox refuses threads
    for kind in uploads.FORMATS:
        exif = Image.Exif()
        exif[pixels.ORIENTATION] = 6
        metadata.strip_metadata(pixels.encode(Image.new("RGB", (8, 8)), kind, exif=exif), 3)
    sandbox.filter_of(platform.machine())
    file = io.BytesIO()
    np.save(file, np.zeros((4, 8, 8), np.uint16))
    bands.open_file(file.getvalue(), 3)
    return pixels.encode(Image.effect_noise((SAMPLE_SIDE, SAMPLE_SIDE), 50).convert("RGB"), "JPEG")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt, protocol.Broken):
        main()
