"""Downloads from a local server: progress, interruption, damage, resuming, offline mode."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from saliscope.zoo import downloads

CONTENT = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(CONTENT).hexdigest()[:8]


@dataclass
class Server:
    """The content and behavior of the server, and the requests it received."""

    address: str = ""
    content: bytes = CONTENT
    breaks: list[int] = field(default_factory=list)
    """Bytes after which the next connections are lost, one entry per connection."""
    ranges: bool = True
    delay: float = 0.0
    ranges_requested: list[str | None] = field(default_factory=list)
    """The Range header of every request."""

    @property
    def url(self) -> str:
        return f"{self.address}/net-{DIGEST}.pth"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            span = self.headers.get("Range")
            server.ranges_requested.append(span)
            begin = int(span.removeprefix("bytes=").removesuffix("-")) if span and server.ranges else 0
            if begin >= len(server.content):
                self.send_error(416)
                return
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(server.content) - begin))
            self.end_headers()
            end = begin + server.breaks.pop(0) if server.breaks else len(server.content)
            for at in range(begin, end, 1 << 16):
                self.wfile.write(server.content[at : min(at + (1 << 16), end)])
                time.sleep(server.delay)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("SALISCOPE_OFFLINE", raising=False)
    return tmp_path / "hub" / "checkpoints"


def files(cache: Path) -> set[str]:
    notes = {"saliscope-checked.json", "saliscope-fetched"}
    return {path.name for path in cache.iterdir()} - notes if cache.exists() else set()


def test_complete_file_is_cached(server: Server, cache: Path) -> None:
    """The file has the server's bytes and the name that torchvision expects; no other file is left."""
    assert not downloads.cached(server.url)

    path = downloads.fetch("Net", server.url)

    assert path == cache / f"net-{DIGEST}.pth" and path.read_bytes() == CONTENT
    assert downloads.cached(server.url) and files(cache) == {path.name}
    downloads.fetch("Net", server.url)
    assert server.ranges_requested == [None], "a cached file is not requested again"


def test_progress_rises_to_the_total(server: Server) -> None:
    """Progress is called in the calling thread, never decreases, and ends with the total."""
    server.delay = 0.03
    seen: list[tuple[int, int]] = []
    threads: set[int] = set()

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        threads.add(threading.get_ident())

    downloads.fetch("Net", server.url, progress)

    assert seen == sorted(seen) and seen[-1] == (len(CONTENT), len(CONTENT))
    assert threads == {threading.get_ident()} and len({done for done, _ in seen}) > 2, (
        "there must be intermediate values"
    )


def test_a_lost_connection_is_resumed(server: Server) -> None:
    server.breaks = [300_000, 500_000]
    path = downloads.fetch("Net", server.url)
    assert path.read_bytes() == CONTENT
    assert server.ranges_requested == [None, "bytes=300000-", "bytes=800000-"]

    path.unlink()
    server.breaks, server.ranges = [300_000], False
    assert downloads.fetch("Net", server.url).read_bytes() == CONTENT, "a server without ranges sends everything again"


@pytest.mark.parametrize(
    ("suffix", "content"), [("", CONTENT[:5000]), (".part", CONTENT), (".part", b"other bytes" * 1000)]
)
def test_files_of_other_programs_are_completed_or_replaced(
    suffix: str, content: bytes, server: Server, cache: Path
) -> None:
    """A truncated file, a complete download that was not renamed, and a part of another file."""
    cache.mkdir(parents=True)
    (cache / f"net-{DIGEST}.pth{suffix}").write_bytes(content)
    assert not downloads.cached(server.url) and not downloads.cached(server.url, len(CONTENT))

    assert downloads.fetch("Net", server.url).read_bytes() == CONTENT


def test_a_partial_download_is_not_cached_and_is_resumed_by_the_next_call(server: Server, cache: Path) -> None:
    """Connections are lost until the download fails; a later call only requests the rest."""
    server.breaks = [300_000, *[0] * 20]
    with pytest.raises(downloads.FetchFailed, match="Cannot download Net: the connection was lost"):
        downloads.fetch("Net", server.url)
    assert not downloads.cached(server.url) and files(cache) == {f"net-{DIGEST}.pth.part"}
    server.breaks, server.ranges_requested = [], []

    path = downloads.fetch("Net", server.url)

    assert path.read_bytes() == CONTENT and server.ranges_requested == ["bytes=300000-"]


def test_damaged_download_is_rejected_and_deleted(server: Server, cache: Path) -> None:
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(downloads.FetchFailed, match="Hash mismatch: the SHA-256 of Net .* Try again."):
        downloads.fetch("Net", server.url)
    assert not downloads.cached(server.url)
    assert all((cache / name).stat().st_size == 0 for name in files(cache))
    server.content = b""
    with pytest.raises(downloads.FetchFailed, match="HTTP status 416|Hash mismatch"):
        downloads.fetch("Net", server.url)


def test_a_file_is_hashed_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is also true for several processes; a changed file is hashed again."""
    path = downloads.fetch("Net", server.url)
    monkeypatch.setattr(downloads, "_VERIFIED", downloads._Verified())
    monkeypatch.setattr(downloads.hashes, "sha256", lambda _: pytest.fail("read again"))
    assert downloads.cached(server.url)
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_HOME", str(path.parents[2]))

    path.write_bytes(CONTENT[:-1] + b"!")

    assert not downloads.cached(server.url)


def test_threads_download_one_file_once(server: Server) -> None:
    server.delay = 0.02
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(downloads.fetch("Net", server.url))) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4 and len(set(found)) == 1 and server.ranges_requested == [None]


def test_an_exception_in_progress_cancels_and_keeps_the_bytes(server: Server, cache: Path) -> None:
    server.delay = 0.05

    def progress(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        downloads.fetch("Net", server.url, progress)

    assert until(lambda: not downloads._RUNNING)
    assert not downloads.cached(server.url) and 0 < (cache / f"net-{DIGEST}.pth.part").stat().st_size < len(CONTENT)


def test_an_exception_in_progress_does_not_cancel_for_others(server: Server) -> None:
    server.delay, states = 0.03, set()
    background = downloads.join("Net", server.url)

    with pytest.raises(ZeroDivisionError):
        downloads.fetch("Net", server.url, lambda done, total: 1 // 0)

    while not background.wait(0.01):
        states.add(background.state)
        assert 0 <= background.done <= len(CONTENT)
    assert states == {"running"} and background.state == "complete" and background.message == ""
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
    assert server.ranges_requested == []


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait for a condition, at most this number of seconds."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()
