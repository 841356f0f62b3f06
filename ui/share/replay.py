"""`python app.py replay bundle.zip`: the maps of a bundle computed again, and compared with those in it.

The network is one that this machine offers, never one that the file names by a function or a path: whoever has a
network of their own says so on the command line, as for the page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ui.engine import engine, model_cache, runs
from ui.engine.messages import Answer, Refused, Scene
from ui.share import bundle, reading, record, words

if TYPE_CHECKING:
    import numpy as np

SECONDS = 24 * 3600.0
ROUNDING = 1e-3
"""Parts of the largest value up to which two maps are equal: another processor, or other numbers of threads, add in
another order.
"""
SHORT = 0.02
"""The same where the network ran in numbers of 8 binary digits."""


def run(path: str, say: Callable[[str], object], *, model: str = "auto", own: Mapping[str, Any] | None = None) -> int:
    """Compute the maps of a bundle again and `say` how they compare, in a few lines.

    Returns  the exit code: 0 where hashes and maps agree, 1 for a difference or a refusal
    """
    try:
        found = reading.read(path)
        equal = True
        for line, good in _compared(found, model, own):
            say(line)
            equal = equal and good
        return 0 if equal else 1
    except Exception as error:
        say(engine.sentence_of(error, words.FAILED))
        return 1


def _compared(found: reading.Bundle, model: str, own: Mapping[str, Any] | None) -> Iterator[tuple[str, bool]]:
    """Lines, and whether each says that something agrees."""
    yield words.photograph(found.untouched), found.untouched
    model_cache.start(model, 0.0, own)
    for _ in model_cache.wait():
        pass
    if error := model_cache.loading_error() if own else "":
        raise Refused(error)
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "photograph"
        picture.write_bytes(found.photograph)
        for each in found.maps:
            yield from _one(each, str(picture))
    if now := words.versions(found.versions, record.versions()):
        yield now, True


def _one(each: reading.Map, picture: str) -> Iterator[tuple[str, bool]]:
    if each.answer.get("share", 1) != 1:
        raise Refused(words.STOPPED)
    settings = bundle.settled(each.question)
    yield words.heading(each.name, settings, each.question), True
    agree = record.weights(settings.loaded)["sha256"] == each.weights
    yield words.weights(agree, settings.loaded.title), agree
    if not each.untouched:
        yield words.CHANGED, False
    again = _again(each.question, picture).map.float().cpu().numpy()
    if again.shape != each.values.shape:
        yield words.shapes(each.values.shape, again.shape), False
        return
    largest, size, same_gaps = _difference(each.values, again)
    short = str(settings.options.get("precision", "")) in ("bf16", "float16")
    equal = same_gaps and largest <= (SHORT if short else ROUNDING) * size
    yield words.difference(largest, size, equal, exact=largest == 0 and same_gaps), equal


def _again(question: Any, picture: str) -> Answer:
    """The answer to a bundle's question, computed now.

    Errors   Refused where there is none
    """
    request = bundle.request(question, picture)
    answer = None
    with runs.begin(None, SECONDS) as token:
        assert token is not None
        for step in engine.explain(request, token, stages=False):
            if isinstance(step, Scene) and step.settings.notes:
                raise Refused(step.settings.notes[0].split(" Shown instead")[0])
            answer = step if isinstance(step, Answer) else answer
    if answer is None:
        raise Refused(words.NOTHING)
    return answer


def _difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float, bool]:
    """The largest difference, the largest value, and whether both have their gaps (NaN, infinity) in the same cells."""
    import numpy as np  # a tenth of a second that only raw pixels need

    finite = np.isfinite(one) & np.isfinite(other)
    gaps = bool((np.isfinite(one) == np.isfinite(other)).all())
    if not finite.any():
        return 0.0, 0.0, gaps
    both = one[finite].astype("f8"), other[finite].astype("f8")
    return float(abs(both[0] - both[1]).max()), float(max(abs(both[0]).max(), abs(both[1]).max())), gaps
