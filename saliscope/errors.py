"""The error that every part of the application raises for bad input."""

from __future__ import annotations

import errno

is_public = False
"""Whether the page answers others than the user of its machine, who must not read what the owner's code raises."""


class Refused(ValueError):
    """Bad input, or a full disk. Its text is the message that the user reads."""


def means_full_disk(error: BaseException) -> bool:
    """Return whether an error says that the disk, or what the user may store on it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def told(error: BaseException) -> str:
    """Return the message of an error for a visitor.

    On a public page, an exception of other packages that it quotes, such as of a function of the owner, is reduced to
    its type, because its text may have paths of the server.
    """
    text, cause = str(error), error.__cause__
    while is_public and cause is not None:
        kind, said = type(cause).__name__, str(cause).strip()
        if said and type(cause).__module__.partition(".")[0] not in ("saliscope", "explainers"):
            first = said.splitlines()[0].rstrip(".")
            for quoted in (f"{kind}: {said}", said, f"{kind}: {first}", first, first[:150]):
                text = text.replace(quoted, kind) if quoted != kind else text
        cause = cause.__cause__
    return text
