"""What is refused, in one clear sentence: what was given, why it cannot be, what to do."""

from __future__ import annotations


class Refused(ValueError):
    """Bad input or a full disk; the message is the sentence that a user reads."""
