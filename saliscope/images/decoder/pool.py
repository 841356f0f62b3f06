"""Open images in decoder processes, or in this process until `start` is called.

The page calls `start`. A decoder that crashes, or that takes too long, is replaced: its request is refused with a
message, and others do not notice. Commands for data sets decode their own files in their own processes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from PIL import Image

from saliscope import limits
from saliscope.errors import Refused
from saliscope.images import bands, uploads
from saliscope.images.decoder import protocol

CRASHED = "The image could not be decoded: it is damaged in a way that ends the decoder. Save it again as JPEG or PNG."
MARGIN = 5.0
"""Seconds after the time limit of the decoders until the process is ended, which a busy machine needs."""
MOST_FILES = 500
"""Files until a decoder is replaced, in case that a library leaks memory for damaged files."""
KEPT = ("PATH", "SYSTEMROOT", "TEMP", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
"""Environment variables of a decoder; others, such as access tokens, are not passed on."""


class _Process:
    """One decoder process."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        root = Path(__file__).resolve().parents[3]
        environment |= {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)]), "OMP_NUM_THREADS": "1"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "saliscope.images.decoder.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl+C is for the page
        )
        self.files = 0

    def call(self, header: dict[str, Any], data: bytes, seconds: float) -> tuple[dict[str, Any], bytearray]:
        """Return the answer to a request.

        Errors   protocol.Broken if the process ends; Refused if it takes too long
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.files += 1
        late = threading.Event()

        def end() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(OSError):  # the answer says what happened
                protocol.write(self.process.stdin, header, data)
            answer = protocol.read(self.process.stdout)
            if answer is None:
                raise protocol.Broken
            return answer
        except protocol.Broken:
            self.close()
            if late.is_set() or _used_its_time(self.process.returncode):
                raise Refused(uploads.TOO_SLOW) from None
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


def _used_its_time(code: int | None) -> bool:
    import signal  # the signal of the limit of processor time, which Windows does not have

    return code is not None and code == -getattr(signal, "SIGXCPU", 0)


class Pool:
    """Decoder processes, as many as `limits.DECODERS`; a request waits until one is idle."""

    def __init__(self, size: int = limits.DECODERS, seconds: float = limits.DECODE_SECONDS + MARGIN) -> None:
        self._places, self._seconds = threading.Semaphore(size), seconds
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._open = True
        self.restarts = 0
        """Processes that were replaced because they crashed or took too long."""

    def prepare(self) -> None:
        """Start one process, so that the first image does not wait for it."""
        with self._places:
            self._give_back(self._take())

    def call(self, data: bytes, **header: Any) -> tuple[dict[str, Any], bytearray]:
        """Return the answer to a request.

        Errors   Refused by the decoder, or because it crashed or took too long
        """
        with self._places:
            process = self._take()
            try:
                answer, body = process.call(header, data, self._seconds)
            except (protocol.Broken, Refused) as error:
                self.restarts += 1
                raise error if isinstance(error, Refused) else Refused(CRASHED) from None
            except BaseException:
                process.close()
                raise
            self._give_back(process)
        if "refused" in answer:
            raise Refused(str(answer["refused"]))
        return answer, body

    def processes(self) -> list[int]:
        """Return the numbers of the idle processes."""
        with self._lock:
            return [each.process.pid for each in self._idle]

    def close(self) -> None:
        """End all idle processes; others end after their request."""
        with self._lock:
            self._open = False
            processes, self._idle = self._idle, []
        for each in processes:
            each.close()

    def _take(self) -> _Process:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.process.poll() is None:
                    return process
                process.close()  # someone else ended it
                self.restarts += 1
        return _Process()

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            if self._open and process.files < MOST_FILES:
                self._idle.append(process)
                return
        process.close()


_pool: Pool | None = None
_pool_lock = threading.Lock()


def start() -> None:
    """Decode in separate processes from now on, and start the first one."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = Pool()
            atexit.register(stop)
    _pool.prepare()


def stop() -> None:
    """End the decoder processes, and decode in this process again."""
    global _pool
    with _pool_lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def restarts() -> int:
    """Return how many decoder processes were replaced because they crashed or took too long."""
    return _pool.restarts if _pool is not None else 0


def open_file(data: bytes, channels: int, *, raw: bool = False, requested: str = "") -> Image.Image | bands.Bands:
    """Return the image in a file, with its bands if it has other than three of 8 bits, as `bands.open_file`.

    Errors   Refused
    """
    pool = _pool
    if pool is None:
        return bands.open_file(data, channels, raw=raw, requested=requested)
    _check_length(data)
    answer, body = pool.call(data, task="open", channels=channels, raw=raw, requested=requested)
    return _unpack(answer, body)


def open_image(source: str | os.PathLike[str] | bytes) -> Image.Image:
    """Return the image in a file or in bytes as RGB pixels, as `uploads.open_image`.

    Errors   Refused
    """
    pool = _pool
    if pool is None:
        return uploads.open_image(source)
    data = source if isinstance(source, bytes) else uploads.read(source)
    _check_length(data)
    return _image(*pool.call(data, task="image"))


def preview_image(data: bytes, channels: int | None, requested: str) -> tuple[Image.Image, tuple[int, int, int]] | None:
    """Return the preview of a file that browsers do not display, and its bands, as `bands.preview_image`.

    Errors   Refused
    """
    pool = _pool
    if pool is None:
        return bands.preview_image(data, channels, requested)
    _check_length(data)
    answer, body = pool.call(data, task="preview", channels=channels, requested=requested)
    if answer.get("size") is None:
        return None
    red, green, blue = _integers(answer.get("three"), 3)
    return _image(answer, body), (red, green, blue)


def _check_length(data: bytes) -> None:
    if not data:
        raise Refused(uploads.EMPTY)
    if len(data) > limits.FILE:
        raise Refused(uploads.too_large_file(len(data)))


def _integers(value: Any, count: int) -> list[int]:
    if not isinstance(value, list) or len(value) != count or not all(type(each) is int and each > 0 for each in value):
        raise Refused(CRASHED)
    return value


def _image(answer: dict[str, Any], body: bytearray | memoryview) -> Image.Image:
    width, height = _integers(answer.get("size"), 2)
    if len(body) != 3 * width * height:
        raise Refused(CRASHED)
    return Image.frombytes("RGB", (width, height), bytes(body) if isinstance(body, memoryview) else body)


def _unpack(answer: dict[str, Any], body: bytearray) -> Image.Image | bands.Bands:
    if "shape" not in answer:
        image, known = _image(answer, body), answer.get("notes")
        image.info["notes"] = [name for name in uploads.NOTES if isinstance(known, list) and name in known]
        return image
    import numpy as np  # takes 0.1 s, and is only needed for raw values

    shape, (width, height) = _integers(answer["shape"], 3), _integers(answer.get("size"), 2)
    at = 3 * width * height
    if len(body) != at + 4 * shape[0] * shape[1] * shape[2]:
        raise Refused(CRASHED)
    values = np.frombuffer(body, "<f4", offset=at).reshape(shape).astype(np.float32)
    choice = answer.get("choice")
    fields = [str(choice.get(name, "")) for name in ("about", "use")] if isinstance(choice, dict) else []
    if not isinstance(choice, dict) or type(choice.get("count")) is not int:
        raise Refused(CRASHED)
    red, green, blue = _integers(choice.get("three"), 3)
    chosen = bands.BandChoice((red, green, blue), choice["count"], *fields)
    return bands.Bands(_image(answer, memoryview(body)[:at]), values, chosen, str(answer.get("note", "")))
