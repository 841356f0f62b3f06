"""Hashes of files."""

from __future__ import annotations

import hashlib
import os


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hexadecimal digits, reading one megabyte at a time.

    `hashlib.file_digest` needs Python 3.11.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()
