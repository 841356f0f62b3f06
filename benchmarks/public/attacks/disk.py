"""Attacks on the disk: uploads that fill it, and uploads that stay."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks.public.client import IMAGE, Result, upload
from benchmarks.public.server import Server
from saliscope import limits

PARTS = 30
"""Megabytes of one upload."""
SWEEPS = 4
"""Cleanups until an old file must be gone."""


def disk(server: Server) -> Iterator[Result]:
    """Upload many files at once, look for old ones, and upload more than the folder may have."""
    many = [("files", (f"{number}.png", b"\x89PNG")) for number in range(limits.UPLOAD_PARTS + 1)]
    answer = httpx.post(f"{server.url}/gradio_api/upload", files=many, timeout=60)
    yield Result(f"an upload of {len(many)} files", answer.status_code, 400)
    unfinished = len([path for path in server.uploads.glob("tmp*") if path.is_file()])
    yield Result("files of one refused upload are at most its parts", unfinished <= limits.UPLOAD_PARTS, True)
    yield from old_files(server)
    yield from quota(server)


def old_files(server: Server) -> Iterator[Result]:
    """Look whether uploads of long ago are removed, also those of an earlier process, and no others."""
    own, young = (Path(upload(server, os.urandom(999))) for _ in range(2))
    earlier, part = server.uploads / ("0123" * 16) / "image.png", server.uploads / "tmpearlier"
    foreign = server.uploads / "not-of-the-page"
    earlier.parent.mkdir()
    old, now = (own, earlier, part), time.time()
    for path in (*old, foreign, young):
        path.touch()
        for each in {path, path.parent} - {server.uploads}:
            os.utime(each, (now, now - (0.5 if path == young else 1.01) * limits.KEEP))
    until = time.monotonic() + SWEEPS * limits.SWEEP
    while time.monotonic() < until and any(path.exists() for path in old):
        time.sleep(0.2)
    yield Result("an upload, one of an earlier process, and a part stay", [path.exists() for path in old], [False] * 3)
    yield Result("a younger upload stays", young.exists(), True)
    yield Result("a file that is not of the page stays", foreign.exists(), True)


def quota(server: Server) -> Iterator[Result]:
    """Upload more than the folder may have."""
    first, codes, largest = upload(server, IMAGE.read_bytes()), set(), 0
    for _ in range(limits.UPLOADS // (PARTS * limits.MB) + 4):
        files = {"files": ("x.png", os.urandom(1024) * 1024 * PARTS)}
        codes.add(httpx.post(f"{server.url}/gradio_api/upload", files=files, timeout=60).status_code)
        largest = max(largest, sum(path.stat().st_size for path in server.uploads.rglob("*") if path.is_file()))
    yield Result("answers to many uploads", codes <= {200, 507}, True)
    yield Result("bytes in the folder stay below the quota", largest <= limits.UPLOADS, True)
    yield Result("an image that is in use stays", os.path.exists(first), True)
