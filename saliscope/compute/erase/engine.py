"""Answer the questions of the erase view: the map of an edited image, and the smallest regions of a map."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

import explainers
from saliscope.compute import engine, network_calls, results_cache
from saliscope.compute.answers import Answer, AppliedEdit, LoadedModel, Refining, Settings, Step, Waiting
from saliscope.compute.erase import messages, tensors
from saliscope.compute.erase.edit import EMPTY, NO_ORDER, NO_SECOND, Edit, parse
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.request import Request
from saliscope.errors import Refused
from saliscope.images import uploads
from saliscope.images.decoder import pool
from saliscope.images.pixels import pixel_hash
from saliscope.zoo import Model
from saliscope.zoo.operations import to_tensor

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

    def apply_edit(settings: Settings, crop: Image.Image, images: Tensor) -> tuple[Settings, Image.Image, Tensor]:
        masks.append(mask_of(edit, images, plane))
        return applied(edit, masks[-1], request, settings, crop, images)

    for step in engine.explain(request, run, stages=False, apply_edit=apply_edit):
        if isinstance(step, Settings):
            refuse_unsupported(step.loaded)
        yield step


def _before(request: Request, run: Run) -> Generator[Waiting, None, Answer]:
    """Return the answer without the edit; it is computed once for all edits.

    Errors   Refused if the run was stopped before the map was complete
    """
    answer = None
    for step in engine.explain(replace(request, edit="", second=None, use_cache=True), run, stages=False):
        if isinstance(step, Settings):
            refuse_unsupported(step.loaded)
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
    refuse_unsupported(settings.loaded)
    if not settings.method.long or settings.refusal or request.image is None:
        return
    settings = replace(settings, key=results_cache.key(settings, original))
    settings, image, images = engine.load_input(settings, original)
    if results_cache.find(settings) is not None:
        return
    edit, crop = parse(request.edit), settings.loaded.model.crop(image)
    mask = mask_of(edit, images, None)
    edited = applied(edit, mask, request, settings, crop, images)
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
    order(before.map, images)
    edit = parse(request.edit)
    baseline = cover(edit, request.second, settings, images)
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


# An edit, applied to the crop of an image and to the input of the network


def applied(
    edit: Edit, mask: Tensor, request: Request, settings: Settings, crop: Image.Image, images: Tensor
) -> tuple[Settings, Image.Image, Tensor]:
    """Return the settings, the crop and the input of the network after the edit of a request.

    The crop has the resolution of the network input, because the edit changes what the network receives. `mask` [H, W]
    is the region, see `mask_of`.

    Errors   Refused for an edit that cannot be applied to this image
    """
    model = settings.loaded.model
    if not bool(mask.any()) and edit.whole == type(edit.whole)():
        raise Refused(EMPTY)
    if settings.bands:
        tensors.refuse_recoloring(edit.whole)
    second_crop, second_input = _second(edit, request.second, settings)
    edited = _edit(edit, mask, images, second_input, None if settings.bands else model)
    # the crop of an image with several bands shows three of them, so the edit is applied to it as well
    shown = _edit(edit, mask, _pixels(crop, model.size), None, None) if settings.bands else _unit_values(edited, model)
    known = AppliedEdit(request.edit, pixel_hash(crop), pixel_hash(second_crop) if second_crop else "")
    return replace(settings, edit=known), tensors.to_image(shown).convert("RGB"), edited


def mask_of(edit: Edit, images: Tensor, plane: Tensor | None) -> Tensor:
    """Return the region of an edit, bool [H, W]; `plane` [h, w] is only needed if it depends on the map.

    Errors   Refused if the map has no order
    """
    ranks = order(plane, images) if edit.needs_map and plane is not None else None
    height, width = images.shape[-2:]
    return tensors.region_mask(edit.region, (height, width), ranks)


def order(plane: Tensor, images: Tensor) -> Tensor:
    """Return the position [H, W] of each pixel in the order of a map, highest first, as `smallest_region` uses it.

    Errors   Refused for a constant map and for values that are not finite
    """
    try:
        return explainers.pixel_ranks(plane[None], images)[0]
    except explainers.BadOption:
        raise Refused(NO_ORDER) from None


def cover(edit: Edit, second: str | None, settings: Settings, images: Tensor) -> Tensor:
    """Return the input of the network of which a region shows a part, for fills that do not depend on the region.

    Errors   Refused for inpainting, and without a second image
    """
    if edit.fill == "inpaint":
        raise Refused(messages.NO_INPAINTING)
    model = None if settings.bands else settings.loaded.model
    return _cover(edit.fill, images, _second(edit, second, settings)[1], model)


def _edit(edit: Edit, mask: Tensor, images: Tensor, second: Tensor | None, model: Model | None) -> Tensor:
    """Return an image [1, C, H, W] after an edit; `model` has the unit of its values if it is a photo."""
    if bool(mask.any()):
        if edit.fill == "inpaint":
            images = tensors.fill_region(images, mask, edit.fill)
        else:
            images = torch.where(mask, _cover(edit.fill, images, second, model), images)
    images = tensors.move(images, edit.whole)
    if model is not None and tensors.recolorings(edit.whole):
        images = _network_values(tensors.recolor(_unit_values(images, model), edit.whole), model)
    return images


def _cover(fill: str, images: Tensor, second: Tensor | None, model: Model | None) -> Tensor:
    """Return the image that fills a region. Noise is drawn in the range of the pixels, which the network normalizes."""
    if fill == "noise" and model is not None:
        return _network_values(tensors.cover_image(_unit_values(images, model), fill), model)
    return tensors.cover_image(images, fill, second)


def _second(edit: Edit, path: str | None, settings: Settings) -> tuple[Image.Image | None, Tensor | None]:
    """Return the crop and the input of the second image, or None if the edit does not use it.

    Errors   Refused if it is missing, cannot be opened, or if the image has several bands
    """
    if edit.fill != "image":
        return None, None
    if path is None:
        raise Refused(NO_SECOND)
    if settings.bands:
        raise Refused(messages.NO_SECOND_BANDS)
    image = pool.open_image(uploads.read(path))
    model = settings.loaded.model
    return model.crop(image), model.prepare(image)


def _pixels(crop: Image.Image, size: tuple[int, int]) -> Tensor:
    """Return an image as [1, 3, H, W] in [0, 1], at a size (height, width)."""
    return to_tensor(crop.convert("RGB").resize(size[::-1], Image.Resampling.BICUBIC))[None]


def _scale(images: Tensor, model: Model) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the preparation, [C, 1, 1], for values in [0, 1]."""
    preparation = model.preparation
    top = 255 if preparation.raw else 1
    mean, std = (images.new_tensor(values)[:, None, None] / top for values in (preparation.mean, preparation.std))
    return mean, std


def _unit_values(images: Tensor, model: Model) -> Tensor:
    """Return the input of the network in [0, 1]."""
    mean, std = _scale(images, model)
    return (images * std + mean).clamp(0, 1)


def _network_values(pixels: Tensor, model: Model) -> Tensor:
    """Return values in [0, 1] as the input of the network."""
    mean, std = _scale(pixels, model)
    return (pixels - mean) / std


def refuse_unsupported(loaded: LoadedModel) -> None:
    """Refuse networks that do not classify the whole image.

    Errors   Refused
    """
    if loaded.detects_objects:
        raise Refused(messages.ONLY_CLASSIFIERS)
