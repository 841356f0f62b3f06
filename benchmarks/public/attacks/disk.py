"""Attacks on the disk: uploads that fill it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx

from benchmarks.public.attacks import users
from benchmarks.public.attacks.http import Result
from benchmarks.public.server import Server
from saliscope import limits

PARTS = 30
"""Megabytes of one upload."""


def disk(server: Server) -> Iterator[Result]:
    """Upload more than the folder may have, and many files at once."""
    many = [("files", (f"{number}.png", b"\x89PNG")) for number in range(limits.UPLOAD_PARTS + 1)]
    answer = httpx.post(f"{server.url}/gradio_api/upload", files=many, timeout=60)
    yield Result(f"an upload of {len(many)} files", answer.status_code, 400)
    unfinished = len([path for path in server.uploads.glob("tmp*") if path.is_file()])
    yield Result("files of one refused upload are at most its parts", unfinished <= limits.UPLOAD_PARTS, True)
    image = users.IMAGE.read_bytes()
    first = users.upload(server, image)
    codes, largest = set(), 0
    for _ in range(limits.UPLOADS // (PARTS * limits.MB) + 4):
        content = os.urandom(1024) * 1024 * PARTS
        files = {"files": ("x.png", content)}
        codes.add(httpx.post(f"{server.url}/gradio_api/upload", files=files, timeout=60).status_code)
        largest = max(largest, sum(path.stat().st_size for path in server.uploads.rglob("*") if path.is_file()))
    yield Result("answers to many uploads", codes <= {200, 507}, True)
    yield Result("bytes in the folder stay below the quota", largest <= limits.UPLOADS, True)
    yield Result("an image that is in use stays", os.path.exists(first), True)
