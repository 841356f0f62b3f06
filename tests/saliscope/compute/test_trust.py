"""The faithfulness check: results, packed values, messages, and maps that cannot be checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import explainers
from explainers import Randomization, baseline_of
from saliscope.compute import engine as page_engine
from saliscope.compute import network_calls, results_cache
from saliscope.compute.answers import Answer, Waiting
from saliscope.compute.jobs import runs
from saliscope.compute.request import Request
from saliscope.compute.trust import engine, messages
from saliscope.compute.trust.answers import CheckedMap, CheckProgress, ClassSimilarity
from saliscope.errors import Refused
from saliscope.page.trust import trust as view
from tests.saliscope.compute.asking import MEDIUM, SMALL, answered, steps_of
from tests.support import nets

STEPS = 5


@pytest.fixture(scope="module")
def grad_cam(new_dog: str) -> Iterator[Request]:
    """Return the question of most tests; the curves have few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "STEPS", STEPS)
        yield Request(new_dog, model=MEDIUM, method="grad_cam", use_cache=True)


@pytest.fixture(scope="module")
def answer(grad_cam: Request) -> Answer:
    return answered(grad_cam)


def key_of(request: Request) -> str:
    return results_cache.key(page_engine.resolve(request), request)


def judged(request: Request) -> list[Any]:
    return steps_of(engine.check, request, key=key_of(request))


@pytest.fixture(scope="module")
def steps(grad_cam: Request) -> list[Any]:
    return judged(grad_cam)


@pytest.fixture(scope="module")
def verdict(steps: list[Any]) -> CheckedMap:
    """Return the finished check."""
    return steps[-1]


def rows(verdict: CheckedMap, **changes: Any) -> dict[str, Any]:
    """Return the rows of a verdict in which something is changed, with what the first sentence says."""
    packed = view.verdict(replace(verdict, **changes))["verdict"]
    return {**packed["rows"], "sentence": packed["sentence"]}


def test_each_step_shows_the_input_of_the_network(grad_cam: Request) -> None:
    """Oracle: the inputs of the network. 192 pixels are not divisible by 5 steps, and a coarse map has ties."""
    net, images, heat = nets.plain().float(), torch.rand(1, 3, 12, 16), torch.rand(1, 12, 16)
    inputs: list[Tensor] = []
    net.register_forward_pre_hook(lambda _, given: inputs.extend(given[0].detach().clone()))
    for metric, each in itertools.product(engine.METRICS, (heat, (heat * 3).floor())):
        inputs.clear()
        options = {"metrics": metric, "steps": STEPS, "controls": False, "precision": "float32"}
        order = engine.order(explainers.evaluate(net, images, each, target=1, **options))
        cover = baseline_of(images, "blur")[0]
        first, last = (images[0], cover) if metric == "deletion" else (cover, images[0])
        for k in range(1, STEPS):
            wanted = torch.where(order <= k, last, first)
            assert any(torch.equal(wanted, given) for given in inputs), (metric, k)
        assert order.min() == 1 and order.max() == STEPS, "the last step changes the remaining pixels"


def test_deleted_pixels_show_the_baseline_of_the_network(grad_cam: Request, answer: Answer) -> None:
    """Oracle: the baseline without normalization, up to rounding."""
    images = page_engine.load_input(answer.settings, grad_cam)[2]
    preparation = answer.settings.loaded.model.preparation
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (preparation.mean, preparation.std))
    soft = engine.blurred(answer.crop, images)
    values = torch.frombuffer(bytearray(soft.tobytes()), dtype=torch.uint8).view(*images.shape[-2:], 3).permute(2, 0, 1)
    given = (baseline_of(images, "blur")[0] * std + mean) * 255
    assert (values - given).abs().max() < 3 and given.std() > 10


def test_the_result_for_grad_cam(grad_cam: Request, steps: list[Any], verdict: CheckedMap) -> None:
    """Oracle: SciPy on the maps that the page shows, so that Explain and Compare have the same rank correlation."""
    spearmanr = pytest.importorskip("scipy.stats").spearmanr
    assert isinstance(steps[0], CheckProgress) and {step.key for step in steps} == {key_of(grad_cam)}
    more = [view.verdict(step)["more"] for step in steps if isinstance(step, CheckedMap)]
    assert more == [True, False], "the randomization test follows the curves"
    assert isinstance(verdict.weights, Randomization) and verdict.weights.passes
    packed = view.verdict(verdict)["verdict"]
    assert (packed["unit"], packed["name"]) == ("probability", "German shepherd")
    assert packed["rows"]["class"]["mark"] == packed["rows"]["weights"]["mark"] == "good"
    curve = packed["curves"]["deletion"]
    assert len(curve["own"]) == STEPS + 1 and set(curve["controls"]) == {"random", "edge", "center"}
    mean = sum(curve["own"]) / STEPS - (curve["own"][0] + curve["own"][-1]) / 2 / STEPS
    assert mean == pytest.approx(curve["area"], abs=1e-3), "the area under the drawn curve"
    assert packed["order"]["h"] * packed["order"]["w"] == 112 * 112

    assert verdict.similarity is not None and verdict.similarity.other == "malinois"
    maps = [answered(replace(grad_cam, target=name)).map.flatten().numpy() for name in ("", "malinois")]
    assert f"rank correlation {float(spearmanr(*maps)[0]):.2f} with" in packed["rows"]["class"]["text"]
    blank = rows(verdict, similarity=replace(verdict.similarity, shown=float("nan")))["class"]
    assert "before negative values are set to zero" in blank["text"], "one of the maps is zero everywhere"


def test_maps_of_an_image_and_class_share_controls(grad_cam: Request, verdict: CheckedMap) -> None:
    """Oracle: the evaluation of another map with its own controls. A finished check is shown at once."""
    request = replace(grad_cam, method="hires_cam")
    found, options = answered(request), {"metrics": engine.METRICS, "steps": STEPS}
    images = page_engine.load_input(found.settings, request)[2]
    own = network_calls.evaluate(MEDIUM, images, found.explanation, lambda step: True, target=found.target, **options)
    assert str(judged(request)[-1].evaluation) == str(own)
    assert [step for step in judged(grad_cam) if not isinstance(step, Waiting)] == [verdict]


def test_a_request_that_is_outdated_stopped_or_long_has_no_result(grad_cam: Request) -> None:
    assert [steps_of(engine.check, grad_cam, key=key) for key in ("another", "")] == [[], []]
    with pytest.raises(Refused, match="no longer in the cache"):
        judged(replace(grad_cam, method="rise"))
    other = replace(grad_cam, target="tabby")
    with runs.start(None) as run, pytest.raises(Refused, match=messages.STOPPED):
        for step in engine.check(other, run, key_of(other)):
            assert not isinstance(step, CheckedMap)
            if isinstance(step, CheckProgress) and step.fraction:
                run.stop()
    assert engine.find(key_of(other)) is None


def test_a_map_that_cannot_be_checked_has_a_reason(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And slow methods and slow networks are not checked automatically."""

    def of(method: str) -> Answer:
        return replace(answer, settings=replace(answer.settings, method=explainers.METHODS[method]))

    for why, each in (
        (messages.UNFINISHED, replace(answer, share=0.4)),
        (messages.NOT_FINITE, replace(answer, map=torch.full((7, 7), torch.nan))),
        (messages.CONSTANT, replace(answer, map=torch.zeros(7, 7))),
        (messages.NOT_KNOWN, replace(answer, settings=replace(answer.settings, key=""))),
        (messages.CONTROL, of("random_control")),
        (messages.PLANES, of("attention_heads")),
        (messages.NO_MAP, of("channel_effects")),
        ("", answer),
    ):
        packed = view.identify(each, 7)
        assert (packed["why"], packed["quick"], packed["key"]) == (why, not why, each.settings.key)
    assert not engine.is_quick(of("rise").settings)
    monkeypatch.setattr(engine.costs, "forward", lambda loaded: 1.0)
    assert not engine.is_quick(answer.settings)


def test_the_controls_row(verdict: CheckedMap) -> None:
    """A value within those of the random maps does not count for or against the map."""
    one, signs = verdict.evaluation, {"deletion": -1, "insertion": 1}
    controls = {name: dict.fromkeys(each, each["random"]) for name, each in one.controls.items()}
    for gain, mark in ((50.0, "good"), (0.0, "mixed"), (-50.0, "bad")):
        values = {name: one.controls[name]["random"] + signs[name] * gain for name in signs}
        row = rows(verdict, evaluation=replace(one, values=values, controls=controls))["controls"]
        assert row["mark"] == mark, gain


def test_the_class_row(verdict: CheckedMap) -> None:
    for reads, correlation, text, mark in (
        (False, None, "Class-agnostic", "bad"),
        (True, 0.995, "Hardly depends on the class: rank correlation 0.99", "bad"),
        (True, 0.97, "Partly depends on the class: rank correlation 0.97", "mixed"),
        (True, -0.5, "Depends on the class: rank correlation −0.50", "good"),
        (True, float("nan"), "Not compared", "unknown"),
    ):
        similarity = None if correlation is None else ClassSimilarity("malinois", correlation, correlation)
        row = rows(verdict, method=replace(verdict.method, reads_class=reads), similarity=similarity)["class"]
        assert text in row["text"] and row["mark"] == mark, (reads, correlation)


def test_the_weights_row(verdict: CheckedMap, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sentence says the same. Without a test of this map, the row is that of the stored table."""
    for signed, absolute, text, mark in (
        (0.2, 0.2, "Depends on the weights: rank correlation 0.20", "good"),
        (0.99, 0.99, "Hardly depends on the weights: rank correlation 0.99", "bad"),
        (0.1, 0.95, "only flips the sign", "bad"),
        (float("nan"), float("nan"), "Not compared", "unknown"),
    ):
        values = {"signed": torch.tensor([[signed]]), "absolute": torch.tensor([[absolute]])}
        found = rows(verdict.with_weights(replace(verdict.weights, **values, by_size=False)))
        assert text in found["weights"]["text"] and found["weights"]["mark"] == mark, found
        assert "classifier" in found["weights"]["text"]
        assert ("hardly depends on the weights" in found["sentence"]) == (mark == "bad")
    assert rows(verdict.with_weights("No."))["weights"] == {"text": "No.", "mark": "unknown", "here": True}
    for last, mark in ((0.9, "bad"), (-0.1, "good"), (None, "unknown")):
        table = {"network": "net", "photographs": 109, "methods": {"grad_cam": {"logit": last, "cascade": 0.1}}}
        monkeypatch.setattr(view.badges, "table", lambda table=table: table)
        row = rows(verdict, weights=None)["weights"]
        assert row["mark"] == mark and row["here"] is False, "the test is still possible"


@pytest.mark.slow
def test_class_agnostic_methods_are_tested_with_all_layers_randomized(grad_cam: Request) -> None:
    """Eigen-CAM does not use the last layer, so randomizing only that layer has no effect."""
    verdict = judged(replace(grad_cam, method="eigen_cam"))[-1]
    found = rows(verdict)
    assert verdict.weights.order == "cascade" and float(verdict.weights.signed[0, 0]) == 1
    assert "after randomizing all weights" in found["weights"]["text"] and found["class"]["mark"] == "bad"


def test_objects_are_checked_on_request(
    grad_cam: Request, blob_models: None, blobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the curve starts at the score of the detection or the mean logit of the region."""
    monkeypatch.setattr(engine.costs, "forward", lambda loaded: 0.0)  # as on a machine that is not busy
    for model, unit in (("detection", "score"), ("segmentation", "mean logit")):
        request = Request(blobs, model=f"blobs_{model}", use_cache=True)
        answer, verdict = answered(request), judged(request)[-1]
        assert view.identify(answer, 1)["quick"] is False
        images = page_engine.load_input(answer.settings, request)[2]
        score = float(answer.detected_object.target(answer.settings.loaded.model.network(images))[0])
        assert (verdict.unit, verdict.name) == (unit, "red blob")
        assert float(verdict.evaluation.curves["deletion"][0, 0]) == pytest.approx(score, rel=1e-2)
        assert verdict.similarity is None and verdict.weights is None and not verdict.more
        drawn = steps_of(engine.randomize_weights, request, key=key_of(request))[-1]
        assert rows(drawn)["weights"]["text"]
    channel = replace(grad_cam, model=SMALL, layer="stages.2", target="channel 12 of stages.4")
    verdict = judged(channel)[-1]
    assert (verdict.unit, verdict.name) == ("channel mean", "channel 12 of stages.4")
    assert {rows(verdict)[name]["mark"] for name in ("class", "weights")} == {"unknown"}
