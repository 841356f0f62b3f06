"""SALISCOPE_CACHE_GB: which files are removed, also with several threads and processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import shutil
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model

from saliscope import zoo
from saliscope.zoo import ModelUnavailable, cache_limit, downloads, settings
from tests.saliscope.zoo.test_models_downloads import Server, cache, server

__all__ = ["cache", "server"]  # fixtures

SIZE = 100_000
Limit = Callable[[str], None]
TWO_AND_A_HALF = "0.00025"
"""The size of two and a half files in gigabytes."""
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
    limit(TWO_AND_A_HALF)

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


def read_at_random(seed: int, urls: list[str]) -> None:
    generator = random.Random(seed)
    for url in generator.choices(urls, k=25):
        with cache_limit.in_use(downloads.path_of(url)):
            assert len(downloads.fetch("Net", url).read_bytes()) == SIZE


@forked
def test_concurrent_processes_never_miss_a_file(urls: list[str], cache: Path, limit: Limit) -> None:
    """Three processes fetch and read six files in random order, under a limit of two and a half files."""
    limit(TWO_AND_A_HALF)
    fork = multiprocessing.get_context("fork")
    running = [fork.Process(target=read_at_random, args=(seed, urls)) for seed in range(3)]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    assert [process.exitcode for process in running] == [0, 0, 0]
    assert 1 <= len(cached_files(cache)) <= 2


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
