"""The error that every part of the application raises for bad input."""

from __future__ import annotations


class Refused(ValueError):
    """Bad input, or a full disk. Its text is the message that the user reads."""
