"""Open images in decoder processes, or in this process until `start` is called.

The page calls `start`. A decoder that crashes, or that takes too long, is replaced: its request is refused with a
message, and others do not notice. Each file is decoded by a separate process in a sandbox (`sandbox.py`). Commands for
data sets decode their own files in their own processes.

No pool of a library has these limits: those of concurrent.futures, loky and anyio unpickle answers and use a process
for many files, and the fork server of multiprocessing leaves the page's environment and its own pipes to a decoder.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import bands, metadata, uploads
from saliscope.images.decoder import protocol, sandbox, worker

CRASHED = "The image could not be decoded: it is damaged in a way that ends the decoder. Save it again as JPEG or PNG."
MARGIN = 5.0
"""Seconds after the time limit of the decoders until the process is ended, which a busy machine needs."""
KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH")
"""Environment variables that a program needs to start; others, such as access tokens, are not passed on."""
WORKER = "saliscope.images.decoder.worker"
LARGEST = limits.WORK_PIXELS * 101 // 100
"""Pixels of an image that a decoder may return: sides are rounded."""
LONGEST_TEXT = 1000
"""Characters of a text that a decoder may return."""
NOT_ISOLATED = (
    "The decoders of images are not fully isolated, because this system does not have: {missing}. See SECURITY.md for "
    "what this means."
)


class _Process:
    """One decoder process."""

    def __init__(self, module: Sequence[str]) -> None:
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        paths = [str(Path(__file__).resolve().parents[3]), *filter(None, sys.path)]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
        # Each file has new memory: with large pages, a photo takes a sixth less time.
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", *module],
            bufsize=0,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=environment,
            start_new_session=True,  # Ctrl+C is for the page
        )
        self._requests = io.BufferedWriter(self.process.stdin)  # type: ignore[type-var]
        # With a larger buffer, `_has_more` would not see all that is there.
        self._answers, self._status = (
            io.BufferedReader(stream, 1)  # type: ignore[type-var]
            for stream in (self.process.stdout, self.process.stderr)
        )
        self.mechanisms: list[str] | None = None
        """The active mechanisms of the sandbox; None until the process of the next file is ready."""
        self.files = 0

    def wait(self) -> list[str]:
        """Wait until the process of the next file is in the sandbox, and return its active mechanisms.

        Errors   protocol.Broken if it ends
        """
        if self.mechanisms is None:
            self.mechanisms = self._read_status("ready")
        return self.mechanisms

    def _read_status(self, name: str) -> list[Any]:
        """Return the content of a message with this name.

        Errors   protocol.Broken for the end of the stream and for another message
        """
        header, _ = protocol.read(self._status)
        if name not in header:
            raise protocol.Broken
        return header[name]

    def call(self, header: dict[str, Any], data: bytes, seconds: float) -> tuple[dict[str, Any], bytes, list[float]]:
        """Return the answer to a request, and what the file has used: processor time in seconds, and bytes of memory.

        A file that has taken over its process must not answer for others, so that process has to end first.

        Errors   Refused if the process breaks or takes too long; it is ended
        """
        self.files += 1
        end = time.monotonic() + seconds
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            self.wait()
            with contextlib.suppress(OSError):  # the answer says what happened
                protocol.write(self._requests, header, data)
            is_image = header["task"] in ("image", "preview")
            answer, body = protocol.read(self._answers, 3 * LARGEST if is_image else protocol.LONGEST_BODY)
            code, *used = self._read_status("ended")
            if code != 0 or _has_more(self._answers) or ("refused" in answer and body):
                raise protocol.Broken
            self.mechanisms = None
            return answer, body, used
        except protocol.Broken:
            late = time.monotonic() >= end or self.close() == -getattr(signal, "SIGXCPU", 0)  # which Windows lacks
            raise Refused(uploads.TOO_SLOW if late else CRASHED) from None
        finally:
            timer.cancel()

    def close(self) -> int:
        """End the process; return the exit status of the last file, or else of the process."""
        self.process.kill()
        code = self.process.wait()
        with contextlib.suppress(OSError, ValueError, protocol.Broken):  # it is closed, or has nothing to tell
            code = self._read_status("ended")[0]
        for stream in (self._requests, self._answers, self._status):
            with contextlib.suppress(OSError):
                stream.close()
        return code


def _has_more(stream: Any) -> bool:
    """Return whether there is something to read; Windows cannot tell."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(0))


class Pool:
    """Decoder processes, as many as `limits.DECODERS`; a request waits until one is idle.

    `module` is the name of the program and its arguments; tests have another one.
    """

    def __init__(
        self,
        size: int = limits.DECODERS,
        seconds: float = limits.DECODE_SECONDS + MARGIN,
        module: Sequence[str] = (WORKER,),
    ) -> None:
        self._places, self._module, self.seconds = threading.Semaphore(size), module, seconds
        self._idle: deque[_Process] = deque()
        self.restarts = 0
        """Processes that were replaced because they crashed or took too long."""
        self.used = [0.0, 0]
        """Processor time in seconds and memory in bytes of the last file; 0 on systems that do not tell it."""
        self.mechanisms: list[str] | None = None
        """The active mechanisms of the sandbox; None until a process was ready."""

    def prepare(self) -> None:
        """Start one process if none is idle, and wait until it is ready, so that the first image does not wait.

        Errors   protocol.Broken if it ends
        """
        with self._process() as process:
            self.mechanisms = process.wait()

    def call(self, data: bytes, **header: Any) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a request.

        Errors   Refused by the decoder, or because it crashed or took too long
        """
        with self._process() as process:
            answer, body, self.used = process.call(header, data, self.seconds)
        if "refused" in answer:
            raise Refused(_text(answer["refused"]))
        return answer, body

    def processes(self) -> list[int]:
        """Return the numbers of the idle processes."""
        return [each.process.pid for each in self._idle]

    def close(self) -> None:
        """End all idle processes; others end with this process."""
        with contextlib.suppress(IndexError):  # none is left
            while True:
                self._idle.popleft().close()

    @contextlib.contextmanager
    def _process(self) -> Iterator[_Process]:
        """Yield an idle process or a new one; it is idle again afterwards, or ended after an error."""
        with self._places:
            process = self._take()
            try:
                yield process
            except BaseException:
                self.restarts += 1
                process.close()
                raise
            if process.files < worker.MOST_FILES:
                self._idle.append(process)
            else:
                process.close()

    def _take(self) -> _Process:
        with contextlib.suppress(IndexError):  # none is idle
            while (process := self._idle.popleft()).process.poll() is not None:
                process.close()  # someone else has ended it
                self.restarts += 1
            return process
        return _Process(self._module)


_pool: Pool | None = None


def start() -> None:
    """Decode in separate processes from now on, and start the first one."""
    global _pool
    if _pool is None:
        _pool = Pool()
        atexit.register(stop)
        threading.Thread(target=_prepare, args=[_pool], name="sandbox", daemon=True).start()


def _prepare(pool: Pool) -> None:
    """Start the first process, and log which mechanisms of the sandbox are missing."""
    with contextlib.suppress(protocol.Broken):  # the first request tells why
        pool.prepare()
        if absent := sandbox.missing(pool.mechanisms or []):
            logging.getLogger(__name__).warning(NOT_ISOLATED.format(missing=", ".join(absent)))


def mechanisms() -> list[str] | None:
    """Return the active mechanisms of the sandbox; None until a decoder has started."""
    return _pool.mechanisms if _pool is not None else None


def stop() -> None:
    """End the decoder processes, and decode in this process again."""
    global _pool
    pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def restarts() -> int:
    """Return how many decoder processes were replaced because they crashed or took too long."""
    return _pool.restarts if _pool is not None else 0


def _ask(data: bytes, **header: Any) -> tuple[dict[str, Any], bytes]:
    """Return the answer to a request, from a decoder process or from this process.

    Errors   Refused
    """
    uploads.check_length(data)
    if (pool := _pool) is not None:
        return pool.call(data, **header)
    return worker.decode(header, data)


def open_file(data: bytes, channels: int, *, raw: bool = False, requested: str = "") -> Image.Image | bands.Bands:
    """Return the image in a file, with its bands if it has other than three of 8 bits, as `bands.open_file`.

    Errors   Refused
    """
    answer, body = _ask(data, task="open", channels=channels, raw=raw, requested=requested)
    if "shape" not in answer:
        return _image(answer, body)
    shape, choice = _integers(answer["shape"], 3), answer.get("choice")
    at = max(0, len(body) - 4 * math.prod(shape))
    image = _image(answer, body[:at])
    if not isinstance(choice, dict) or type(choice.get("count")) is not int:
        raise Refused(CRASHED)
    values = np.frombuffer(body, "<f4", offset=at).reshape(shape).astype(np.float32)
    red, green, blue = _integers(choice.get("three"), 3)
    texts = (_text(choice.get(name, "")) for name in ("about", "use"))
    chosen = bands.BandChoice((red, green, blue), choice["count"], *texts)
    return bands.Bands(image, values, chosen, _text(answer.get("note", "")))


def open_image(source: str | os.PathLike[str] | bytes) -> Image.Image:
    """Return the image in a file or in bytes as RGB pixels, as `uploads.open_image`.

    Errors   Refused
    """
    return _image(*_ask(source if isinstance(source, bytes) else uploads.read(source), task="image"))


def preview_image(data: bytes, channels: int | None, requested: str) -> Image.Image | None:
    """Return the preview of a file that browsers do not display, as `bands.preview_image`; None for others.

    Errors   Refused
    """
    if not data.startswith(bands.SHOWN_AS_IMAGE):
        return None
    return _image(*_ask(data, task="preview", channels=channels, requested=requested))


def strip_metadata(data: bytes, channels: int) -> metadata.StrippedFile:
    """Return an uploaded file without metadata, as `metadata.strip_metadata`.

    Errors   Refused
    """
    answer, body = _ask(data, task="strip", channels=channels)
    if answer.get("suffix") not in metadata.SUFFIXES or type(answer.get("same_file")) is not bool:
        raise Refused(CRASHED)
    return metadata.StrippedFile(body, answer["suffix"], answer["same_file"])


def _text(value: Any) -> str:
    """Return a text of a decoder, without what is not valid in an answer of the page."""
    return str(value)[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


def _integers(value: Any, count: int) -> Sequence[int]:
    if isinstance(value, (list, tuple)) and [type(each) for each in value] == [int] * count and min(value) > 0:
        return value
    raise Refused(CRASHED)


def _image(answer: dict[str, Any], body: bytes) -> Image.Image:
    width, height = _integers(answer.get("size"), 2)
    if width * height > LARGEST or len(body) != 3 * width * height:
        raise Refused(CRASHED)
    image, notes = Image.frombytes("RGB", (width, height), body), answer.get("notes")
    image.info["notes"] = [name for name in uploads.NOTES if isinstance(notes, list) and name in notes]
    return image
