"""Answer the questions of the erase view: the map of an edited image, and the smallest regions of a map."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

from PIL.Image import Image
from torch import Tensor

import explainers
from saliscope.compute import engine, network_calls, results_cache
from saliscope.compute.answers import Answer, Refining, Settings, Step, Waiting
from saliscope.compute.erase import editing, messages
from saliscope.compute.erase.edit import parse
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.request import Request
from saliscope.errors import Refused

GOALS = ("keep", "half", "change")


@dataclass(frozen=True)
class Erased:
    """The answer before and after an edit, or the partial map of a long method.

    `before` has no map if only the predictions are known. `after` is None without an edit.
    `mask` [H, W] is the region, True where the image is filled.
    """

    before: Answer | Refining
    after: Answer | Refining | None
    mask: Tensor | None
    edit: str
    note: str = ""
    """What a search for the smallest region has found."""


def explain(request: Request, run: Run, *, stages: bool = True) -> Iterator[Step]:
    """Answer a request as `engine.explain`, also if it has an edit.

    Errors   as `engine.explain`; Refused for an edit that cannot be applied
    """
    if not request.edit:
        yield from engine.explain(request, run, stages=stages)
        return
    plane = None
    if parse(request.edit).needs_map:
        plane = (yield from _before(request, run)).map
    yield from _explain_edited(request, plane, run, [])


def _explain_edited(request: Request, plane: Tensor | None, run: Run, masks: list[Tensor]) -> Iterator[Step]:
    """Answer a request with an edit, and add its region to `masks`; `plane` is the map of the image before the edit."""
    edit = parse(request.edit)

    def apply_edit(settings: Settings, crop: Image, images: Tensor) -> tuple[Settings, Image, Tensor]:
        masks.append(editing.mask_of(edit, images, plane))
        return editing.applied(edit, masks[-1], request, settings, crop, images)

    for step in engine.explain(request, run, stages=False, apply_edit=apply_edit):
        if isinstance(step, Settings):
            editing.refuse_unsupported(step.loaded)
        yield step


def _before(request: Request, run: Run) -> Generator[Waiting, None, Answer]:
    """Return the answer without the edit; it is computed once for all edits.

    Errors   Refused if the run was stopped before the map was complete
    """
    answer = None
    for step in engine.explain(replace(request, edit="", second=None, use_cache=True), run, stages=False):
        if isinstance(step, Settings):
            editing.refuse_unsupported(step.loaded)
        elif isinstance(step, Refining):
            yield Waiting(messages.before(step), step.fraction)
        elif isinstance(step, Waiting):
            yield step
        answer = step if isinstance(step, Answer) else answer
    if answer is None:
        raise Refused(messages.NO_MAP)
    if answer.share < 1:
        raise Refused(messages.STOPPED)
    results_cache.put(answer.settings, answer.explanation)
    return answer


def answers(request: Request, search: str, run: Run) -> Iterator[Waiting | Erased]:
    """Yield the answer to a request of the view, with its edit; `search` is one of `GOALS`, or empty.

    A search ignores the region and the changes of the whole image, and its result is a new edit.

    Errors   as `explain`
    """
    edit = parse(request.edit)
    if not (search or edit.is_empty or edit.needs_map):
        yield from _predictions(request, run)
    before = yield from _before(request, run)
    request, note = replace(request, target=before.name, use_cache=True), ""
    if search:
        found, note = yield from _search(request, before, search, run)
        if not found:
            raise Refused(note)
        request = replace(request, edit=found)
    if parse(request.edit).is_empty:
        yield Erased(before, None, None, "")
        return
    masks: list[Tensor] = []
    for step in _explain_edited(request, before.map, run, masks):
        if isinstance(step, Waiting):
            yield step
        elif isinstance(step, (Answer, Refining)):
            yield Erased(before, step, masks[-1], request.edit, note)


def _predictions(request: Request, run: Run) -> Iterator[Waiting | Erased]:
    """Yield the predictions before and after an edit, if the map before it is still to be computed and takes long.

    Errors   Refused for an edit that cannot be applied
    """
    original = replace(request, edit="", second=None)
    settings = yield from engine.resolve_settings(original, run)
    editing.refuse_unsupported(settings.loaded)
    if not settings.method.long or settings.refusal or request.image is None:
        return
    settings = replace(settings, key=results_cache.key(settings, original))
    settings, image, images = engine.load_input(settings, original)
    if results_cache.find(settings) is not None:
        return
    edit, crop = parse(request.edit), settings.loaded.model.crop(image)
    mask = editing.mask_of(edit, images, None)
    edited = editing.applied(edit, mask, request, settings, crop, images)
    with turns.enqueue(run, long=False) as turn:
        yield from engine.wait_turn(turn)
        before, after = (
            Refining(shown, picture, None, 0.0, 0.0, run.left, probabilities=engine.predict(shown, values))
            for shown, picture, values in ((settings, crop, images), edited)
        )
    yield Erased(before, after, mask, request.edit)


def _search(request: Request, before: Answer, goal: str, run: Run) -> Generator[Waiting, None, tuple[str, str]]:
    """Return the edit of the smallest region that reaches a goal, and a note; the edit is empty if there is none.

    Errors   Refused if the map does not explain the prediction
    """
    settings, images = before.settings, engine.load_input(engine.resolve(request), request)[2]
    if settings.sentences or settings.unit:
        raise Refused(messages.ONLY_CLASSES)
    if before.probabilities is None or before.target != before.top[0][0]:
        raise Refused(messages.not_predicted(before))
    if goal == "half" and not settings.loaded.has_probabilities:
        raise Refused(messages.NO_PROBABILITIES)
    editing.order(before.map, images)
    edit = parse(request.edit)
    baseline = editing.cover(edit, request.second, settings, images)
    options = {"maps": before.map[None], "goal": goal, "baseline": baseline}
    with turns.enqueue(run, long=False) as turn:
        yield from engine.wait_turn(turn)
        found = network_calls.run(settings.loaded.name, explainers.smallest_region, images, **options)
    if not bool(found.reached[0]):
        return "", messages.not_reached(goal, found.passes)
    pixels = int(found.mask.sum())
    parts = [f"first.{pixels}", *([] if goal == "change" else ["invert"]), f"fill.{edit.fill}"]
    if not pixels if goal == "change" else pixels == found.mask.numel():
        return "", messages.whole_image(goal, found.passes)
    return "_".join(parts), messages.found(goal, float(found.fraction[0]), pixels, found.passes)


def changes(before: Answer | Refining, after: Answer | Refining) -> list[tuple[int, float, float]]:
    """Return the class, and its probabilities before and after the edit, for the top classes of both and the target.

    The top classes after the edit come first, then those before it that have lost their place.
    """
    assert before.probabilities is not None and after.probabilities is not None, "a classifier"
    classes = [index for index, _ in before.top]
    if not before.settings.unit:
        classes.append(before.target)
    classes.sort(key=lambda index: -float(after.probabilities[index]))  # type: ignore[index]
    classes = [index for index, _ in after.top] + classes
    return [
        (index, float(before.probabilities[index]), float(after.probabilities[index]))
        for index in dict.fromkeys(classes)
    ]
