"""Downloads from a local server: progress, interruption, damage, resuming, offline mode."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from saliscope.zoo import downloads

CONTENT = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(CONTENT).hexdigest()[:8]


class Server(ThreadingHTTPServer):
    """A server of one file, or of others by their names, and the requests that it received."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.files = CONTENT, dict[str, bytes]()
        self.breaks: list[int] = []
        """Bytes after which the next connections are lost, one entry per connection."""
        self.ranges, self.delay = True, 0.0
        self.requested: list[str | None] = []
        """The Range header of every request."""
        self.url = self.url_of(f"net-{DIGEST}.pth")

    def url_of(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, span = self.server, self.headers.get("Range")
        server.requested.append(span)
        content = server.files.get(self.path[1:], server.content)
        begin = int(span.removeprefix("bytes=").removesuffix("-")) if span and server.ranges else 0
        if begin >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        end = begin + server.breaks.pop(0) if server.breaks else len(content)
        for at in range(begin, end, 1 << 16):
            self.wfile.write(content[at : min(at + (1 << 16), end)])
            time.sleep(server.delay)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name in ("SALISCOPE_OFFLINE", "SALISCOPE_CACHE_GB", "SALISCOPE_MODELS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "hub" / "checkpoints"


def files(cache: Path) -> set[str]:
    notes = {"saliscope-checked.json", "saliscope-fetched"}
    return {path.name for path in cache.iterdir()} - notes if cache.exists() else set()


def test_complete_file_is_cached(server: Server, cache: Path) -> None:
    """The file has the server's bytes and the name that torchvision expects; no other file is left.

    Progress is called in the calling thread, never decreases, and ends with the total.
    """
    server.delay, seen, threads = 0.03, list[tuple[int, int]](), set[int]()
    assert not downloads.cached(server.url)

    path = downloads.fetch("Net", server.url, lambda *each: (seen.append(each), threads.add(threading.get_ident())))

    assert path == cache / f"net-{DIGEST}.pth" and path.read_bytes() == CONTENT
    assert downloads.cached(server.url) and files(cache) == {path.name}
    assert seen == sorted(seen) and seen[-1] == (len(CONTENT), len(CONTENT)) and len(set(seen)) > 3
    assert threads == {threading.get_ident()}
    downloads.fetch("Net", server.url)
    assert server.requested == [None], "a cached file is not requested again"


def test_a_lost_connection_is_resumed(server: Server, cache: Path) -> None:
    """In the same call, or in the next one if too many are lost. A server without ranges sends everything again."""
    server.breaks = [300_000, 500_000]
    path = downloads.fetch("Net", server.url)
    assert path.read_bytes() == CONTENT and server.requested == [None, "bytes=300000-", "bytes=800000-"]

    path.unlink()
    server.breaks = [300_000, *[0] * 20]
    with pytest.raises(downloads.FetchFailed, match="Cannot download Net: the connection was lost"):
        downloads.fetch("Net", server.url)
    assert not downloads.cached(server.url) and files(cache) == {f"net-{DIGEST}.pth.part"}
    server.breaks, server.requested = [], []
    assert downloads.fetch("Net", server.url).read_bytes() == CONTENT and server.requested == ["bytes=300000-"]

    path.unlink()
    server.breaks, server.ranges = [300_000], False
    assert downloads.fetch("Net", server.url).read_bytes() == CONTENT


def test_files_of_other_programs_are_completed_or_replaced(server: Server, cache: Path) -> None:
    """A truncated file, a complete download that was not renamed, and a part of another file."""
    cache.mkdir(parents=True)
    for suffix, content in (("", CONTENT[:5000]), (".part", CONTENT), (".part", b"other bytes" * 1000)):
        (cache / f"net-{DIGEST}.pth{suffix}").write_bytes(content)
        assert not downloads.cached(server.url) and not downloads.cached(server.url, len(CONTENT))
        path = downloads.fetch("Net", server.url)
        assert path.read_bytes() == CONTENT, (suffix, len(content))
        path.unlink()


def test_damaged_download_is_rejected_and_deleted(server: Server, cache: Path) -> None:
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(downloads.FetchFailed, match="Hash mismatch: the SHA-256 of Net .* Try again."):
        downloads.fetch("Net", server.url)
    assert not downloads.cached(server.url)
    assert all((cache / name).stat().st_size == 0 for name in files(cache))
    server.content = b""
    with pytest.raises(downloads.FetchFailed, match="HTTP status 416|Hash mismatch"):
        downloads.fetch("Net", server.url)


def test_a_file_is_hashed_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a process that has a copy of the cache; a changed file is hashed again."""
    path = downloads.fetch("Net", server.url)
    copied = shutil.copytree(path.parent, tmp_path / "other" / "hub" / "checkpoints")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "other"))
    with monkeypatch.context() as patch:
        patch.setattr(downloads.hashes, "sha256", lambda _: pytest.fail("read again"))
        assert downloads.cached(server.url)
    (copied / path.name).write_bytes(CONTENT[:-1] + b"!")
    assert not downloads.cached(server.url)


def test_threads_download_one_file_once(server: Server) -> None:
    server.delay = 0.02
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda _: downloads.fetch("Net", server.url), range(4))]
    assert len(set(found)) == 1 and server.requested == [None]


def test_an_exception_in_progress_cancels_and_keeps_the_bytes(server: Server, cache: Path) -> None:
    server.delay = 0.05

    def progress(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        downloads.fetch("Net", server.url, progress)

    part, end = cache / f"net-{DIGEST}.pth.part", time.monotonic() + 5
    while not part.exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.2)
    assert not downloads.cached(server.url) and 0 < part.stat().st_size < len(CONTENT)


def test_an_exception_in_progress_does_not_cancel_for_others(server: Server) -> None:
    server.delay, states = 0.03, set()
    background = downloads.join("Net", server.url)

    with pytest.raises(ZeroDivisionError):
        downloads.fetch("Net", server.url, lambda done, total: 1 // 0)

    while not background.wait(0.01):
        states.add(background.state)
        assert 0 <= background.done <= len(CONTENT)
    assert "running" in states <= {"running", "complete"}  # it may end just after a wait
    assert background.state == "complete" and background.message == ""
    assert background.done == background.total == len(CONTENT) and downloads.cached(server.url)


def test_unreachable_server_and_folder_that_cannot_be_written_are_reported(server: Server, cache: Path) -> None:
    """An unused port simulates a machine without a network."""
    fetch = downloads.join("Net", f"http://127.0.0.1:9/net-{DIGEST}.pth")
    assert fetch.wait(10) and fetch.state == "failed" and "the server cannot be reached" in fetch.message
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    with pytest.raises(downloads.FetchFailed, match="Cannot save Net"):
        downloads.fetch("Net", server.url)


def test_offline_sends_no_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("1", "yes"):
        monkeypatch.setenv("SALISCOPE_OFFLINE", value)
        with pytest.raises(downloads.FetchFailed, match="SALISCOPE_OFFLINE"):
            downloads.fetch("Net", server.url)
    assert server.requested == []
