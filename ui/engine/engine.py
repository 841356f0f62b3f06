"""The page's only way to torch, explainers and models: a request in, results out, one step at a time.

Nothing here knows gradio or a visitor's browser.
"""

from __future__ import annotations

import difflib
import logging
import math
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from ui import limits, words
from ui.engine import model_cache, network_calls, scene
from ui.engine.messages import (
    Answer,
    Loaded,
    Refining,
    Refused,
    Scene,
    Settings,
    Stages,
    Step,
    Waiting,
    Window,
)
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import Turn, turns
from ui.maps import kept
from ui.serving import bands, uploads

if TYPE_CHECKING:
    import torch

    import explainers
    from explainers.options import Option

R = TypeVar("R")
log = logging.getLogger("hooklens")


def resolve(request: Request, report: Callable[[int, int], None] | None = None) -> Settings:
    """Resolve the request's names; an unknown layer, class, method or option becomes the default and a note.

    Errors   Refused for a model that is unknown or cannot be loaded
    """
    import models  # torch takes seconds to start

    name = request.model or model_cache.first_model()
    try:
        loaded = model_cache.load(name, report)
    except models.ModelUnavailable as error:
        raise Refused(words.plain(str(error))) from None
    notes: list[str] = []
    layer = _find(request.layer, [known.name for known in loaded.layers], loaded.default, words.LAYER, notes)
    wanted, rank = scene.parsed(request.target, loaded)
    # A detector may have no list of its classes: any number may be one of them.
    numbered = loaded.finds and not loaded.names and wanted.isdecimal() and len(wanted) < 7
    unit = scene.unit(request.target, loaded)
    target = None if unit else int(wanted) if numbered else _class(wanted, loaded.names, notes)
    method = _method(request, loaded, layer, notes)
    options = _options(request.options, {**method.options, **scene.options(loaded)}, notes)
    return Settings(
        loaded, layer, target, method, options, () if request.forgiving else tuple(notes), rank=rank, unit=unit
    )


def _find(name: str, known: list[str], default: str, kind: str, notes: list[str]) -> str:
    if not name or name in known:
        return name or default
    notes.append(words.not_found(kind, name, difflib.get_close_matches(name, known, 3, 0.5), default))
    return default


def _method(request: Request, loaded: Loaded, layer: str, notes: list[str]) -> explainers.Method:
    import explainers  # torch takes seconds to start

    methods = {method.name: method for method in model_cache.list_methods(loaded, layer)}
    default = model_cache.default_method(loaded, list(methods))
    name = request.method
    if request.forgiving and name in model_cache.DEFAULTS:
        name = default  # what the page chose by itself for the model before
    known = explainers.METHODS.get(name)
    if known and (reason := model_cache.why_not(known, loaded, layer)):
        notes.append(words.unsuitable(known.title, reason, methods[default].title))
        name = default
    return methods[_find(name, list(methods), default, words.METHOD, notes)]


def _class(name: str, names: list[str], notes: list[str]) -> int | None:
    if not name:
        return None
    if name in names:
        return names.index(name)
    folded = [known.casefold() for known in names]
    if name.casefold() in folded:
        return folded.index(name.casefold())
    if name.isdecimal() and len(name) < 7 and int(name) < len(names):
        return int(name)
    near = difflib.get_close_matches(name.casefold(), folded, 3, 0.5)
    notes.append(words.not_found(words.CLASS, name, [names[folded.index(match)] for match in near], words.TOP))
    return None


def _options(options: dict[str, Any], known: dict[str, Option], notes: list[str]) -> dict[str, Any]:
    """Those of the known options that have valid values; the others are left out.

    `precision` defaults to "auto" where the method offers it.
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
            notes.append(words.plain(str(error)))
        else:
            valid[name] = value
    return valid


def taken(turn: Turn) -> Iterator[Waiting]:
    """Wait for the turn; yield how long that takes.

    Errors   Refused for a job that is to be stopped
    """
    for seconds, stranger in turns.wait(turn):
        yield Waiting(words.waiting(seconds, stranger))
    if turn.run.cancelled:
        raise Refused(words.STOPPED_BEFORE)


def stream(
    work: Callable[[Callable[[Any], bool]], R],
    run: Run,
    show: Callable[[Any], Any] = lambda step: step,
    turn: Turn | None = None,
) -> Generator[Any, None, R]:
    """Do `work(report)` in a thread; yield `show(step)` of what it reports, the newest only, at most
    `limits.UPDATES` a second; return its result. The work steps aside for quick jobs where it has a `turn`.
    """
    newest: list[Any] = []
    result: Future[R] = Future()
    over, news = threading.Event(), threading.Event()

    def report(step: Any) -> bool:
        newest[:] = [step]
        news.set()
        if turn:
            turns.report(turn, getattr(step, "fraction", None))
        return not run.stopped()

    def body() -> None:
        try:
            result.set_result(work(report))
        except BaseException as error:  # raised again where the visitor's handler waits
            result.set_exception(error)
        finally:
            over.set()
            news.set()

    threading.Thread(target=body, name="work", daemon=True).start()
    try:
        while True:
            news.wait()
            news.clear()
            if over.is_set():
                break
            if newest:
                yield show(newest.pop())
            over.wait(1 / limits.UPDATES)
    except GeneratorExit:
        run.stop()  # the visitor has left: the work ends at its next report
        raise
    return result.result()


def settled(request: Request, run: Run) -> Generator[Step, None, Settings]:
    """Wait for torch, then for the model; yield the progress of both."""
    yield from model_cache.wait(run, request.model)
    name = request.model or model_cache.first_model()
    if model_cache.has(name):
        return resolve(request)

    def work(report: Callable[[Any], bool]) -> Settings:
        def progress(done: int, total: int) -> None:
            if not report((done, total)) and run.cancelled:
                raise Refused(words.STOPPED_LOADING)

        report((0, 0))
        return resolve(request, progress)

    def waiting(step: tuple[int, int]) -> Waiting:
        return Waiting(words.fetching(name, *step), step[0] / step[1] if step[1] else None)

    return (yield from stream(work, run, waiting))


def prepared(settings: Settings, request: Request) -> tuple[Image.Image, torch.Tensor]:
    """The request's photograph, and the network's input [1, 3, side, side] made of it.

    Errors   Refused where there is no picture, or where it cannot be opened
    """
    return opened(settings, request)[1:]


def opened(settings: Settings, request: Request) -> tuple[Settings, Image.Image, torch.Tensor]:
    """As `prepared`, with the settings, which now say what was done with a picture of bands."""
    import torch  # torch takes seconds to start

    if request.picture is None:
        raise Refused(words.NO_PICTURE)
    model, data = settings.loaded.model, uploads.read(request.picture)
    found = bands.open_bands(data, model.channels, raw=model.preparation.raw, asked=request.bands)
    if found is None:
        photo = uploads.open_picture(data)
        if model.channels not in (1, 3):
            raise Refused(bands.WRONG_COUNT.format(channels=model.channels, bands=3))
        return replace(settings, window=Window.of(model, photo)), photo, model.prepare(photo)
    notes = (*settings.notes, found.note) if found.note else settings.notes
    settings = replace(settings, bands=found.choice, notes=notes, window=Window.of(model, found.photo))
    settings = replace(settings, key=settings.key and kept.key(settings, request))
    settings = replace(settings, subject=settings.subject and kept.subject(settings, request))
    return settings, found.photo, model.prepare(torch.from_numpy(found.values))


def explain(request: Request, run: Run, *, stages: bool = True) -> Iterator[Step]:
    """Answer a request: its resolved settings, partial maps of long methods, the map, all stages of the network.

    Of a network that finds things, what it found comes before the map; where that is nothing, there is no map.

    Errors   Refused, and those of the library; `sentence_of` has their sentences
    """
    settings = yield from settled(request, run)
    settings = replace(settings, key=kept.key(settings, request), subject=kept.subject(settings, request))
    yield settings
    if request.picture is None:
        return
    settings, photo, images = opened(settings, request)
    seen = settings.loaded.model.crop(photo)
    known = kept.find(settings) if request.kept else None
    with turns.place(run, long=settings.method.long and known is None) as turn:
        yield from taken(turn)
        around = scene.look(settings, seen, images) if settings.loaded.finds else None
        if around:
            yield around
            if around.chosen is None:
                return
            settings = around.settings
        answer = yield from _explained(settings, seen, images, turn, request.plane, around, known)
        if around and not answer.explanation.raw.any() and (nearer := scene.nearer_layer(around, images)):
            yield nearer
            answer = yield from _explained(nearer, seen, images, turn, request.plane, around)
            answer = scene.elsewhere(answer, settings.layer)
        yield answer
        swept = _stages(answer, images) if stages and not run.stopped() else None
        if swept:
            yield swept


def _explained(
    settings: Settings,
    seen: Image.Image,
    images: torch.Tensor,
    turn: Turn,
    plane: int | None,
    around: Scene | None,
    known: explainers.Explanation | None = None,
) -> Generator[Step, None, Answer]:
    """The answer; `known` is its explanation where that was computed before."""
    method, share, run = settings.method, 1.0, turn.run
    options = {**settings.method_options, "layer": settings.layer} if method.takes_layer else settings.method_options
    target = around.chosen.target if around and around.chosen else scene.target_of(settings)
    work = partial(network_calls.explain, settings.loaded.name, method.name, images, target=target, **options)

    def refining(step: Any) -> Refining:
        nonlocal share
        share = step.fraction
        drawn = None if step.map is None else _plane(step.map)
        return Refining(settings, seen, drawn, share, turn.spent, run.left, around)

    if known is not None:
        explanation = known
    elif method.long:
        yield Refining(settings, seen, None, 0.0, 0.0, run.left, around)
        explanation = yield from stream(lambda report: work(progress=report), run, refining, turn)
    else:
        explanation = work()
    probabilities = None
    if around is None:
        scores = explanation.scores
        scores = network_calls.scores(settings.loaded.name, images) if scores is None else scores[0].float()
        probabilities = scores.softmax(0)
    number = _plane_number(explanation.raw[0], plane) if method.planes else 0
    drawn = _plane(explanation.raw[:, number] if method.planes else explanation.map)
    share = share if run.stopped() and known is None else 1.0
    if method.long and known is None and share == 1.0:
        kept.put(settings, explanation)
    return Answer(settings, seen, explanation, probabilities, drawn, number, share, run.cancelled, around)


def _plane_number(planes: torch.Tensor, number: int | None) -> int:
    """`number`, else the one of `planes` [K, h, w] with the largest norm.

    Errors   Refused where there is no such plane
    """
    if number is None:
        return int(planes.flatten(1).norm(dim=1).argmax())
    if not 0 <= number < len(planes):
        raise Refused(words.no_plane(number, len(planes)))
    return number


def _plane(maps: torch.Tensor) -> torch.Tensor:
    """The first picture's map as [h, w]; colour channels of a partial result are summed."""
    plane = maps[0].detach().float().cpu()
    return plane.sum(0) if plane.ndim == 3 else plane


def _stages(answer: Answer, images: torch.Tensor) -> Stages | None:
    """Grad-CAM at every stage; None for a network without comparable stages."""
    import explainers  # torch takes seconds to start

    settings, loaded = answer.settings, answer.settings.loaded
    names = scene.stages_of(settings)
    if len(names) < 2:
        return None
    try:
        target = answer.thing.target if answer.scene else scene.target_of(settings) or answer.target
        maps = network_calls.sweep(loaded.name, images, target, names)
    except explainers.ExplainerError:
        return None
    planes = {name: _plane(plane) for name, plane in maps.items()}
    if answer.scene:  # the stages of a detector's other scales have no part in this detection
        planes = {name: plane for name, plane in planes.items() if plane.any()}
    return Stages(answer.settings, answer.seen, planes)


def sentence_of(error: Exception, unknown: str) -> str:
    """What the visitor reads: a refusal's or the library's own sentence, else `unknown`; the log has the rest."""
    if isinstance(error, Refused):
        return str(error)
    from explainers.errors import ExplainerError, is_out_of_memory  # torch takes seconds to start

    if isinstance(error, ExplainerError):
        return words.plain(str(error))
    if is_out_of_memory(error):
        return words.OUT_OF_MEMORY
    log.error("a request failed", exc_info=error)
    return unknown


# Answers as files and plain values


def save_array(values: torch.Tensor, path: Any) -> None:
    """Write a tensor as `.npy`."""
    from explainers.explanation.npz import npy_bytes  # torch takes seconds to start

    Path(path).write_bytes(npy_bytes(values.float()))


def save_overlay(answer: Answer, path: Any) -> None:
    """Write the map over what the network saw, as PNG."""
    import explainers  # torch takes seconds to start

    explainers.overlay(answer.seen, answer.map, signed=not answer.settings.method.by_size).save(path)


def plain(value: Any) -> Any:
    """A value that JSON can hold: tuples become lists, NaN and infinity None, other objects their `repr`."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)
