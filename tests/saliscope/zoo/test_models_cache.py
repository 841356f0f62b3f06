"""SALISCOPE_CACHE_GB: which files are removed, also with several threads and processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model

from saliscope import zoo
from saliscope.zoo import ModelUnavailable, cache_limit, downloads, settings

SIZE = 100_000
Limit = Callable[[str], None]
TWO_AND_A_HALF = "0.00025"
"""The size of two and a half files in gigabytes."""
forked = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Tests print nothing."""


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[list[str]]:
    """Serve six files on a local server, each with its checksum in its name."""
    folder = tmp_path / "served"
    folder.mkdir()
    names = []
    for number in range(6):
        content = bytes([number]) * SIZE
        names.append(f"net{number}-{hashlib.sha256(content).hexdigest()[:8]}.pth")
        (folder / names[-1]).write_bytes(content)
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=folder))
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield [f"http://127.0.0.1:{http.server_port}/{name}" for name in names]
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for name in ("SALISCOPE_OFFLINE", "SALISCOPE_CACHE_GB", "SALISCOPE_MODELS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "hub" / "checkpoints"


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    return lambda gigabytes: monkeypatch.setenv("SALISCOPE_CACHE_GB", gigabytes)


def fetch(*urls: str) -> None:
    for url in urls:
        downloads.fetch("Net", url)


def cached_files(folder: Path) -> str:
    """Return the numbers of the cached files."""
    return "".join(sorted(path.name[3] for path in folder.glob("net*.pth")))


def test_the_least_recently_used_goes_first(urls: list[str], checkpoints: Path, limit: Limit) -> None:
    """Files downloaded without a limit count as well; a use makes a file the most recent one."""
    fetch(*urls[:3])
    with cache_limit.in_use(downloads.path_of(urls[0])):
        pass
    assert cached_files(checkpoints) == "012"
    limit(TWO_AND_A_HALF)

    fetch(urls[3])

    assert cached_files(checkpoints) == "03"
    assert not downloads.cached(urls[1]) and downloads.cached(urls[3])
    with pytest.raises(downloads.FetchFailed):
        fetch(urls[0].replace("net0", "net8"))
    assert {path.stem[3] for path in (checkpoints / "saliscope-fetched").glob("*.json")} == {"0", "3"}
    limit("1e-6")
    fetch(urls[4])
    assert cached_files(checkpoints) == "4", "the latest file is kept although it exceeds the limit"


def test_files_of_other_programs_are_never_removed(urls: list[str], checkpoints: Path, limit: Limit) -> None:
    """Neither an existing file, nor a downloaded file that was replaced, touched or linked afterwards."""
    checkpoints.mkdir(parents=True)
    foreign = checkpoints / "net9-resnet.pth"
    foreign.write_bytes(b"9" * SIZE)
    downloads.path_of(urls[5]).write_bytes(bytes([5]) * SIZE)  # complete, but not downloaded here
    fetch(*urls)
    first, second, third = (downloads.path_of(url) for url in urls[:3])
    first.write_bytes(b"trained further")
    os.utime(second)
    moved = checkpoints.parent / third.name
    third.rename(moved)
    third.symlink_to(moved)
    limit("1e-6")

    with cache_limit.in_use(foreign):
        pass

    assert cached_files(checkpoints) == "012459" and first.read_bytes() == b"trained further" and moved.exists()
    assert [path.stem[3] for path in (checkpoints / "saliscope-fetched").glob("*.json")] == ["4"]


def test_a_broken_or_orphaned_record_is_ignored(urls: list[str], checkpoints: Path, limit: Limit) -> None:
    fetch(*urls[:3])
    records = checkpoints / "saliscope-fetched"
    (records / f"{downloads.path_of(urls[0]).name}.json").write_text('{"half":')
    downloads.path_of(urls[1]).unlink()
    limit("1e-6")

    fetch(urls[3])

    assert cached_files(checkpoints) == "03"


def hold(path: Path, reading: Event, done: Event) -> None:
    with cache_limit.in_use(path):
        reading.set()
        done.wait(60)


@forked
def test_nothing_is_removed_while_a_thread_or_process_reads(urls: list[str], checkpoints: Path, limit: Limit) -> None:
    """The last holder of the lock removes files."""
    fetch(*urls[:2])
    limit("1e-6")
    with cache_limit.in_use(downloads.path_of(urls[0])):
        fetch(urls[2])
        assert cached_files(checkpoints) == "012"
    assert cached_files(checkpoints) == "0"

    fork = multiprocessing.get_context("fork")
    reading, done = fork.Event(), fork.Event()
    reader = fork.Process(target=hold, args=(downloads.path_of(urls[0]), reading, done))
    reader.start()
    assert reading.wait(60)
    fetch(urls[2])
    assert cached_files(checkpoints) == "02"
    done.set()
    reader.join(60)
    assert reader.exitcode == 0 and cached_files(checkpoints) == "0"


def read_at_random(seed: int, urls: list[str]) -> None:
    generator = random.Random(seed)
    for url in generator.choices(urls, k=25):
        with cache_limit.in_use(downloads.path_of(url)):
            assert len(downloads.fetch("Net", url).read_bytes()) == SIZE


@forked
def test_concurrent_processes_never_miss_a_file(urls: list[str], checkpoints: Path, limit: Limit) -> None:
    """Three processes fetch and read six files in random order, under a limit of two and a half files."""
    limit(TWO_AND_A_HALF)
    fork = multiprocessing.get_context("fork")
    running = [fork.Process(target=read_at_random, args=(seed, urls)) for seed in range(3)]

    for process in running:
        process.start()
    for process in running:
        process.join(60)

    assert [process.exitcode for process in running] == [0, 0, 0]
    assert 1 <= len(cached_files(checkpoints)) <= 2


def test_caching_works_without_records(urls: list[str], checkpoints: Path, limit: Limit) -> None:
    checkpoints.mkdir(parents=True)
    (checkpoints / "saliscope-fetched").write_text("a file where the folder should be")
    limit("1e-6")

    fetch(*urls[:2])

    assert cached_files(checkpoints) == "01"


def test_the_limit_is_a_positive_number_of_gigabytes(urls: list[str], checkpoints: Path, limit: Limit) -> None:
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
    assert cached_files(checkpoints) == "", "reported before a download"


def test_loading_a_model_is_a_use_and_applies_the_limit(
    urls: list[str], checkpoints: Path, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the loaded network, which is the oldest download, is kept."""
    checkpoints.mkdir(parents=True)
    path = checkpoints / "squeezenet1_1-b8a52dc0.pth"
    torch.save(get_model("squeezenet1_1").state_dict(), path)
    monkeypatch.setattr(downloads.hashes, "sha256", lambda path: path.stem.rpartition("-")[2])
    with cache_limit.in_use(path):
        cache_limit.remember(path)
    fetch(*urls[:2])
    limit("1e-6")

    assert zoo.load_model("squeezenet1_1").name == "squeezenet1_1"

    assert path.exists() and cached_files(checkpoints) == ""
