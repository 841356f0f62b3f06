"""Names of classes in titles, tables and sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

OF_TARGETS = re.compile(r"\b(class_|classes|against|labels)=(\d+|\([\d, ]+\))")
IN_SENTENCES = re.compile(r"\bclass (\d+)", re.IGNORECASE)


def class_name(index: int, labels: Sequence[str] | None) -> str:
    """Return the name of a class with its index, "tabby (class 281)", or "class 281" without a name."""
    known = labels is not None and 0 <= index < len(labels)
    return f"{labels[index]} (class {index})" if known and labels is not None else f"class {index}"


def target_name(target: list[int] | str | None, labels: Sequence[str] | None) -> str:
    """Return the explained classes, or the text of a target, with the names of its classes."""
    if target is None:
        return "no class"
    if isinstance(target, str):
        return target if labels is None else OF_TARGETS.sub(lambda found: _named_field(found, labels), target)
    names = list(dict.fromkeys(class_name(index, labels) for index in target))
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def name_classes(sentence: str, labels: Sequence[str] | None) -> str:
    """Replace "class 281" in a sentence by the name of the class."""
    if labels is None:
        return sentence

    def name(found: re.Match[str]) -> str:
        index = int(found[1])
        return class_name(index, labels) if index < len(labels) else found[0]

    return IN_SENTENCES.sub(name, sentence)


def _named_field(found: re.Match[str], labels: Sequence[str]) -> str:
    value = re.sub(r"\d+", lambda index: class_name(int(index[0]), labels), found[2])
    return f"{found[1]}={value}"
