"""`saliscope replay bundle.zip`: recompute the maps of a bundle and compare them with the stored maps.

The network must be one that this machine offers. A bundle cannot load a network from a function or a path; custom
networks are given on the command line, as for the page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from saliscope.compute import engine, model_cache
from saliscope.compute import messages as page_messages
from saliscope.compute.answers import Answer, Scene
from saliscope.compute.bundles import bundle, messages, reading, record
from saliscope.compute.erase import engine as erase
from saliscope.compute.jobs import runs
from saliscope.compute.messages import short
from saliscope.errors import Refused
from saliscope.zoo import devices
from saliscope.zoo import settings as model_settings

Files = tuple[str, str | None]
"""The paths of the image and of the second image of an edit."""
SECONDS = 24 * 3600.0
ROUNDING = 1e-3
"""Relative tolerance for equal maps, because other processors or thread counts add in a different order."""
SHORT = 0.02
"""The tolerance for a network that ran in bfloat16 or float16."""


def run(
    path: str,
    write_line: Callable[[str], object],
    *,
    model: str = "auto",
    own: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> bool:
    """Recompute the maps of a bundle on a device and report the comparison with `write_line`, line by line.

    Returns  whether all hashes and maps match
    Errors   Refused with the message of any error
    """
    try:
        stored = reading.read(path)
        if device != "auto":
            devices.choose(device)
        model_cache.use_device(device)
        equal = True
        for line, matches in _compare(stored, model, own):
            write_line(line)
            equal = equal and matches
        return equal
    except Exception as error:
        raise Refused(engine.message_of(error, messages.FAILED)) from None


def _compare(stored: reading.Bundle, model: str, own: Mapping[str, Any] | None) -> Iterator[tuple[str, bool]]:
    """Yield lines of the report, and whether each is free of differences."""
    matches = "hash matches" if stored.hash_matches else "hash mismatch: this is not the image that was explained"
    yield f"Image       {matches}", stored.hash_matches
    model_cache.start(model, own)
    for _ in model_cache.wait():
        pass
    if (own or model != model_settings.AUTO) and (error := model_cache.failure()):
        raise Refused(error)
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "photograph"
        image.write_bytes(stored.image)
        second = Path(folder) / "second"
        if stored.second:
            second.write_bytes(stored.second)
        files = str(image), str(second) if stored.second else None
        for stored_map in stored.maps:
            yield from _compare_map(stored_map, files)
    now = record.versions()
    changed = [
        f"{name} {short(value)} then, {now.get(name, 'none')} now"
        for name, value in stored.versions.items()
        if now.get(name) != value
    ]
    if changed:
        yield f"Versions    {'; '.join(changed)}", True


def _compare_map(stored: reading.Map, files: Files) -> Iterator[tuple[str, bool]]:
    if stored.answer.get("share", 1) != 1:
        raise Refused(messages.STOPPED)
    settings = bundle.resolve_settings(stored.question)
    title, method = settings.loaded.title, settings.method
    target = f" for {short(str(stored.question.get('class')))}" if method.reads_class else ""
    text = f"{method.title}{target}{f' at {settings.layer}' if method.takes_layer else ''} of {title}"
    yield f"\n{short(stored.name)}: {text}" if stored.name else f"Recomputing {text}", True
    matches = record.weights(settings.loaded)["sha256"] == stored.weights
    yield f"Weights     {'hash matches' if matches else f'hash mismatch: {title} has different weights here'}", matches
    if not stored.hash_matches:
        yield messages.CHANGED, False
    answer = _recompute(stored.question, files)
    then, device = stored.answer.get("device"), answer.explanation.device
    if then and then != device:
        yield f"Device      {short(str(then))} then, {device} now", True
    recomputed = answer.map.float().cpu().numpy()
    if recomputed.shape != stored.values.shape:
        sizes = [" x ".join(map(str, values.shape)) for values in (stored.values, recomputed)]
        yield f"Map         {sizes[0]} in the bundle, {sizes[1]} now: different", False
        return
    largest, size, same_gaps = _difference(stored.values, recomputed)
    is_short = str(settings.options.get("precision", "")) in ("bf16", "float16")
    equal = same_gaps and largest <= (SHORT if is_short else ROUNDING) * size
    verdict = "equal within rounding" if equal else "different"
    if largest == 0 and same_gaps:
        verdict = "bitwise equal"
    yield f"Map         largest difference {largest:.3g} for values up to {size:.3g}: {verdict}", equal


def _recompute(question: Any, files: Files) -> Answer:
    """Compute the answer to a question of a bundle.

    Errors   Refused if there is no answer
    """
    request = bundle.request(question, *files)
    answer = None
    with runs.start(None, SECONDS) as token:
        assert token is not None
        for step in erase.explain(request, token, stages=False):
            if isinstance(step, Scene) and step.settings.notes:
                raise Refused(page_messages.without_default(step.settings.notes[0]))
            answer = step if isinstance(step, Answer) else answer
    if answer is None:
        raise Refused(messages.NOTHING)
    return answer


def _difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float, bool]:
    """Return the largest difference, the largest value, and whether both have NaN or infinity in the same cells."""
    finite = np.isfinite(one) & np.isfinite(other)
    gaps = bool((np.isfinite(one) == np.isfinite(other)).all())
    if not finite.any():
        return 0.0, 0.0, gaps
    both = one[finite].astype("f8"), other[finite].astype("f8")
    return float(abs(both[0] - both[1]).max()), float(max(abs(both[0]).max(), abs(both[1]).max())), gaps
