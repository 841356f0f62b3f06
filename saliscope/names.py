"""Find the known names that a misspelled name may mean, and suggest them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

ALIKE = 0.7
"""The similarity, from 0 to 1, from which a name is suggested."""
IN_SHORT_LISTS = 0.5
"""The same for lists with few names."""
MARGIN = 0.05
"""Names that are less similar than the best one by more than this are not suggested."""
LETTERS = 4  # of a word that is compared by itself


def nearest(name: str, known: Iterable[str], most: int = 3, alike: float = ALIKE) -> list[str]:
    """Return the known names that are similar to a name, the most similar first.

    Case, spaces and punctuation do not count. A name is also similar if one of its words is: "pandaa" finds
    "giant panda". `alike` is the least similarity, from 0 to 1; a short list, such as one of arguments, can use a lower
    one.

    Returns  at most `most` names, none if no name is similar

    Example
        >>> nearest("integratd", ["saliency", "integrated_gradients"])
        ['integrated_gradients']
    """
    wanted = _fold(name)
    if not wanted:
        return []
    compared = difflib.SequenceMatcher(b=wanted, autojunk=False)
    found = [(_similarity(compared, each, alike - MARGIN), each) for each in known]
    best = max((share for share, _ in found), default=0.0)
    close = [(share, each) for share, each in found if share >= max(alike, best - MARGIN)]
    return [each for _, each in sorted(close, key=lambda pair: -pair[0])[:most]]


def did_you_mean(names: Iterable[str]) -> str:
    """Return the question "Did you mean a, b or c? " with a space at its end, or an empty string for no names."""
    *head, last = [*names] or [""]
    return f"Did you mean {', '.join(head)}{' or ' if head else ''}{last}? " if last else ""


def _similarity(compared: difflib.SequenceMatcher[str], name: str, least: float) -> float:
    """Return the similarity of a name or of its most similar word; a word counts less, the first one most.

    Similarities below `least` are not computed and count as 0.
    """
    words = [_fold(word) for word in re.split(r"[\W_]+", name)]
    parts = [(_fold(name), 1.0), *((word, 0.92 if k else 0.95) for k, word in enumerate(words) if len(word) >= LETTERS)]
    best = 0.0
    for part, weight in parts:
        compared.set_seq1(part)
        # Both bounds are quick, and almost all names fail one of them.
        if min(compared.real_quick_ratio(), compared.quick_ratio()) * weight > max(best, least):
            best = max(best, compared.ratio() * weight)
    return best


def _fold(text: str) -> str:
    """Return the letters and digits in lower case; "+" is "p", as in "grad_cam_pp"."""
    return re.sub(r"[\W_]+", "", text.casefold().replace("+", "p"))
