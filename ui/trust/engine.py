"""How far the map on the page can be believed: its curves beside the controls', the class and the weights.

The controls of a picture and class are measured once; any other map of it is then measured alone. Everything here takes
the last place in the queue, and steps aside for every click.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from ui import limits
from ui.engine import engine, network_calls, scene
from ui.engine.messages import Answer, Refused, Settings, Waiting
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import turns
from ui.maps import kept
from ui.methods import costs
from ui.rail import norms
from ui.trust import words
from ui.trust.messages import STEPS, Alike, Controls, Judging, Verdict, Weights

if TYPE_CHECKING:
    import torch

    import explainers
    from explainers.metrics.evaluation import Evaluation
    from explainers.metrics.randomisation_result import Randomisation
    from explainers.targets import Target

T = TypeVar("T")
METRICS = ("deletion", "insertion")
QUICK = 0.03
"""Seconds of a forward pass up to which the verdict comes without being asked for: it takes 192, in batches."""
KEPT = 64
_controls: OrderedDict[str, Controls] = OrderedDict()
"""By picture, network and target; no network, which would never be freed."""
_lock = threading.Lock()


def why_not(answer: Answer) -> str:
    """Why there is no verdict on the answer's map; empty where there is one."""
    method, plane = answer.settings.method, answer.map
    if method.family == "control":
        return words.CONTROL
    if method.planes or not method.gives_map:
        return words.PLANES if method.planes else words.NO_MAP
    if answer.share < 1:
        return words.UNFINISHED
    if not answer.settings.key:
        return words.NOT_KNOWN
    if not bool(plane.isfinite().all()):
        return words.NOT_FINITE
    return words.CONSTANT if bool((plane == plane.flatten()[0]).all()) else ""


def is_quick(settings: Settings) -> bool:
    """Whether the verdict comes without being asked for: a quick method, and a quick network."""
    if settings.method.long or settings.loaded.finds or limits.SHARED_GPU:
        return False
    return costs.forward(settings.loaded) <= QUICK


def judge(request: Request, run: Run, key: str) -> Iterator[Waiting | Judging | Verdict]:
    """The verdict on the map of question `key`; nothing where the page shows another by now.

    Errors   Refused, and those of the library
    """
    answer = yield from _shown(request, run, key)
    if answer is None:
        return
    settings = answer.settings
    images = engine.opened(settings, request)[2]
    target = _target(answer)
    yield Judging(key, 0.0)
    shared = norms.key_of(str(request.picture), settings, answer.names)
    with turns.place(run, long=True, aside=0.0) as turn:
        yield from engine.taken(turn)
        work = partial(_evaluated, settings.loaded.name, images, answer.explanation, target, _known(shared))
        evaluation = yield from engine.stream(work, run, lambda step: Judging(key, step.fraction), turn)
        if not evaluation.is_complete:
            raise Refused(words.STOPPED if run.cancelled else words.OVER)
        if why := next((reason for each in evaluation.reasons.values() for reason in each if reason), ""):
            raise Refused(words.NO_VALUE.format(why=why))
        _keep(shared, evaluation)
        verdict = Verdict(
            key,
            settings.method,
            answer.name,
            words.unit(settings, evaluation),
            evaluation,
            order(evaluation),
            blurred(answer.seen, images),
            _alike(answer, images) if is_quick(settings) else None,
            more=is_quick(settings),
        )
        yield verdict
        if verdict.more:
            yield verdict.with_weights((yield from _randomised(answer, images, target, run, turn)))


def draw_weights(request: Request, run: Run, key: str) -> Iterator[Waiting | Judging | Weights]:
    """Whether the map of question `key` notices that the last layer's weights are drawn anew.

    Errors   as `judge`
    """
    answer = yield from _shown(request, run, key)
    if answer is None:
        return
    images = engine.opened(answer.settings, request)[2]
    with turns.place(run, long=True, aside=0.0) as turn:
        yield from engine.taken(turn)
        found = yield from _randomised(answer, images, _target(answer), run, turn)
        yield Weights(key, answer.settings.method, found)


def _shown(request: Request, run: Run, key: str) -> Generator[Waiting, None, Answer | None]:
    """The answer that the page shows, where it is that of question `key` still.

    Errors   Refused where it has no verdict, or would take long to compute again
    """
    settings = yield from engine.settled(request, run)
    settings = replace(settings, key=kept.key(settings, request))
    if not key or settings.key != key:
        return None
    if settings.method.long and kept.find(settings) is None:
        raise Refused(words.FORGOTTEN)
    answer = None
    for step in engine.explain(replace(request, kept=True), run, stages=False):
        if isinstance(step, Waiting):
            yield step
        elif isinstance(step, Answer):
            answer = step
    if answer and (reason := why_not(answer)):
        raise Refused(reason)
    return answer


def _target(answer: Answer) -> int | Target:
    if answer.scene:
        return answer.thing.target
    chosen = scene.target_of(answer.settings)
    return answer.target if chosen is None else chosen


def _evaluated(
    name: str,
    images: torch.Tensor,
    explanation: explainers.Explanation,
    target: int | Target,
    controls: Controls | None,
    report: Callable[[Any], bool],
) -> Evaluation:
    """The evaluation, with the controls that are known; in their precision, to which areas are compared."""
    known, precision = (None, "auto") if controls is None else controls
    asked = {"metrics": METRICS, "steps": STEPS, "controls": known is None, "precision": precision}
    found = network_calls.evaluate(name, images, explanation, report, target=target, **asked)
    return found if known is None else replace(found, **known)


def _known(key: str) -> Controls | None:
    with _lock:
        return _controls.get(key)


def _keep(key: str, evaluation: Evaluation) -> None:
    with _lock:
        fields = {name: getattr(evaluation, name) for name in ("controls", "spread", "control_curves")}
        _controls[key] = fields, str(evaluation.options["precision"])
        _controls.move_to_end(key)
        while len(_controls) > KEPT:
            _controls.popitem(last=False)


def order(evaluation: Evaluation) -> torch.Tensor:
    """The step [H, W], uint8 from 1, at which the library deletes or inserts each pixel of the first picture."""
    import torch  # torch takes seconds to start

    from explainers.metrics.metric import ranks  # torch takes seconds to start

    rank = ranks(evaluation.maps[0], int(evaluation.options["seed"]))
    counts = torch.tensor([k * rank.numel() // STEPS for k in range(1, STEPS + 1)])
    return (torch.searchsorted(counts, rank.long(), right=True) + 1).to(torch.uint8)


def blurred(seen: Image.Image, images: torch.Tensor) -> Image.Image:
    """What deleted pixels show: the picture that the network saw, blurred at its size as the network's input is."""
    import torch  # torch takes seconds to start

    from explainers.perturbation.baselines import baseline_of  # torch takes seconds to start

    height, width = images.shape[-2:]
    small = seen.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    values = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(1, height, width, 3)
    soft = baseline_of(values.permute(0, 3, 1, 2).float(), "blur")[0].permute(1, 2, 0)
    return Image.frombytes("RGB", (width, height), soft.round().clamp(0, 255).to(torch.uint8).numpy().tobytes())


def _alike(answer: Answer, images: torch.Tensor) -> Alike | None:
    """The map of the class that comes next, beside the map that is shown; None where there is no other class."""
    from explainers.maps.resize import rank_correlation  # torch takes seconds to start

    settings, own, probabilities = answer.settings, answer.target, answer.probabilities
    if not settings.method.reads_class or settings.unit or probabilities is None or len(probabilities) < 2:
        return None
    other = next(label for label in probabilities.topk(2).indices.tolist() if label != own)
    options = {**settings.method_options, **({"layer": settings.layer} if settings.method.takes_layer else {})}
    second = network_calls.explain(
        settings.loaded.name, settings.method.name, images, target=other, compare=False, **options
    )
    pair = [each.raw if each.raw.ndim == 3 else each.map for each in (answer.explanation, second)]
    return Alike(settings.loaded.names[other], float(rank_correlation(*pair)[0]))


def _randomised(
    answer: Answer, images: torch.Tensor, target: int | Target, run: Run, turn: Any
) -> Generator[Judging, None, Randomisation | str]:
    """The test with new weights, or the sentence that says why it cannot be.

    Of a class the last layer's are drawn; a method that reads none does not see those, so all layers' are, once.
    """
    settings = answer.settings
    if settings.unit:
        return words.UNIT
    order = {"order": "logit"} if settings.method.reads_class else {"order": "cascade", "seeds": 1}
    options = {**settings.method_options, **({"layer": settings.layer} if settings.method.takes_layer else {})}
    work = partial(_drawn, settings.loaded.name, images, settings.method.name, target, options | order)
    try:
        found: Randomisation = yield from engine.stream(
            work, run, lambda step: Judging(settings.key, step.fraction), turn
        )
    except ValueError as error:
        return engine.sentence_of(error, words.NO_TEST)
    return words.STOPPED if found.done < found.total else found


def _drawn(
    name: str,
    images: torch.Tensor,
    method: str,
    target: int | Target,
    options: dict[str, Any],
    report: Callable[[Any], bool],
) -> Randomisation:
    return network_calls.randomise(name, images, method, report, target=target, **options)
