"""Downloads against a small server on this machine: progress, interruption, damage, resumption, no network."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from models import downloads

CONTENT = bytes(range(256)) * 4096  # 1 MiB
DIGEST = hashlib.sha256(CONTENT).hexdigest()[:8]


@dataclass
class Server:
    """What the server sends, and what it was asked."""

    address: str = ""
    content: bytes = CONTENT
    breaks: list[int] = field(default_factory=list)
    """Bytes after which the next connections break off, one entry a connection."""
    ranges: bool = True
    delay: float = 0.0
    asked: list[str | None] = field(default_factory=list)
    """The Range header of every request."""

    @property
    def url(self) -> str:
        return f"{self.address}/net-{DIGEST}.pth"


@pytest.fixture
def server() -> Iterator[Server]:
    given = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            span = self.headers.get("Range")
            given.asked.append(span)
            begin = int(span.removeprefix("bytes=").removesuffix("-")) if span and given.ranges else 0
            if begin >= len(given.content):
                self.send_error(416)
                return
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(given.content) - begin))
            self.end_headers()
            end = begin + given.breaks.pop(0) if given.breaks else len(given.content)
            for at in range(begin, end, 1 << 16):
                self.wfile.write(given.content[at : min(at + (1 << 16), end)])
                time.sleep(given.delay)

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    given.address = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield given
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("HOOKLENS_OFFLINE", raising=False)
    return tmp_path / "hub" / "checkpoints"


def files(cache: Path) -> set[str]:
    notes = {"hooklens-checked.json", "hooklens-fetched"}
    return {path.name for path in cache.iterdir()} - notes if cache.exists() else set()


def test_a_file_arrives_whole_and_counts_as_cached(server: Server, cache: Path) -> None:
    """The bytes are the server's, under the name that torchvision looks for, and nothing else is left."""
    assert not downloads.cached(server.url)

    path = downloads.fetch("Net", server.url)

    assert path == cache / f"net-{DIGEST}.pth" and path.read_bytes() == CONTENT
    assert downloads.cached(server.url) and files(cache) == {path.name}


def test_a_cached_file_is_not_asked_for_again(server: Server) -> None:
    downloads.fetch("Net", server.url)

    downloads.fetch("Net", server.url)

    assert server.asked == [None]


def test_progress_rises_to_the_whole(server: Server) -> None:
    """Progress is called from the calling thread, never falls, and ends with everything."""
    server.delay = 0.03
    seen: list[tuple[int, int]] = []
    threads: set[int] = set()

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        threads.add(threading.get_ident())

    downloads.fetch("Net", server.url, progress)

    assert seen == sorted(seen) and seen[-1] == (len(CONTENT), len(CONTENT))
    assert threads == {threading.get_ident()} and len({done for done, _ in seen}) > 2, (
        "it must have been seen on its way"
    )


def test_a_connection_that_breaks_off_is_taken_up_where_it_broke(server: Server) -> None:
    server.breaks = [300_000, 500_000]

    path = downloads.fetch("Net", server.url)

    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=800000-"]


def test_half_a_download_never_counts_and_is_resumed_by_the_next_call(server: Server, cache: Path) -> None:
    """The server breaks off until it is given up; a later call asks for the rest only."""
    server.breaks = [300_000, *[0] * 20]
    with pytest.raises(downloads.FetchFailed, match="Net could not be downloaded: the connection was lost"):
        downloads.fetch("Net", server.url)
    assert not downloads.cached(server.url) and files(cache) == {f"net-{DIGEST}.pth.part"}
    server.breaks, server.asked = [], []

    path = downloads.fetch("Net", server.url)

    assert path.read_bytes() == CONTENT and server.asked == ["bytes=300000-"]


def test_a_server_that_cannot_resume_is_served_from_the_start(server: Server) -> None:
    server.breaks, server.ranges = [300_000], False

    path = downloads.fetch("Net", server.url)

    assert path.read_bytes() == CONTENT and len(server.asked) == 2


def test_what_an_earlier_run_left_is_thrown_away_when_it_does_not_fit(server: Server, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / f"net-{DIGEST}.pth.part").write_bytes(b"other bytes" * 1000)

    path = downloads.fetch("Net", server.url)

    assert path.read_bytes() == CONTENT and server.asked == ["bytes=11000-", None]


def test_a_complete_part_needs_no_more_than_a_new_name(server: Server, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / f"net-{DIGEST}.pth.part").write_bytes(CONTENT)

    assert downloads.fetch("Net", server.url).read_bytes() == CONTENT


def test_damaged_bytes_are_refused_and_leave_nothing(server: Server, cache: Path) -> None:
    server.content = CONTENT[:-1] + b"!"

    with pytest.raises(
        downloads.FetchFailed, match="The download of Net has another SHA-256 than published and was deleted"
    ):
        downloads.fetch("Net", server.url)

    assert not downloads.cached(server.url)
    assert all((cache / name).stat().st_size == 0 for name in files(cache))


def test_a_damaged_file_in_the_cache_is_fetched_anew(server: Server, cache: Path) -> None:
    """A torn file that somebody else's download left has the right name and the wrong sum."""
    cache.mkdir(parents=True)
    (cache / f"net-{DIGEST}.pth").write_bytes(CONTENT[:5000])
    assert not downloads.cached(server.url) and not downloads.cached(server.url, len(CONTENT))

    assert downloads.fetch("Net", server.url).read_bytes() == CONTENT


def test_the_sum_is_worked_out_once_a_file(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the next process, which begins with an empty memory; a changed file is read again."""
    path = downloads.fetch("Net", server.url)
    monkeypatch.setattr(downloads, "_VERIFIED", downloads._Verified())
    monkeypatch.setattr(downloads, "_sha256", lambda _: pytest.fail("read again"))
    assert downloads.cached(server.url)
    monkeypatch.undo()
    monkeypatch.setenv("TORCH_HOME", str(path.parents[2]))

    path.write_bytes(CONTENT[:-1] + b"!")

    assert not downloads.cached(server.url)


def test_two_threads_fetch_one_file_once(server: Server) -> None:
    server.delay = 0.02
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(downloads.fetch("Net", server.url))) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 4 and len(set(found)) == 1 and server.asked == [None]


def test_who_stops_waiting_ends_the_download_and_keeps_what_came(server: Server, cache: Path) -> None:
    server.delay = 0.05

    def progress(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        downloads.fetch("Net", server.url, progress)

    assert until(lambda: not downloads._RUNNING)
    assert not downloads.cached(server.url) and 0 < (cache / f"net-{DIGEST}.pth.part").stat().st_size < len(CONTENT)


def test_who_stops_waiting_does_not_end_it_for_the_others(server: Server) -> None:
    server.delay = 0.03
    background = downloads.join("Net", server.url)

    with pytest.raises(ZeroDivisionError):
        downloads.fetch("Net", server.url, lambda done, total: 1 // 0)

    assert background.wait(10) and background.state == "complete" and downloads.cached(server.url)


def test_a_fetch_can_be_looked_at(server: Server) -> None:
    server.delay = 0.02

    fetch = downloads.join("Net", server.url)

    states = set()
    while not fetch.wait(0.01):
        states.add(fetch.state)
        assert 0 <= fetch.done <= len(CONTENT)
    assert fetch.state == "complete" and "running" in states and fetch.sentence == ""
    assert fetch.done == fetch.total == len(CONTENT)


def test_no_network_is_said_in_one_sentence(server: Server) -> None:
    """A port that nobody listens on stands for a machine without a network."""
    dead = f"http://127.0.0.1:9/net-{DIGEST}.pth"

    fetch = downloads.join("Net", dead)

    assert (
        fetch.wait(10)
        and fetch.state == "failed"
        and fetch.sentence == "Net could not be downloaded: the server cannot be reached."
    )


def test_a_missing_file_names_the_answer(server: Server) -> None:
    server.content = b""

    with pytest.raises(downloads.FetchFailed, match="the server answered 416|has another SHA-256"):
        downloads.fetch("Net", server.url)


@pytest.mark.parametrize("value", ["1", "yes"])
def test_offline_asks_nobody(server: Server, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HOOKLENS_OFFLINE", value)

    with pytest.raises(downloads.FetchFailed, match="HOOKLENS_OFFLINE"):
        downloads.fetch("Net", server.url)

    assert server.asked == []


def test_a_folder_that_cannot_be_written_is_said(server: Server, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")

    with pytest.raises(downloads.FetchFailed, match="Net could not be stored"):
        downloads.fetch("Net", server.url)


def until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait until it is true, at most so long."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()
