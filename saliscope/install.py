"""How to install Saliscope. Its address is only here: messages and the metadata of the package use this file.

Saliscope is not on a package index, so `pip install saliscope` would install a program of somebody else, or nothing.
"""

from __future__ import annotations

REPOSITORY = "https://github.com/saliscope/saliscope"


def command(extra: str) -> str:
    """Return the command that installs Saliscope with an extra.

    Example
        >>> command("app")
        'pip install "saliscope[app] @ git+https://github.com/saliscope/saliscope"'
    """
    return f'pip install "saliscope[{extra}] @ git+{REPOSITORY}"'


def hint(extra: str) -> str:
    """Return how to install an extra, as the end of a message.

    Example
        >>> hint("app").rpartition(", or ")[2]
        "in a clone: pip install -e '.[app]'"
    """
    return f"Install it with: {command(extra)}, or in a clone: pip install -e '.[{extra}]'"
