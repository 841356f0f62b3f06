"""The Erase view: the map and the predictions of the edited image, and how erase.js gets them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from saliscope.compute.answers import Answer, Refining
from saliscope.compute.erase import engine, messages
from saliscope.compute.erase.edit import LONGEST
from saliscope.compute.jobs.runs import Run
from saliscope.compute.request import second_image
from saliscope.page.components import view as page_view
from saliscope.page.erase import parts
from saliscope.page.events import Ask, answer_newest, on, stop_on
from saliscope.page.wire import Updates, base64_text, new_number


@on(parts.ERASE, "submit")
def answer(ask: Ask) -> Iterator[Updates]:
    """Answer the question of the page about the edited image; a new edit replaces the previous one of the visitor."""

    def work(run: Run) -> Iterator[Any]:
        edit, search = ask.text("edit", LONGEST + 1), ask.text("search")
        question = replace(ask.question(), edit=edit, second=second_image(ask.data.get("second")))
        return engine.answers(question, search if search in engine.GOALS else "", run)

    yield from answer_newest(ask, parts.ERASE, "erase", work, lambda step: erased(step, ask.text("held")))


stop_on(parts.ERASE, "erase")


def erased(step: engine.Erased, held: str) -> dict[str, Any]:
    """Pack the maps before and after an edit; the map before it is left out if the script holds it under `held`."""
    ident, before, after = new_number(), step.before, step.after
    key = before.settings.key
    value: dict[str, Any] = {"text": step.note, "edit": step.edit, "key": key}
    if key != held and isinstance(before, Answer):
        value["before"] = page_view.answer(before, ident)
    if step.mask is not None:
        value["mask"] = _mask(step.mask)
    if isinstance(after, Refining):
        value |= {"state": "partial", "fraction": after.fraction, "text": messages.refining(after)}
        if after.map is not None:
            value["after"] = page_view.refining(after, ident)
    elif isinstance(after, Answer) and isinstance(before, Answer):
        value["after"] = page_view.answer(after, ident)
        value["text"] = " ".join(filter(None, [step.note, messages.result(before, after)]))
    if after is None:
        value["rows"] = _rows(before, None)
    elif after.probabilities is not None:  # otherwise an earlier step of the run had them
        value |= {"rows": _rows(before, after), "headline": messages.headline(before, after)}
    return value


def _rows(before: Answer | Refining, after: Answer | Refining | None) -> list[dict[str, Any]]:
    """Pack the classes with their scores before and after the edit; only those before without an edit."""
    loaded, names = before.settings.loaded, before.settings.class_names
    if after is None:
        pairs: list[tuple[int, float, float | None]] = [(index, score, None) for index, score in before.top]
    else:
        pairs = [*engine.changes(before, after)]
    target = None if before.settings.unit else before.target
    return [
        {
            "name": names[index],
            "target": index == target,
            "before": messages.value(old, loaded.has_probabilities),
            "after": None if new is None else messages.value(new, loaded.has_probabilities),
            "change": None if new is None else messages.change(old, new, loaded.has_probabilities),
            "rises": new is not None and new > old,
        }
        for index, old, new in pairs
    ]


def _mask(mask: Tensor) -> dict[str, Any]:
    """Pack a mask as bits in reading order, eight pixels in each byte, and its fraction of the pixels."""
    bits = np.packbits(mask.numpy()).tobytes()
    count, total = int(mask.sum()), mask.numel()
    return {
        "h": mask.shape[0],
        "w": mask.shape[1],
        "b64": base64_text(bits),
        "text": messages.region(count, total) if count else "",
    }
