"""Numbers and names as text, for pages, notebooks and the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from saliscope import percentages


def percent(share: float | None) -> str:
    """Return a share as a percentage, or an empty string if it is unknown."""
    return "" if share is None or share != share else percentages.percent(float(share))


def number(value: float | None, form: str = ".3g") -> str:
    """Format a value, by default with three digits."""
    return "" if value is None or value != value else percentages.number(value, form)


def as_numbers(value: Any) -> Any:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plural(count: int, noun: str) -> str:
    """Return the number with the noun, such as "1 image" or "1,200 images"."""
    if count == 1:
        return f"1 {noun}"
    ending = "ies" if noun.endswith("y") else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun.removesuffix('y') if ending == 'ies' else noun}{ending}"


def duration(seconds: float) -> str:
    """Format seconds, such as 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def shorten(names: Sequence[str], most: int) -> str:
    """Return the first names, such as "cat, dog …"."""
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def p_value(p: float, equals: str = "") -> str:
    """Return a p-value: "< 0.001", or `equals` and three decimals."""
    return "< 0.001" if p < 0.001 else f"{equals}{p:.3f}"


def _method(name: str) -> Any:
    import explainers  # torch takes seconds to start

    return explainers.METHODS.get(name)


def by_size(name: str) -> bool:
    """Return whether maps of a method show magnitudes."""
    method = _method(name)
    return method is not None and method.returns == "pixels"  # means of signed pixels would cancel


def title(name: str) -> str:
    """Return the title of a method."""
    method = _method(name)
    return method.title if method is not None else name


def unit(name: str, score: str = "") -> str:
    """Return the unit of the values of a method's maps; `score` says how scores become probabilities."""
    from explainers import score_unit  # torch takes seconds to start

    method = _method(name)
    return method.unit.replace("logit", score_unit(score)) if method is not None else ""
