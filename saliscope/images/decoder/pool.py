"""Open images in decoder processes, or in this process until `start` is called.

The page calls `start`. A decoder that crashes, or that takes too long, is replaced: its request is refused with a
message, and others do not notice. Each file is decoded by a separate process in a sandbox (`sandbox.py`). Commands for
data sets decode their own files in their own processes.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
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
END_SECONDS = 2.0
"""Seconds that the next file waits for the process of the last one to end, which takes milliseconds."""
CAN_POLL = hasattr(select, "poll")
MOST_FILES = 500
"""Files until a decoder is replaced, in case that a library leaks memory for damaged files."""
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

    def __init__(self, module: Sequence[str] = (WORKER,)) -> None:
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        paths = [str(Path(__file__).resolve().parents[3]), *filter(None, sys.path)]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # Each file has new memory: with large pages, a photo takes a sixth less time.
        environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", *module],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl+C is for the page
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr  # for mypy
        self._requests = io.BufferedWriter(self.process.stdin)
        self._answers, self._status = self.process.stdout, self.process.stderr
        self._lock = threading.Lock()
        self._ready = self._ends = False
        """Whether the next file can be sent, and whether the process of the last one has answered and has to end."""
        self._timer = threading.Timer(0.0, self.process.kill)
        self.mechanisms: list[str] = []
        """The active mechanisms of the sandbox; empty until the process is ready."""
        self.used = (0.0, 0)
        """Processor time in seconds and memory in bytes that the last file took; 0 on systems that do not tell it."""
        self.files = 0

    def wait(self) -> None:
        """Wait until the process is in the sandbox, and no file has been read there yet.

        Errors   protocol.Broken if the process ends
        """
        self.end_file()
        with self._lock:
            if not self._ready:
                self.mechanisms = protocol.read_line(self._status, "ready")
                self._ready = True

    def is_free(self) -> bool:
        """Return whether the process of the last file has ended."""
        return not self._ends or _has_more(self._status)

    def call(self, header: dict[str, Any], data: bytes, seconds: float) -> tuple[dict[str, Any], bytearray]:
        """Return the answer to a request. The process of the file, which takes longer to end, is not waited for.

        Errors   protocol.Broken if the process ends; Refused if it takes too long
        """
        self.files += 1
        late = threading.Event()

        def end() -> None:
            if not (self._ends and self.is_free()):
                late.set()
                self.process.kill()

        self._timer = threading.Timer(seconds, end)
        self._timer.daemon = True
        self._timer.start()
        try:
            self.wait()
            with contextlib.suppress(OSError):  # the answer says what happened
                protocol.write(self._requests, header, data)
            answer = protocol.read(self._answers, lambda found: _most_bytes(str(header["task"]), found))
            if answer is None or _has_more(self._answers):
                raise protocol.Broken
            self._ready, self._ends = False, True
            if not CAN_POLL:
                self.end_file()
            return answer
        except BaseException as error:
            code = self.close()
            if not isinstance(error, protocol.Broken):
                raise
            if late.is_set() or code == -getattr(signal, "SIGXCPU", 0):  # which Windows does not have
                raise Refused(uploads.TOO_SLOW) from None
            raise

    def end_file(self) -> None:
        """Wait until the process of the last file has ended: a file that has taken it over must not answer for others.

        Errors   protocol.Broken if it does not end, has sent more than an answer, or has crashed
        """
        with self._lock:
            if not self._ends:
                return
            if CAN_POLL and not _has_more(self._status, END_SECONDS):
                raise protocol.Broken
            code, seconds, kilobytes = protocol.read_line(self._status, "ended")
            self._timer.cancel()
            self.used, self._ends = (float(seconds), 1024 * int(kilobytes)), False
            if code != "0" or _has_more(self._answers):
                raise protocol.Broken

    def close(self) -> int:
        """End the process; return the exit status of the last file, or else of the process."""
        self._timer.cancel()
        self._ends = False
        self.process.kill()
        code = self.process.wait()
        with contextlib.suppress(OSError, ValueError, protocol.Broken):  # it is closed, or has nothing to tell
            code = int(protocol.read_line(self._status, "ended")[0])
        for stream in (self._requests, self._answers, self._status):
            with contextlib.suppress(OSError):
                stream.close()
        return code


def _has_more(stream: Any, seconds: float = 0.0) -> bool:
    """Return whether there is something to read, or the end of the stream, at the latest after some seconds."""
    if not CAN_POLL:
        return False
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


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
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._open = True
        self.restarts = 0
        """Processes that were replaced because they crashed or took too long."""
        self._latest: _Process | None = None

    @property
    def used(self) -> tuple[float, int]:
        """Processor time in seconds and memory in bytes of the last file."""
        if self._latest is None:
            return 0.0, 0
        with contextlib.suppress(protocol.Broken):  # it is replaced before the next file
            self._latest.end_file()
        return self._latest.used

    def mechanisms(self) -> list[str]:
        """Return the active mechanisms of the sandbox as soon as an idle process is ready.

        Errors   protocol.Broken if there is none, or if it ends
        """
        with self._lock:
            process = self._idle[0] if self._idle else None
        if process is None:
            raise protocol.Broken
        process.wait()
        return process.mechanisms

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
                answer, body = process.call(header, data, self.seconds)
            except (protocol.Broken, Refused) as error:
                self.restarts += 1
                raise error if isinstance(error, Refused) else Refused(CRASHED) from None
            self._latest = process
            self._give_back(process)
        if "refused" in answer:
            raise Refused(_text(answer["refused"]))
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
        """Return an idle process, one that is free if possible, or a new one."""
        while True:
            with self._lock:
                process = next((each for each in self._idle if each.is_free()), next(iter(self._idle), None))
                if process is None:
                    break
                self._idle.remove(process)
            with contextlib.suppress(protocol.Broken):
                process.end_file()
                if process.process.poll() is None:
                    return process
            process.close()  # its last file has not ended as it should, or someone else ended it
            self.restarts += 1
        return _Process(self._module)

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            if self._open and process.files < MOST_FILES:
                self._idle.append(process)
                return
        with contextlib.suppress(protocol.Broken):
            process.end_file()  # which tells what the file has used
        process.close()


_pool: Pool | None = None
_mechanisms: list[str] | None = None
_pool_lock = threading.Lock()


def start() -> None:
    """Decode in separate processes from now on, and start the first one."""
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = Pool()
            atexit.register(stop)
    _pool.prepare()
    threading.Thread(target=_report, args=[_pool], name="sandbox", daemon=True).start()


def _report(pool: Pool) -> None:
    """Remember the mechanisms of the sandbox, and log which ones are missing."""
    global _mechanisms
    with contextlib.suppress(protocol.Broken):  # its pool was stopped, or a request uses it
        _mechanisms = pool.mechanisms()
        if absent := sandbox.missing(_mechanisms):
            logging.getLogger(__name__).warning(NOT_ISOLATED.format(missing=", ".join(absent)))


def mechanisms() -> list[str] | None:
    """Return the active mechanisms of the sandbox; None until a decoder has started."""
    return _mechanisms


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


def _ask(data: bytes, **header: Any) -> tuple[dict[str, Any], bytearray]:
    """Return the answer to a request, from a decoder process or from this process.

    Errors   Refused
    """
    uploads.check_length(data)
    if (pool := _pool) is not None:
        return pool.call(data, **header)
    answer, parts = worker.decode(header, data)
    return answer, bytearray().join(parts)


def open_file(data: bytes, channels: int, *, raw: bool = False, requested: str = "") -> Image.Image | bands.Bands:
    """Return the image in a file, with its bands if it has other than three of 8 bits, as `bands.open_file`.

    Errors   Refused
    """
    answer, body = _ask(data, task="open", channels=channels, raw=raw, requested=requested)
    if "shape" not in answer:
        image, known = _image(answer, body), answer.get("notes")
        image.info["notes"] = [name for name in uploads.NOTES if isinstance(known, list) and name in known]
        return image
    shape, (width, height) = _integers(answer["shape"], 3), _integers(answer.get("size"), 2)
    at, choice = 3 * width * height, answer.get("choice")
    if len(body) != at + 4 * shape[0] * shape[1] * shape[2]:
        raise Refused(CRASHED)
    if not isinstance(choice, dict) or type(choice.get("count")) is not int:
        raise Refused(CRASHED)
    values = np.frombuffer(body, "<f4", offset=at).reshape(shape).astype(np.float32)
    red, green, blue = _integers(choice.get("three"), 3)
    texts = (_text(choice.get(name, "")) for name in ("about", "use"))
    chosen = bands.BandChoice((red, green, blue), choice["count"], *texts)
    return bands.Bands(_image(answer, body[:at]), values, chosen, _text(answer.get("note", "")))


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
    return metadata.StrippedFile(bytes(body), answer["suffix"], answer["same_file"])


def _most_bytes(task: str, answer: dict[str, Any]) -> int:
    """Return how many bytes may follow the header of an answer."""
    if "refused" in answer:
        return 0
    if task in ("image", "preview") or (task == "open" and "shape" not in answer):
        return 3 * LARGEST
    return protocol.LONGEST_BODY


def _text(value: Any) -> str:
    """Return a text of a decoder, without what is not valid in an answer of the page."""
    return str(value)[:LONGEST_TEXT].encode("utf-8", "replace").decode("utf-8")


def _integers(value: Any, count: int) -> list[int]:
    if not isinstance(value, list) or len(value) != count or not all(type(each) is int and each > 0 for each in value):
        raise Refused(CRASHED)
    return value


def _image(answer: dict[str, Any], body: bytearray) -> Image.Image:
    width, height = _integers(answer.get("size"), 2)
    if width * height > LARGEST or len(body) != 3 * width * height:
        raise Refused(CRASHED)
    return Image.frombytes("RGB", (width, height), body)
