"""Downloads of weight files into the cache of torch, resumable and verified by SHA-256.

A file is cached if its SHA-256 starts with the digits in its name (`resnet50-11ad3fa6.pth`), so a partial or damaged
download is never used. The result is stored with the size and modification time of the file, so that a file is hashed
only once. Bytes are written to `NAME.part`. That file is resumed after an interruption and renamed if the checksum is
correct. Every download has its own thread; a second request for the same file waits for the running download.

    FetchFailed(RuntimeError)    what was downloaded, and what went wrong
"""

from __future__ import annotations

import contextlib
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

from saliscope import hashes
from saliscope.zoo import cache_limit, settings

Progress = Callable[[int, int], object]
"""Called with the number of bytes received and the total, which is 0 if the server does not report it."""
State = Literal["waiting", "running", "complete", "failed"]

CHUNK = 1 << 18
TIMEOUT = 20.0
"""Seconds without data after which a connection is considered lost."""
ATTEMPTS = 4
"""Connections without new data before a download fails; each one resumes where the last one stopped."""


NOT_VERIFIED = "{names}: not verified, because its publisher states no SHA-256."
_HASHED: dict[tuple[Path, str], list[int]] = {}


class FetchFailed(RuntimeError):
    """A download that did not complete."""


class Stopped(FetchFailed):
    """A cancelled download; the bytes received are kept, and the next download resumes."""


def path_of(url: str) -> Path:
    """Return the path where torchvision expects the file of this URL."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urllib.parse.urlparse(url).path).name


def digest_of(url: str) -> str:
    """Return the first digits of the file's SHA-256 from its name, or "" if the name has none."""
    match = re.search(r"-([0-9a-f]{8,64})\.\w+$", path_of(url).name)
    return match.group(1) if match else ""


def cached(url: str, expected: int = 0) -> bool:
    """Return whether the file of this URL is in the cache, complete and undamaged.

    `expected` is its approximate size in bytes; a much smaller file is rejected without reading it.
    """
    path = path_of(url)
    try:
        stamp = _stamp(path)
    except OSError:
        return False
    if stamp[0] == 0 or stamp[0] < 0.9 * expected:
        return False
    if _VERIFIED.get(path) != stamp:
        if not hashes.sha256(path).startswith(digest_of(url)):
            return False
        _VERIFIED.put(path, stamp)
    return True


def has_digest(path: Path, digest: str) -> bool:
    """Return whether a file has this SHA-256; a file that has not changed is hashed once per process."""
    stamp = _stamp(path)
    if _HASHED.get((path, digest)) == stamp:
        return True
    if hashes.sha256(path) != digest:
        return False
    _HASHED[path, digest] = stamp
    return True


class Fetch:
    """One download. Any thread may read its progress."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.done, self.total = 0, 0
        self.state: State = "waiting"
        self.message = ""
        """Why it failed, or else empty."""
        self._waiting = 0
        self._stop, self._done = threading.Event(), threading.Event()

    def __repr__(self) -> str:
        return f"Fetch({self.name!r}, {self.state}, {self.done} of {self.total} bytes)"

    def stop(self) -> None:
        """Cancel within one chunk; the bytes received are kept, and the next download resumes."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the download ends, for at most `seconds`, and return whether it has ended."""
        return self._done.wait(seconds)

    def _run(self) -> None:
        try:
            self.state = "running"
            _download(self)
            self.state = "complete"
        except Exception as error:
            # The waiting thread raises this message.
            self.message = str(error) if isinstance(error, FetchFailed) else f"Download of {self.name} failed: {error}."
            self.state = "failed"
        finally:
            with _LOCK:
                if _RUNNING.get(path_of(self.url)) is self:
                    del _RUNNING[path_of(self.url)]
            self._done.set()


_LOCK = threading.Lock()
_RUNNING: dict[Path, Fetch] = {}


def fetch(name: str, url: str, progress: Progress | None = None) -> Path:
    """Download the file unless it is cached.

    Returns  its path
    Errors   FetchFailed. An exception in `progress` propagates, and cancels the download unless others wait for it.
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
            job._waiting -= 1
            if job._waiting == 0:
                job.stop()
        raise
    if job.state != "complete":
        raise FetchFailed(job.message)
    if progress:
        progress(job.total, job.total)
    return path_of(url)


def join(name: str, url: str) -> Fetch:
    """Start a download or join the running one, without waiting and without raising."""
    path = path_of(url)
    with _LOCK:
        job = _RUNNING.get(path)
        if job is None or job._stop.is_set():
            job = _RUNNING[path] = Fetch(name, url)
            threading.Thread(target=job._run, name=f"fetch {name}", daemon=True).start()
        job._waiting += 1
        return job


def _download(job: Fetch) -> None:
    """Download to `NAME.part`, verify the file, and rename it."""
    path = path_of(job.url)
    part = path.with_name(path.name + ".part")
    if settings.offline():
        raise FetchFailed(f"{job.name} is not in the local cache, and SALISCOPE_OFFLINE forbids downloading it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with cache_limit.in_use(path), open(part, "a+b") as file, _exclusive(file, job, path) as acquired:
            if not acquired:
                part.unlink(missing_ok=True)
                job.done = job.total = path.stat().st_size
                return
            resumed = part.stat().st_size > 0
            _receive(job, file)
            if not _verify(part, job.url) and resumed:
                # The bytes of an earlier run may be damaged or of another file: start again.
                file.truncate(0)
                _receive(job, file)
            if not _verify(part, job.url):
                file.truncate(0)
                raise FetchFailed(f"Hash mismatch: the SHA-256 of {job.name} is not the published one. Try again.")
            if os.name == "nt":
                file.close()  # Windows cannot rename an open file
            os.replace(part, path)
            _VERIFIED.put(path, _stamp(path))
            cache_limit.remember(path)
    except settings.BadLimit as error:
        raise FetchFailed(str(error)) from error
    except OSError as error:
        raise FetchFailed(f"Cannot save {job.name}: {error.strerror or error}.") from error


def _receive(job: Fetch, file: BinaryIO) -> None:
    """Append to `file` until the server has sent everything, resuming lost connections."""
    lost, size = 0, -1
    while lost < ATTEMPTS:
        if size == (size := file.seek(0, os.SEEK_END)):
            lost += 1
            job._stop.wait(0.2 * lost)
        try:
            if _connection(job, file, size):
                return
        except urllib.error.HTTPError as error:
            raise FetchFailed(f"Cannot download {job.name}: HTTP status {error.code}.") from error
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, TimeoutError, ConnectionError) as error:
            if job.done == 0:
                raise FetchFailed(f"Cannot download {job.name}: the server cannot be reached.") from error
    raise FetchFailed(f"Cannot download {job.name}: the connection was lost after {job.done >> 20} MB.")


def _connection(job: Fetch, file: BinaryIO, size: int) -> bool:
    """Request the bytes from `size` on, and return whether the end was reached."""
    request = urllib.request.Request(job.url, headers={"User-Agent": "saliscope"})
    if size:
        request.add_header("Range", f"bytes={size}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
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
                raise Stopped(f"Download of {job.name} was cancelled.")
        file.flush()
    return job.done >= job.total


def _verify(part: Path, url: str) -> bool:
    return part.stat().st_size > 0 and hashes.sha256(part).startswith(digest_of(url))


@contextlib.contextmanager
def _exclusive(file: BinaryIO, job: Fetch, path: Path) -> Iterator[bool]:
    """Lock the partial file against other processes; yield False if another process has completed the file."""
    try:
        import fcntl  # not on Windows
    except ImportError:  # Windows has no such lock; the checksum still rejects a file with two writers
        yield True
        return
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        job.done = os.fstat(file.fileno()).st_size
        time.sleep(0.2)
        if job._stop.is_set():
            raise Stopped(f"Download of {job.name} was cancelled.")
    yield not path.exists() or not cached(job.url)


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


class _Verified:
    """Size and modification time of every verified file, stored in the folder of the files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stamps: dict[str, list[int]] = {}

    def get(self, path: Path) -> list[int] | None:
        with self._lock:
            if str(path) not in self._stamps:
                self._stamps |= {str(path.parent / name): stamp for name, stamp in self._read(path).items()}
            return self._stamps.get(str(path))

    def put(self, path: Path, stamp: list[int]) -> None:
        with self._lock:
            self._stamps[str(path)] = stamp
            stored = self._read(path) | {path.name: stamp}
            temporary = self._file(path).with_suffix(f".{os.getpid()}")
            # If the cache cannot be written, files are hashed again.
            with contextlib.suppress(OSError):
                temporary.write_text(json.dumps(stored), encoding="utf-8")
                temporary.replace(self._file(path))

    @staticmethod
    def _file(path: Path) -> Path:
        return path.parent / "saliscope-checked.json"

    def _read(self, path: Path) -> dict[str, list[int]]:
        try:
            stored = json.loads(self._file(path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stored if isinstance(stored, dict) else {}


_VERIFIED = _Verified()
