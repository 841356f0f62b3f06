"""Downloads from a local server: progress, damage, resuming, offline mode, and the limit SALISCOPE_CACHE_GB."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model

from saliscope import zoo
from saliscope.zoo import ModelUnavailable, cache_limit, downloads, settings

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


# The limit of the cache

SIZE = 100_000
Limit = Callable[[str], None]
forked = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")


@pytest.fixture
def urls(server: Server) -> list[str]:
    """Serve six files, each with its checksum in its name."""
    for number in range(6):
        content = bytes([number]) * SIZE
        server.files[f"net{number}-{hashlib.sha256(content).hexdigest()[:8]}.pth"] = content
    return [*map(server.url_of, server.files)]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    return lambda gigabytes: monkeypatch.setenv("SALISCOPE_CACHE_GB", gigabytes)


def fetch(*urls: str) -> None:
    for url in urls:
        downloads.fetch("Net", url)


def cached_files(folder: Path) -> str:
    """Return the numbers of the cached files."""
    return "".join(sorted(path.name[3] for path in folder.glob("net*.pth")))


def test_the_least_recently_used_goes_first(urls: list[str], cache: Path, limit: Limit) -> None:
    """Files downloaded without a limit count as well; a use makes a file the most recent one."""
    fetch(*urls[:3])
    with cache_limit.in_use(downloads.path_of(urls[0])):
        pass
    assert cached_files(cache) == "012"
    limit("0.00025")  # two and a half files

    fetch(urls[3])

    assert cached_files(cache) == "03"
    assert not downloads.cached(urls[1]) and downloads.cached(urls[3])
    with pytest.raises(downloads.FetchFailed):
        fetch(urls[0].replace("net0", "net8"))
    assert {path.stem[3] for path in (cache / "saliscope-fetched").glob("*.json")} == {"0", "3"}
    limit("1e-6")
    fetch(urls[4])
    assert cached_files(cache) == "4", "the latest file is kept although it exceeds the limit"


def test_files_of_other_programs_are_never_removed(urls: list[str], cache: Path, limit: Limit) -> None:
    """Neither an existing file, nor a downloaded file that was replaced, touched or linked afterwards."""
    cache.mkdir(parents=True)
    foreign = cache / "net9-resnet.pth"
    foreign.write_bytes(b"9" * SIZE)
    downloads.path_of(urls[5]).write_bytes(bytes([5]) * SIZE)  # complete, but not downloaded here
    fetch(*urls)
    first, second, third = (downloads.path_of(url) for url in urls[:3])
    first.write_bytes(b"trained further")
    os.utime(second)
    moved = cache.parent / third.name
    third.rename(moved)
    third.symlink_to(moved)
    limit("1e-6")

    with cache_limit.in_use(foreign):
        pass

    assert cached_files(cache) == "012459" and first.read_bytes() == b"trained further" and moved.exists()
    assert [path.stem[3] for path in (cache / "saliscope-fetched").glob("*.json")] == ["4"]


def test_records_that_are_broken_orphaned_or_missing(urls: list[str], cache: Path, limit: Limit) -> None:
    fetch(*urls[:3])
    records = cache / "saliscope-fetched"
    (records / f"{downloads.path_of(urls[0]).name}.json").write_text('{"half":')
    downloads.path_of(urls[1]).unlink()
    limit("1e-6")
    fetch(urls[3])
    assert cached_files(cache) == "03"
    shutil.rmtree(records)
    records.write_text("a file where the folder should be")
    fetch(urls[4])
    assert cached_files(cache) == "034"


def hold(path: Path, reading: Event, done: Event) -> None:
    with cache_limit.in_use(path):
        reading.set()
        done.wait(60)


@forked
def test_nothing_is_removed_while_a_thread_or_process_reads(urls: list[str], cache: Path, limit: Limit) -> None:
    """The last holder of the lock removes files."""
    fetch(*urls[:2])
    limit("1e-6")
    with cache_limit.in_use(downloads.path_of(urls[0])):
        fetch(urls[2])
        assert cached_files(cache) == "012"
    assert cached_files(cache) == "0"

    fork = multiprocessing.get_context("fork")
    reading, done = fork.Event(), fork.Event()
    reader = fork.Process(target=hold, args=(downloads.path_of(urls[0]), reading, done))
    reader.start()
    assert reading.wait(60)
    fetch(urls[2])
    assert cached_files(cache) == "02"
    done.set()
    reader.join(60)
    assert reader.exitcode == 0 and cached_files(cache) == "0"


def test_the_limit_is_a_positive_number_of_gigabytes(urls: list[str], cache: Path, limit: Limit) -> None:
    for value, expected in (("", None), (" ", None), (" 1.5 ", 1_500_000_000)):
        limit(value)
        assert settings.cache_bytes() == expected
    for value in ("5GB", "0", "-1", "nan", "inf", "1e999", "1,5"):
        limit(value)
        message = f"Invalid SALISCOPE_CACHE_GB='{value}'"
        with pytest.raises(downloads.FetchFailed, match=message):
            fetch(urls[0])
        with pytest.raises(ModelUnavailable, match=f"{message}.*Available without a download: efficientnet_lite0"):
            zoo.load_model("squeezenet1_1")
    assert cached_files(cache) == "", "reported before a download"


def test_loading_a_model_is_a_use_and_applies_the_limit(
    urls: list[str], cache: Path, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the loaded network, which is the oldest download, is kept."""
    cache.mkdir(parents=True)
    path = cache / "squeezenet1_1-b8a52dc0.pth"
    torch.save(get_model("squeezenet1_1").state_dict(), path)
    monkeypatch.setattr(downloads.hashes, "sha256", lambda path: path.stem.rpartition("-")[2])
    with cache_limit.in_use(path):
        cache_limit.remember(path)
    fetch(*urls[:2])
    limit("1e-6")

    assert zoo.load_model("squeezenet1_1").name == "squeezenet1_1"

    assert path.exists() and cached_files(cache) == ""
