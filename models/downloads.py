"""Weight files: fetched once, whole or not at all, into the folder that torchvision itself looks in.

A file counts as cached when its bytes have the SHA-256 that its own name begins to spell (`resnet50-11ad3fa6.pth`);
half a download or a damaged one never does. The answer is kept with the file's size and time, so that it costs once.
Bytes arrive in `NAME.part`, which is renamed when the sum is right and taken up again after an interruption.
Every download runs in a thread of its own: whoever asks for a file that is already on its way waits for the same one.

    FetchFailed(RuntimeError)    one sentence: what was fetched, what went wrong
"""

from __future__ import annotations

import contextlib
import hashlib
import http
import http.client
import json
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import torch

from models import cache_limit

Progress = Callable[[int, int], object]
"""Called with bytes done and bytes in all (0 where the server does not say)."""
State = Literal["waiting", "running", "whole", "failed"]

CHUNK = 1 << 18
SILENCE = 20.0
"""Seconds without a byte after which a connection counts as lost."""
ATTEMPTS = 4
"""Connections in a row that may break off before a download is given up; each goes on where the last one stopped."""


class FetchFailed(RuntimeError):
    """A download that did not end with a whole file."""


class Stopped(FetchFailed):
    """A download that somebody ended; its bytes are kept for the next time."""


def offline() -> bool:
    """True when the environment variable HOOKLENS_OFFLINE forbids every download."""
    return os.environ.get("HOOKLENS_OFFLINE", "") not in ("", "0")


def path_of(url: str) -> Path:
    """Where torchvision keeps the file of this address."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urllib.parse.urlparse(url).path).name


def digest_of(url: str) -> str:
    """First digits of the file's SHA-256, as its name gives them; "" where the name has none."""
    found = re.search(r"-([0-9a-f]{8,64})\.\w+$", path_of(url).name)
    return found.group(1) if found else ""


def cached(url: str, expected: int = 0) -> bool:
    """Whether the file of this address lies in the cache, whole and undamaged.

    `expected` is roughly its size in bytes; a file much smaller is refused without being read.
    """
    path = path_of(url)
    try:
        found = path.stat()
    except OSError:
        return False
    if found.st_size == 0 or found.st_size < 0.9 * expected:
        return False
    stamp = [found.st_size, found.st_mtime_ns]
    if _CHECKED.get(path) != stamp:
        if not _sha256(path).startswith(digest_of(url)):
            return False
        _CHECKED.put(path, stamp)
    return True


class Fetch:
    """One download, to be looked at from any thread while it goes on."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.done, self.total = 0, 0
        self.state: State = "waiting"
        self.sentence = ""
        """Why it failed, in words for a visitor; empty otherwise."""
        self._wanted = 0
        self._stop, self._over = threading.Event(), threading.Event()

    def __repr__(self) -> str:
        return f"Fetch({self.name!r}, {self.state}, {self.done} of {self.total} bytes)"

    def stop(self) -> None:
        """End it within one chunk; what has arrived is kept and taken up by the next fetch."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is over, at most so long; True when it is."""
        return self._over.wait(seconds)

    def _run(self) -> None:
        try:
            self.state = "running"
            _download(self)
            self.state = "whole"
        except Exception as error:
            # Whatever goes wrong here belongs to the thread that waits, which raises `sentence`.
            self.sentence = str(error) if isinstance(error, FetchFailed) else f"Fetching {self.name} failed: {error}."
            self.state = "failed"
        finally:
            with _LOCK:
                if _RUNNING.get(path_of(self.url)) is self:
                    del _RUNNING[path_of(self.url)]
            self._over.set()


_LOCK = threading.Lock()
_RUNNING: dict[Path, Fetch] = {}


def fetch(name: str, url: str, progress: Progress | None = None) -> Path:
    """Wait until the file is there, whole; the path of it.

    Errors   FetchFailed. Whatever `progress` raises comes through, and ends the download unless others want it too.
    """
    if cached(url):
        return path_of(url)
    job = join(name, url)
    try:
        while not job.wait(0.1):
            if progress:
                progress(job.done, job.total)
    except BaseException:
        with _LOCK:
            job._wanted -= 1
            if job._wanted == 0:
                job.stop()
        raise
    if job.state != "whole":
        raise FetchFailed(job.sentence)
    if progress:
        progress(job.total, job.total)
    return path_of(url)


def join(name: str, url: str) -> Fetch:
    """Begin a download, or join the one that is already running; never waits, never raises."""
    path = path_of(url)
    with _LOCK:
        job = _RUNNING.get(path)
        if job is None or job._stop.is_set():
            job = _RUNNING[path] = Fetch(name, url)
            threading.Thread(target=job._run, name=f"fetch {name}", daemon=True).start()
        job._wanted += 1
        return job


def _download(job: Fetch) -> None:
    """Fill `NAME.part`, check it, rename it."""
    path = path_of(job.url)
    part = path.with_name(path.name + ".part")
    if offline():
        raise FetchFailed(f"{job.name} is not on this machine, and HOOKLENS_OFFLINE forbids fetching it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with cache_limit.in_use(path), open(part, "a+b") as file, _alone(file, job, path) as mine:
            if not mine:
                part.unlink(missing_ok=True)
                job.done = job.total = path.stat().st_size
                return
            resumed = part.stat().st_size > 0
            _receive(job, file)
            if not _right(part, job.url) and resumed:
                # What an earlier run left may have been another file's, or damaged: once more from nothing.
                file.truncate(0)
                _receive(job, file)
            if not _right(part, job.url):
                file.truncate(0)
                raise FetchFailed(f"What arrived for {job.name} is not the file that was asked for; it is thrown away.")
            if os.name == "nt":
                file.close()  # an open file cannot be renamed there
            os.replace(part, path)
            found = path.stat()
            _CHECKED.put(path, [found.st_size, found.st_mtime_ns])
            cache_limit.remember(path)
    except cache_limit.BadLimit as error:
        raise FetchFailed(str(error)) from error
    except OSError as error:
        raise FetchFailed(f"{job.name} could not be stored: {error.strerror or error}.") from error


def _receive(job: Fetch, file: BinaryIO) -> None:
    """Append to `file` until the server has nothing more to send; lost connections are taken up where they broke."""
    lost, size = 0, -1
    while lost < ATTEMPTS:
        if size == (size := file.seek(0, os.SEEK_END)):
            lost += 1
            job._stop.wait(0.2 * lost)
        try:
            if _connection(job, file, size):
                return
        except urllib.error.HTTPError as error:
            raise FetchFailed(f"{job.name} could not be fetched: the server answered {error.code}.") from error
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            if job.done == 0:
                raise FetchFailed(f"{job.name} could not be fetched: no answer from the network.") from error
    raise FetchFailed(f"{job.name} could not be fetched: the connection broke off at {job.done >> 20} MB.")


def _connection(job: Fetch, file: BinaryIO, size: int) -> bool:
    """One request for everything from byte `size` on; whether all of it came."""
    request = urllib.request.Request(job.url, headers={"User-Agent": "hooklens"})
    if size:
        request.add_header("Range", f"bytes={size}-")
    try:
        answer = urllib.request.urlopen(request, timeout=SILENCE)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return True
    with answer:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            file.truncate(0)
            size = 0
        length = int(answer.headers.get("Content-Length") or 0)
        job.done, job.total = size, size + length if length else 0
        while chunk := answer.read1(CHUNK):
            file.write(chunk)
            job.done += len(chunk)
            if job._stop.is_set():
                raise Stopped(f"Fetching {job.name} was stopped.")
        file.flush()
    return job.done >= job.total


def _right(part: Path, url: str) -> bool:
    return part.stat().st_size > 0 and _sha256(part).startswith(digest_of(url))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _alone(file: BinaryIO, job: Fetch, path: Path) -> Iterator[bool]:
    """Keep other processes from writing the same part; False when another one finished the file meanwhile."""
    try:
        import fcntl  # Unix alone has it
    except ImportError:  # no such lock on this system: the checksum still refuses what two writers would make
        yield True
        return
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        job.done = os.fstat(file.fileno()).st_size
        time.sleep(0.2)
        if job._stop.is_set():
            raise Stopped(f"Fetching {job.name} was stopped.")
    yield not path.exists() or not cached(job.url)


class _Checked:
    """Size and time of every file whose sum was right, kept beside the files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, list[int]] = {}

    def get(self, path: Path) -> list[int] | None:
        with self._lock:
            if str(path) not in self._known:
                self._known |= {str(path.parent / name): stamp for name, stamp in self._read(path).items()}
            return self._known.get(str(path))

    def put(self, path: Path, stamp: list[int]) -> None:
        with self._lock:
            self._known[str(path)] = stamp
            kept = self._read(path) | {path.name: stamp}
            whole = self._file(path).with_suffix(f".{os.getpid()}")
            # A cache that cannot be written is only slower.
            with contextlib.suppress(OSError):
                whole.write_text(json.dumps(kept), encoding="utf-8")
                whole.replace(self._file(path))

    @staticmethod
    def _file(path: Path) -> Path:
        return path.parent / "hooklens-checked.json"

    def _read(self, path: Path) -> dict[str, list[int]]:
        try:
            kept = json.loads(self._file(path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return kept if isinstance(kept, dict) else {}


_CHECKED = _Checked()
