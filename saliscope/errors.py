"""The error that every part of the application raises for bad input."""

from __future__ import annotations

import errno


class Refused(ValueError):
    """Bad input, or a full disk. Its text is the message that the user reads."""


def means_full_disk(error: BaseException) -> bool:
    """Return whether an error says that the disk, or what the user may store on it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
