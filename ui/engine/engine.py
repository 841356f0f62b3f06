"""The only door to torch, explainers and models: a request in, results out, one step at a time.

Nothing here knows gradio or a visitor's browser.
"""

from __future__ import annotations

import difflib
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from ui import limits, words
from ui.engine import model_cache, network_calls
from ui.engine.messages import Answer, Refining, Refused, Request, Settings, Stages, Step, Waiting
from ui.engine.runs import Run
from ui.serving import uploads

if TYPE_CHECKING:
    import torch

    import explainers

TOP = 5
turn = threading.BoundedSemaphore(limits.CONCURRENCY["model"])


def resolve(request: Request, report: Callable[[int, int], None] | None = None) -> Settings:
    """Find everything that the request names; what an old link names wrongly becomes the default and a note.

    Errors   Refused for a model that cannot be had.
    """
    import models  # torch takes seconds to start

    name = request.model or model_cache.first_model()
    try:
        loaded = model_cache.load(name, report)
    except models.ModelUnavailable as error:
        raise Refused(words.plain(str(error))) from None
    notes: list[str] = []
    layer = _find(request.layer, [each.name for each in loaded.layers], loaded.default, words.LAYER, notes)
    target = _class(request.target, loaded.names, notes)
    methods = {method.name: method for method in model_cache.list_methods(loaded, layer)}
    method = methods[_find(request.method, list(methods), next(iter(methods)), words.METHOD, notes)]
    options = _options(request.options, method, notes)
    return Settings(loaded, layer, target, method, options, () if request.forgiving else tuple(notes))


def _find(name: str, there: list[str], default: str, kind: str, notes: list[str]) -> str:
    if not name or name in there:
        return name or default
    notes.append(words.not_found(kind, name, difflib.get_close_matches(name, there, 3, 0.5), default))
    return default


def _class(name: str, names: list[str], notes: list[str]) -> int | None:
    if not name:
        return None
    if name in names:
        return names.index(name)
    folded = [each.casefold() for each in names]
    if name.casefold() in folded:
        return folded.index(name.casefold())
    if name.isdecimal() and len(name) < 7 and int(name) < len(names):
        return int(name)
    near = difflib.get_close_matches(name.casefold(), folded, 3, 0.5)
    notes.append(words.not_found(words.CLASS, name, [names[folded.index(each)] for each in near], words.TOP))
    return None


def _options(given: dict[str, Any], method: explainers.Method, notes: list[str]) -> dict[str, Any]:
    """The options that this method has, with values that it takes; the others are left out.

    Precision is "auto" where the method's ranks stay in bf16 and nobody chose: visitors wait for the machine they get.
    """
    precision = method.options.get("precision")
    kept: dict[str, Any] = {"precision": "auto"} if precision and "auto" in precision.choices else {}
    for name, value in given.items():
        option = method.options.get(name)
        if option is None or value is None:
            continue
        try:
            option.check(value)
        except ValueError as error:
            notes.append(words.plain(str(error)))
        else:
            kept[name] = value
    return kept


def stream(work: Callable[[Callable[[Any], bool]], Any], run: Run) -> Generator[Any, None, Any]:
    """Do `work(report)` in a thread; yield what it reports, the newest only and not too often; return its result."""
    box: dict[str, Any] = {}
    over, news = threading.Event(), threading.Event()

    def report(step: Any) -> bool:
        box["step"] = step
        news.set()
        return not run.stopped()

    def body() -> None:
        try:
            box["result"] = work(report)
        except BaseException as error:  # raised again where the visitor's handler waits
            box["error"] = error
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
            yield box.pop("step", None)
            over.wait(1 / limits.UPDATES)
    except GeneratorExit:
        run.stop()  # the visitor has gone: the work ends at its next report
        raise
    if "error" in box:
        raise box["error"]
    return box["result"]


def settled(request: Request, run: Run) -> Generator[Step, None, Settings]:
    """Wait for torch, then for the model; yield how far it is."""
    yield from model_cache.wait(run, request.model)
    name = request.model or model_cache.first_model()
    if model_cache.has(name):
        return resolve(request)

    def work(report: Callable[[Any], bool]) -> Settings:
        def progress(done: int, total: int) -> None:
            if not report((done, total)) and run.asked:
                raise Refused(words.STOPPED_LOADING)

        report((0, 0))
        return resolve(request, progress)

    loading = stream(work, run)
    try:
        while True:
            step = next(loading)
            if step is not None:
                yield Waiting(words.fetching(name, *step), step[0] / step[1] if step[1] else None)
    except StopIteration as end:
        return end.value


def prepared(request: Request, run: Run) -> Generator[Step, None, tuple[Settings, Image.Image, torch.Tensor]]:
    """As `settled`, for what needs a picture: it comes as well, opened, and as the network takes it.

    Errors   Refused where there is none, or where it cannot be opened.
    """
    settings = yield from settled(request, run)
    if request.picture is None:
        raise Refused(words.NO_PICTURE)
    photo = open_picture(request.picture)
    return settings, photo, settings.loaded.model.prepare(photo)


def class_of(settings: Settings, images: torch.Tensor) -> int:
    """The class asked for, or the one that the network thinks most likely."""
    if settings.target is not None:
        return settings.target
    return int(network_calls.scores(settings.loaded.name, images).argmax())


def explain(request: Request, run: Run, *, stages: bool = True) -> Iterator[Step]:
    """Answer a request: what it was resolved to, partial maps of long methods, the map, all stages of the network.

    Errors   Refused, with a sentence for the visitor; whatever a method refuses becomes one as well.
    """
    with sentences():
        settings = yield from settled(request, run)
        yield settings
        if request.picture is None:
            return
        photo = open_picture(request.picture)
        with turn:
            answer = yield from _explained(settings, photo, run, request.plane)
            yield answer
            if stages and not run.stopped():
                swept = _sweep(settings, photo, answer)
                if swept:
                    yield swept


def _explained(settings: Settings, photo: Image.Image, run: Run, plane: int | None) -> Generator[Step, None, Answer]:
    loaded, method = settings.loaded, settings.method
    seen, images = loaded.model.crop(photo), loaded.model.prepare(photo)
    keywords: dict[str, Any] = dict(settings.options)
    if method.takes_layer:
        keywords["layer"] = settings.layer
    began, last = time.monotonic(), 1.0
    if not method.long:
        result = network_calls.explain(loaded.name, method.name, images, target=settings.target, **keywords)
        return _answer(settings, seen, result, images, 1.0, run, plane)

    def work(report: Callable[[Any], bool]) -> explainers.Explanation:
        return network_calls.explain(loaded.name, method.name, images, report, target=settings.target, **keywords)

    partials = stream(work, run)
    yield Refining(settings, seen, None, 0.0, 0.0)
    try:
        while True:
            partial = next(partials)
            if partial is not None:
                last = partial.fraction
                yield Refining(settings, seen, _plane(partial.map), partial.fraction, time.monotonic() - began)
    except StopIteration as end:
        return _answer(settings, seen, end.value, images, last if run.stopped() else 1.0, run, plane)


def _answer(
    settings: Settings,
    seen: Image.Image,
    result: explainers.Explanation,
    images: torch.Tensor,
    share: float,
    run: Run,
    wanted: int | None,
) -> Answer:
    scores = network_calls.scores(settings.loaded.name, images) if result.scores is None else result.scores[0].float()
    shares = scores.softmax(0)
    top = shares.topk(min(TOP, len(shares)))
    target = settings.target if settings.target is not None else int(shares.argmax())
    pairs = list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    options = {name: value for name, value in result.options.items() if name in settings.method.options}
    planes = result.raw[0] if settings.method.planes else None
    number = 0 if planes is None else _plane_number(planes, wanted)
    return Answer(
        settings,
        seen,
        _plane(result.map if planes is None else planes[number][None]),
        result.raw,
        target,
        pairs,
        float(shares[target]),
        options,
        result.statistics[0],
        list(result.findings[0]),
        result.seconds,
        share,
        run.asked,
        number,
        0 if planes is None else len(planes),
    )


def _plane_number(planes: torch.Tensor, wanted: int | None) -> int:
    """The plane [h, w] of `planes` [K, h, w] that was asked for, else the strongest.

    Errors   Refused
    """
    if wanted is None:
        return int(planes.flatten(1).norm(dim=1).argmax())
    if not 0 <= wanted < len(planes):
        raise Refused(words.no_plane(wanted, len(planes)))
    return wanted


def _plane(maps: torch.Tensor | None) -> torch.Tensor | None:
    """The first picture's map as [h, w]; colour channels of a partial result are summed."""
    if maps is None:
        return None
    plane = maps[0].detach().float().cpu()
    return plane.sum(0) if plane.ndim == 3 else plane


def _sweep(settings: Settings, photo: Image.Image, answer: Answer) -> Stages | None:
    import explainers  # torch takes seconds to start

    loaded = settings.loaded
    names = [layer.name for layer in loaded.layers if layer.stage]
    if len(names) < 2:
        return None
    try:
        maps = network_calls.sweep(loaded.name, loaded.model.prepare(photo), answer.target, names)
    except explainers.ExplainerError:
        return None  # the strip is a way to get around; a network without comparable stages has none
    return Stages(settings, answer.seen, {name: _plane(each) for name, each in maps.items()})  # type: ignore[misc]


def open_picture(path: str) -> Image.Image:
    try:
        return uploads.open_picture(path)
    except uploads.Refused as error:
        raise Refused(str(error)) from None


class sentences:
    """What the library refuses reaches the visitor as its own sentence; anything else as one that is known."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, (Refused, GeneratorExit)):
            return
        import explainers  # torch takes seconds to start

        if isinstance(error, explainers.ExplainerError):
            raise Refused(words.plain(str(error))) from error
        if isinstance(error, MemoryError) or "out of memory" in str(error):
            raise Refused(words.OUT_OF_MEMORY) from error


def changed(request: Request, **changes: Any) -> Request:
    """The same request with a remedy applied: fields of the request by name, everything else is an option."""
    options = dict(request.options)
    fields: dict[str, Any] = {}
    for name, value in changes.items():
        if name in ("model", "layer", "target", "method", "picture"):
            fields[name] = "" if value is None else str(value)
        else:
            options[name] = value
    return replace(request, options=options, **fields)


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
    """A value that JSON can hold: tuples become lists, what is not a number None, the rest its description."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)
