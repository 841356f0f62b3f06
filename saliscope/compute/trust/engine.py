"""The faithfulness check: compare a map with controls, with another class, and with randomized weights.

The controls of an image and class are measured once and shared by all maps. All jobs here have the lowest priority and
yield their turn to every click.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from PIL import Image

import explainers
from saliscope import limits
from saliscope.compute import engine, headline, network_calls, results_cache, scene, text_messages
from saliscope.compute.answers import Answer, Settings, Waiting
from saliscope.compute.erase.tensors import to_image
from saliscope.compute.jobs.runs import Run
from saliscope.compute.jobs.turns import turns
from saliscope.compute.messages import subject
from saliscope.compute.methods import costs
from saliscope.compute.request import Request
from saliscope.compute.results_cache import Recent
from saliscope.compute.trust import messages
from saliscope.compute.trust.answers import STEPS, CheckedMap, CheckProgress, ClassSimilarity, Controls, Weights
from saliscope.errors import Refused
from saliscope.zoo.operations import to_tensor

T = TypeVar("T")
METRICS = ("deletion", "insertion")
QUICK = 0.03
"""Maximum seconds of a forward pass for an automatic check, which takes 268 of them in batches."""
_controls = Recent[Controls]()
"""By image, network and target. Networks are not stored, so that they can be freed."""
_checked = Recent[CheckedMap]()
"""Finished checks by the key of the map, shared by all users: most of them see the same examples first."""


def why_not(answer: Answer) -> str:
    """Return why the map cannot be checked, or an empty string."""
    method, plane = answer.settings.method, answer.map
    if method.family == "control":
        return messages.CONTROL
    if method.planes or not method.gives_map:
        return messages.PLANES if method.planes else messages.NO_MAP
    if answer.share < 1:
        return messages.UNFINISHED
    if not answer.settings.key:
        return messages.NOT_KNOWN
    if not bool(plane.isfinite().all()):
        return messages.NOT_FINITE
    return messages.CONSTANT if bool((plane == plane.flatten()[0]).all()) else ""


def is_quick(settings: Settings) -> bool:
    """Return whether the check runs automatically, that is, for a quick method and a quick network."""
    if settings.method.long or settings.loaded.detects_objects or limits.SHARED_GPU:
        return False
    return costs.forward(settings.loaded) <= QUICK


def check(request: Request, run: Run, key: str) -> Iterator[Waiting | CheckProgress | CheckedMap]:
    """Yield the result of the check for the map of request `key`; yield nothing if the page has changed.

    Errors   Refused, and the errors of the library
    """
    answer = yield from _shown_answer(request, run, key)
    if answer is None:
        return
    settings = answer.settings
    if (finished := _checked.get(key)) is not None:
        yield finished
        return
    images = engine.load_input(settings, request)[2]
    target = scene.target_of_answer(answer)
    yield CheckProgress(key, 0.0)
    controls_key = results_cache.subject(settings, request)
    with turns.enqueue(run, long=True, min_seconds=0.0) as turn:
        yield from engine.wait_turn(turn)
        controls = _controls.get(controls_key)
        work = partial(_evaluate, settings.loaded.name, images, answer.explanation, target, controls)
        evaluation = yield from engine.stream(work, run, lambda step: CheckProgress(key, step.fraction), turn)
        if not evaluation.is_complete:
            raise Refused(messages.STOPPED if run.cancelled else messages.OVER)
        if why := next((reason for by_class in evaluation.reasons.values() for reason in by_class if reason), ""):
            raise Refused(messages.NO_VALUE.format(why=why))
        _controls.put(controls_key, _controls_of(evaluation))
        checked = CheckedMap(
            key,
            settings.method,
            subject(answer),
            messages.unit(settings, evaluation),
            evaluation,
            order(evaluation),
            blurred(answer.crop, images),
            answer.facts,
            similarity=_class_similarity(answer, images) if is_quick(settings) else None,
            uncompared=_why_not_compared(settings),
            more=is_quick(settings),
        )
        checked = _with_headline(checked, answer)
        yield checked
        if checked.more:
            test = yield from _randomize(answer, images, target, run, turn)
            checked = _with_headline(checked.with_weights(test), answer)
            yield checked
            if test == messages.STOPPED:
                return
        _checked.put(key, checked)


def _with_headline(checked: CheckedMap, answer: Answer) -> CheckedMap:
    return replace(checked, headline=headline.headline(answer, checked.verdict))


def find(key: str) -> CheckedMap | None:
    """Return the finished check of the map of request `key`, or None."""
    return _checked.get(key) if key else None


def randomize_weights(request: Request, run: Run, key: str) -> Iterator[Waiting | CheckProgress | CheckedMap | Weights]:
    """Yield whether the map of request `key` changes if the weights are randomized.

    Errors   as `judge`
    """
    answer = yield from _shown_answer(request, run, key)
    if answer is None:
        return
    images = engine.load_input(answer.settings, request)[2]
    with turns.enqueue(run, long=True, min_seconds=0.0) as turn:
        yield from engine.wait_turn(turn)
        test = yield from _randomize(answer, images, scene.target_of_answer(answer), run, turn)
        if (checked := find(key)) is None or isinstance(test, str):
            yield Weights(key, answer.settings.method, test)
            return
        checked = _with_headline(checked.with_weights(test), answer)
        _checked.put(key, checked)
        yield checked


def _shown_answer(request: Request, run: Run, key: str) -> Generator[Waiting, None, Answer | None]:
    """Return the answer that the page shows, or None if its key is no longer `key`.

    Errors   Refused if the map cannot be checked, or would take long to recompute
    """
    settings = yield from engine.resolve_settings(request, run)
    settings = replace(settings, key=results_cache.key(settings, request))
    if not key or settings.key != key:
        return None
    if settings.method.long and results_cache.find(settings) is None:
        raise Refused(messages.FORGOTTEN)
    answer = None
    for step in engine.explain(replace(request, use_cache=True), run, stages=False):
        if isinstance(step, Waiting):
            yield step
        elif isinstance(step, Answer):
            answer = step
    if answer and (reason := why_not(answer)):
        raise Refused(reason)
    return answer


def _evaluate(
    name: str,
    images: torch.Tensor,
    explanation: explainers.Explanation,
    target: int | explainers.Target,
    controls: Controls | None,
    report: Callable[[Any], bool],
) -> explainers.Evaluation:
    """Evaluate the map in the precision of the known controls, which are added to the result."""
    known, precision = (None, "auto") if controls is None else controls
    options = {"metrics": METRICS, "steps": STEPS, "controls": known is None, "precision": precision}
    evaluation = network_calls.evaluate(name, images, explanation, report, target=target, **options)
    return evaluation if known is None else replace(evaluation, **known)


def _controls_of(evaluation: explainers.Evaluation) -> Controls:
    names = ("controls", "spread", "random_values", "random_curves", "control_curves")
    return {name: getattr(evaluation, name) for name in names}, str(evaluation.options["precision"])


def order(evaluation: explainers.Evaluation) -> torch.Tensor:
    """Return the step [H, W], uint8, starting at 1, at which each pixel of the first image is deleted or inserted."""
    rank = evaluation[:1].pixel_ranks()[0]
    counts = torch.tensor([k * rank.numel() // STEPS for k in range(1, STEPS + 1)])
    return (torch.searchsorted(counts, rank.long(), right=True) + 1).to(torch.uint8)


def blurred(crop: Image.Image, images: torch.Tensor) -> Image.Image:
    """Return the image shown instead of deleted pixels: the crop, blurred at the size of the network's input."""
    height, width = images.shape[-2:]
    small = crop.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    return to_image(explainers.baseline_of(to_tensor(small)[None], "blur"))


def _class_similarity(answer: Answer, images: torch.Tensor) -> ClassSimilarity | None:
    """Compare the map with that of the runner-up class; return None if there is no other class."""
    settings, explained, probabilities = answer.settings, answer.target, answer.probabilities
    if not settings.method.reads_class or settings.unit or probabilities is None or len(probabilities) < 2:
        return None
    if settings.loaded.encodes_text:
        return None
    other = next(label for label in probabilities.topk(2).indices.tolist() if label != explained)
    name, arguments = settings.method.name, settings.method_arguments
    second = network_calls.explain(settings.loaded.name, name, images, target=other, compare=False, **arguments)
    both = (answer.explanation, second)
    judged = [explanation.raw if explanation.raw.ndim == 3 else explanation.map for explanation in both]
    correlations = [explainers.rank_correlation(*pair) for pair in (judged, [explanation.map for explanation in both])]
    return ClassSimilarity(settings.loaded.names[other], *(float(each[0]) for each in correlations))


def _why_not_compared(settings: Settings) -> str:
    """Return why the map of a sentence is not compared with that of another one; empty for classes."""
    if settings.sentences is None:
        return ""
    return text_messages.TWO_SENTENCES if settings.sentences.against else text_messages.ONE_SENTENCE


def _randomize(
    answer: Answer, images: torch.Tensor, target: int | explainers.Target, run: Run, turn: Any
) -> Generator[CheckProgress, None, explainers.Randomization | str]:
    """Run the randomization test; return its result, or the message that explains why it cannot run.

    The last layer is randomized for class-specific methods. Class-agnostic methods do not depend on it, so all layers
    are randomized once.
    """
    settings = answer.settings
    if settings.unit:
        return messages.UNIT
    order = {"order": "logit"} if settings.method.reads_class else {"order": "cascade", "seeds": 1}
    options = settings.method_arguments | order

    def work(report: Callable[[Any], bool]) -> explainers.Randomization:
        more = {"method": settings.method.name, "target": target, **network_calls.progress_options(report)}
        return network_calls.run(settings.loaded.name, explainers.randomization_test, images, **options, **more)

    try:
        test = yield from engine.stream(work, run, lambda step: CheckProgress(settings.key, step.fraction), turn)
    except ValueError as error:
        return engine.message_of(error, messages.NO_TEST)
    return messages.STOPPED if test.done < test.total else test
