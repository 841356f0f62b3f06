"""Answer requests step by step; the page uses torch, explainers and models only through this package.

This module does not depend on gradio or a browser.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

import explainers
from saliscope import limits, zoo
from saliscope.compute import messages, model_cache, network_calls, results_cache, scene
from saliscope.compute.answers import Answer, LoadedModel, Refining, Scene, Settings, Stages, Step, Waiting, Window
from saliscope.compute.jobs.places import places
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import Turn, turns
from saliscope.compute.methods import costs
from saliscope.compute.methods import messages as method_messages
from saliscope.compute.request import Request
from saliscope.compute.text import sentences
from saliscope.compute.text_messages import NO_TEXT_ENCODER
from saliscope.errors import Refused, means_full_disk, told
from saliscope.images import bands, uploads
from saliscope.images.decoder import pool
from saliscope.names import nearest

R = TypeVar("R")
ApplyEdit = Callable[["Settings", Image.Image, "torch.Tensor"], tuple["Settings", Image.Image, "torch.Tensor"]]
"""Changes the crop of an image and the input of the network made from it."""
log = logging.getLogger("saliscope")


def resolve(request: Request, report: Callable[[int, int], None] | None = None) -> Settings:
    """Resolve the names of a request; an unknown layer, class, method or option is replaced by the default with a note.

    Errors   Refused for a model that is unknown or cannot be loaded
    """
    name = request.model or model_cache.first_model()
    if request.form_model not in ("", name):
        request = replace(request, lenient=True)
    try:
        loaded = model_cache.load(name, report)
    except zoo.ModelUnavailable as error:
        raise Refused(messages.plain(model_cache.why_unavailable(name, error))) from None
    notes: list[str] = []
    layers = [layer.name for layer in sorted(loaded.layers, key=lambda layer: not layer.stage)]
    layer = _find(request.layer, layers, loaded.default, messages.LAYER, notes)
    wanted, rank = scene.parse_target(request.target, loaded)
    # A detector may have no class names, so any number may be a class.
    numbered = loaded.detects_objects and not loaded.names and wanted.isdecimal() and len(wanted) < 7
    unit = scene.unit(request.target, loaded)
    given, refusal = sentences.parse(request) if loaded.encodes_text and not unit else (None, "")
    by_name = not (unit or loaded.encodes_text)
    target = (int(wanted) if numbered else _class(wanted, loaded.names, notes)) if by_name else None
    method = _method(request, loaded, notes)
    options = _options(request.options, {**method.options, **scene.options(loaded)}, notes)
    shown = () if request.lenient else tuple(notes)
    resolved = Settings(loaded, layer, target, method, options, shown, rank=rank, unit=unit)
    return replace(resolved, sentences=given, refusal=refusal)


def _find(name: str, known: list[str], default: str, kind: str, notes: list[str]) -> str:
    if not name or name in known:
        return name or default
    notes.append(messages.not_found(kind, name, nearest(name, known), default, messages.available(known)))
    return default


def _method(request: Request, loaded: LoadedModel, notes: list[str]) -> explainers.Method:
    name, known = request.method, explainers.METHODS.get(request.method)
    if request.lenient and name in (*model_cache.DEFAULTS, model_cache.FOR_SENTENCES):
        return model_cache.default_method(loaded)  # the page chose this default for the previous model
    has_map = known is not None and known.returns in model_cache.MAPS
    reason = model_cache.why_not(known, loaded) if known and has_map else None
    if known and has_map and reason is None:
        return known
    default = model_cache.default_method(loaded)
    if known and not has_map:
        notes.append(method_messages.no_map(known.title, default.title))
    elif known and reason:
        notes.append(method_messages.unsuitable(known.title, reason, default.title))
    else:
        _find(name, [method.name for method in model_cache.list_methods(loaded)], default.name, messages.METHOD, notes)
    return default


def _class(name: str, classes: list[str], notes: list[str]) -> int | None:
    if not name:
        return None
    if name in classes:
        return classes.index(name)
    lowercase = [known.casefold() for known in classes]
    if name.casefold() in lowercase:
        return lowercase.index(name.casefold())
    if name.isdecimal() and len(name) < 7 and int(name) < len(classes):
        return int(name)
    near = nearest(name, classes)
    reason = NO_TEXT_ENCODER if len(name.split()) > 3 and not near else ""
    notes.append(messages.not_found(messages.CLASS, name, near, messages.TOP, reason))
    return None


def _options(options: dict[str, Any], known: dict[str, explainers.Option], notes: list[str]) -> dict[str, Any]:
    """Return the known options that have valid values.

    `precision` defaults to "auto" if the method supports it.
    """
    precision = known.get("precision")
    valid: dict[str, Any] = {"precision": "auto"} if precision and "auto" in precision.choices else {}
    for name, value in options.items():
        option = known.get(name)
        if option is None or value is None:
            continue
        try:
            option.check(value)
        except ValueError as error:
            notes.append(messages.plain(str(error)))
        else:
            valid[name] = value
    return valid


def wait_turn(turn: Turn) -> Iterator[Waiting]:
    """Wait for the turn of a job; yield the estimated waiting time.

    Errors   Refused if the job is stopped
    """
    for seconds, ahead, other_user in turns.wait(turn):
        yield Waiting(messages.waiting(seconds, ahead, other_user))
    if turn.run.cancelled:
        raise Refused(messages.STOPPED_BEFORE)


def stream(
    work: Callable[[Callable[[Any], bool]], R],
    run: Run,
    show: Callable[[Any], Any] = lambda step: step,
    turn: Turn | None = None,
) -> Generator[Any, None, R]:
    """Run `work(report)` in a thread, yield `show(step)` of its latest report, and return its result.

    Yields at most `limits.UPDATES` reports per second. With a `turn`, the work lets quick jobs go first.
    """
    newest: list[Any] = []
    result: Future[R] = Future()
    done, changed = threading.Event(), threading.Event()

    def report(step: Any) -> bool:
        newest[:] = [step]
        changed.set()
        if turn:
            turns.report(turn, getattr(step, "fraction", None))
        return not run.stopped()

    def body() -> None:
        try:
            result.set_result(work(report))
        except SystemExit:  # the thread was ended, which must not end the server
            result.set_exception(RuntimeError("the thread was ended"))
        except BaseException as error:  # raised again in the waiting handler
            result.set_exception(error)
        finally:
            done.set()
            changed.set()

    threading.Thread(target=body, name="work", daemon=True).start()
    try:
        while True:
            changed.wait()
            changed.clear()
            if done.is_set():
                break
            if newest:
                yield show(newest.pop())
            done.wait(1 / limits.UPDATES)
    except GeneratorExit:
        run.stop()  # the user has left, so the work stops at its next report
        raise
    return result.result()


def finish(work: Callable[..., R], turn: Turn, says: str, stopped: str) -> Generator[Waiting, None, R]:
    """Run a call of a network that reports its progress, yield the progress with a message, and return the result.

    Errors   Refused with the message `stopped` if it was stopped: an unfinished result would not be comparable
    """

    def call(report: Callable[[Any], bool]) -> R:
        return work(**network_calls.progress_options(report))

    try:
        found = yield from stream(call, turn.run, lambda step: Waiting(says, step.fraction), turn)
    except explainers.ExplainerError:
        if turn.run.stopped():  # too little was done for any result
            raise Refused(stopped) from None
        raise
    if turn.run.stopped():
        raise Refused(stopped)
    return found


def resolve_settings(request: Request, run: Run) -> Generator[Waiting, None, Settings]:
    """Wait for the model and a place for the image, yielding the progress; return the resolved settings."""
    yield from model_cache.wait(run, request.model)
    name = request.model or model_cache.first_model()

    def work(report: Callable[[Any], bool]) -> Settings:
        def progress(done: int, total: int) -> None:
            if not report((done, total)) and run.cancelled:
                raise Refused(messages.STOPPED_LOADING)

        report((0, 0))
        return resolve(request, progress)

    def waiting(step: tuple[int, int]) -> Waiting:
        return Waiting(messages.fetching(name, *step), step[0] / step[1] if step[1] else None)

    run.is_loading = not model_cache.has(name)
    settings = (yield from stream(work, run, waiting)) if run.is_loading else resolve(request)
    run.is_loading = False
    yield from (Waiting(messages.in_line(ahead)) for ahead in places.wait(run))
    if run.cancelled:
        raise Refused(messages.STOPPED_BEFORE)
    # A log has no text of a visitor, such as a target.
    method, model = settings.method, settings.loaded.name.partition("?")[0]
    run.about = {"method": method.name, "model": model, "layer": settings.layer if method.takes_layer else None}
    run.about["bytes"] = request.size
    return settings


def load_input(settings: Settings, request: Request) -> tuple[Settings, Image.Image, torch.Tensor]:
    """Open the image of a request.

    Returns  the settings, completed with the window and the bands of the image; the image; and the input of the
             network made from it, [1, channels, height, width]
    Errors   Refused if there is no image or it cannot be opened
    """
    if request.image is None:
        raise Refused(messages.NO_IMAGE)
    model, data = settings.loaded.model, uploads.read(request.image)
    opened = pool.open_file(data, model.channels, raw=model.preparation.raw, requested=request.bands)
    image = opened.image if isinstance(opened, bands.Bands) else opened
    window = Window(model.preparation.window(*image.size), image.width / image.height)
    if not isinstance(opened, bands.Bands):
        if model.channels not in (1, 3):
            raise Refused(bands.WRONG_COUNT.format(channels=model.channels, bands=3))
        notes = (*settings.notes, *(uploads.NOTES[name] for name in image.info.get("notes", [])))
        return replace(settings, notes=notes, window=window), image, model.prepare(image)
    notes = (*settings.notes, opened.note) if opened.note else settings.notes
    settings = replace(settings, bands=opened.choice, notes=notes, window=window)
    settings = replace(settings, key=settings.key and results_cache.key(settings, request))
    settings = replace(settings, subject=settings.subject and results_cache.subject(settings, request))
    return settings, image, model.prepare(torch.from_numpy(opened.values))


def explain(request: Request, run: Run, *, stages: bool = True, apply_edit: ApplyEdit | None = None) -> Iterator[Step]:
    """Answer a request: yield its settings, partial maps of long methods, the map, and the maps of all blocks.

    For a detector or a segmentation network, the detected objects come first. If there are none, there is no map.
    `apply_edit` applies the edit of a request that has one.

    Errors   Refused, and the errors of the library; `message_of` returns their messages
    """
    settings = yield from resolve_settings(request, run)
    key, subject = results_cache.key(settings, request), results_cache.subject(settings, request)
    settings = replace(settings, key=key, subject=subject)
    yield settings
    if request.image is None:
        return
    settings, image, images = load_input(settings, request)
    if settings.refusal:
        raise Refused(settings.refusal)
    crop = settings.loaded.model.crop(image)
    assert bool(request.edit) == bool(apply_edit), "an edit that is not applied would give the map of another image"
    if apply_edit:
        settings, crop, images = apply_edit(settings, crop, images)
    cached = results_cache.find(settings) if request.use_cache else None
    with turns.enqueue(run, long=settings.method.long and cached is None) as turn:
        yield from wait_turn(turn)
        detected = scene.inspect(settings, crop, images) if settings.loaded.detects_objects else None
        if detected:
            yield detected
            if detected.chosen is None:
                return
            settings = detected.settings
        answer = yield from _compute_answer(settings, crop, images, turn, request.plane, detected, cached)
        if detected and not answer.explanation.raw.any() and (nearer_settings := scene.nearer_layer(detected, images)):
            yield nearer_settings
            answer = yield from _compute_answer(nearer_settings, crop, images, turn, request.plane, detected)
            answer = scene.note_other_layer(answer, settings.layer)
        yield answer
        # Also after a stop: this is a fast map, and the diagram would otherwise be that of the former image.
        stage_maps = _stages(answer, images) if stages and not run.superseded else None
        if stage_maps:
            yield stage_maps


def _compute_answer(
    settings: Settings,
    crop: Image.Image,
    images: torch.Tensor,
    turn: Turn,
    plane: int | None,
    detected: Scene | None,
    cached: explainers.Explanation | None = None,
) -> Generator[Step, None, Answer]:
    """Compute the answer; `known` is a cached explanation."""
    method, share, run, predicted = settings.method, 1.0, turn.run, ""
    target = detected.chosen.target if detected and detected.chosen else scene.target_of(settings)
    work = partial(
        network_calls.explain, settings.loaded.name, method.name, images, target=target, **settings.method_arguments
    )

    def refining(step: Any) -> Refining:
        nonlocal share
        share = step.fraction
        partial_map = None if step.map is None else first_plane(explainers.place(step.map, step.placement))
        return Refining(settings, crop, partial_map, share, turn.spent, run.left, detected, predicted=predicted)

    if cached is not None:
        explanation = cached
    elif method.long:
        first = None
        if detected is None:  # one forward pass, because the map may take a minute
            first = predict(settings, images)
        begun = Refining(settings, crop, None, 0.0, 0.0, run.left, detected, first)
        predicted = begun.name
        yield begun
        explanation = yield from stream(lambda report: work(progress=report), run, refining, turn)
    else:
        explanation = work()
    probabilities = None
    if detected is None:
        scores = explanation.scores
        probabilities = predict(settings, images) if scores is None else probabilities_of(settings, scores[0].float())
    number = plane_number(explanation.raw[0], plane) if method.planes else 0
    shown_map = first_plane(drawn_map(explanation, number if method.planes else None))
    done = explanation.done / explanation.total  # of the samples; a chunk may have ended after the last report
    share = (share if done == 1 else done) if run.stopped() and cached is None else 1.0
    if method.long and cached is None and share == 1.0:
        results_cache.put(settings, explanation)
    mistimed, given = False, {name: value for name, value in settings.method_options.items() if name != "precision"}
    has_defaults = all(value == method.options[name].default for name, value in given.items())
    if cached is None and share == 1.0 and detected is None and has_defaults:  # else the time says little about others
        mistimed = costs.correct(method.name, settings.loaded, turn.spent)
    return Answer(
        settings, crop, explanation, probabilities, shown_map, number, share, run.cancelled, detected, mistimed
    )


def predict(settings: Settings, images: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of an input by one forward pass, see `probabilities_of`."""
    return probabilities_of(settings, network_calls.scores(settings.loaded.name, images))


def probabilities_of(settings: Settings, scores: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of the classes, or their scores if they have none; the similarities to sentences."""
    if settings.loaded.encodes_text:
        return sentences.similarities(settings, scores)
    return network_calls.probabilities(settings.loaded, scores)


def plane_number(planes: torch.Tensor, number: int | None) -> int:
    """Return `number`, or the index of the plane in `planes` [K, h, w] with the largest norm.

    Errors   Refused if the plane does not exist
    """
    if number is None:
        return int(planes.flatten(1).norm(dim=1).argmax())
    if not 0 <= number < len(planes):
        raise Refused(messages.no_plane(number, len(planes)))
    return number


def drawn_map(explanation: explainers.Explanation, plane: int | None) -> torch.Tensor:
    """Return the map, or a plane of a method with several, on a grid that covers the image evenly."""
    return explanation.placed if plane is None else explainers.place(explanation.raw[:, plane], explanation.placement)


def first_plane(maps: torch.Tensor) -> torch.Tensor:
    """Return the map of the first image as [h, w]; color channels of a partial result are summed."""
    plane = maps[0].detach().float().cpu()
    return plane.sum(0) if plane.ndim == 3 else plane


def _stages(answer: Answer, images: torch.Tensor) -> Stages | None:
    """Return Grad-CAM at every block, else at every stage, or None for a network without comparable layers."""
    settings, loaded = answer.settings, answer.settings.loaded
    target = scene.target_of_answer(answer)
    for names in scene.sweeps_of(settings):  # one layer without a map fails the sweep
        if len(names) < 2:
            continue
        with contextlib.suppress(explainers.ExplainerError):
            maps = network_calls.sweep(loaded.name, images, target, names)
            planes = {name: first_plane(plane) for name, plane in maps.items()}
            if answer.scene:  # this detection does not depend on the layers of other scales
                planes = {name: plane for name, plane in planes.items() if plane.any()}
            return Stages(answer, planes)
    return None


def message_of(error: Exception, unknown: str) -> str:
    """Return the message of a known error, or log the error and return `unknown`."""
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, explainers.ExplainerError):
        if (text := told(error)) != str(error):
            log.error("request refused", exc_info=error)
        return messages.plain(text)
    if explainers.is_out_of_memory(error):
        return messages.OUT_OF_MEMORY
    if means_full_disk(error):
        return messages.FULL_DISK
    log.error("request failed", exc_info=error)
    return unknown


# Answers as files and plain values


def save_array(values: torch.Tensor, path: Any) -> None:
    """Write a tensor as `.npy`."""
    with open(path, "wb") as file:
        np.save(file, values.detach().float().cpu().numpy())


def plain(value: Any, digits: int = 17) -> Any:
    """Convert a value for JSON: tuples become lists, NaN and infinity become None, other objects their `repr`.

    Numbers are rounded to some significant digits; by default they stay as they are.
    """
    if isinstance(value, dict):
        return {str(name): plain(item, digits) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)
