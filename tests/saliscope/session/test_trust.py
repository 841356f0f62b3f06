"""The faithfulness check: results, packed values, messages, and maps that cannot be checked."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import explainers
from explainers.metrics.randomization_result import Randomization
from explainers.perturbation.baselines import baseline_of
from saliscope.errors import Refused
from saliscope.page.trust import view
from saliscope.session import engine as page_engine
from saliscope.session import results_cache
from saliscope.session.answers import Waiting
from saliscope.session.jobs import runs
from saliscope.session.jobs.runs import Run
from saliscope.session.jobs.turns import Turns
from saliscope.session.request import Request
from saliscope.session.trust import engine, messages
from saliscope.session.trust.answers import CheckedMap, CheckProgress, ClassSimilarity
from saliscope.zoo import catalog
from tests.saliscope.session.asking import DOG, MODEL, answered
from tests.support import dense_nets, nets

STEPS = 5
GRAD_CAM = Request(DOG, model=MODEL, method="grad_cam", use_cache=True)


@pytest.fixture(scope="module", autouse=True)
def ready(loaded: object) -> Iterator[None]:
    """No controls in the cache, and few steps of the curves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "STEPS", STEPS)
        patch.setattr(engine, "_controls", type(engine._controls)())
        patch.setattr(engine, "_checked", type(engine._checked)())
        yield


def key_of(request: Request) -> str:
    return results_cache.key(page_engine.resolve(request), request)


def judged(request: Request) -> list[Any]:
    with runs.start(None) as run:
        assert run is not None
        return list(engine.check(request, run, key_of(request)))


@pytest.fixture(scope="module")
def steps(ready: None) -> list[Any]:
    """All steps of the check of Grad-CAM for the first example."""
    return judged(GRAD_CAM)


@pytest.fixture(scope="module")
def verdict(steps: list[Any]) -> CheckedMap:
    return steps[-1]


def rows(verdict: CheckedMap, **changes: Any) -> dict[str, Any]:
    """Return the rows of a verdict in which something is changed, with what the first sentence says."""
    packed = view.verdict(replace(verdict, **changes))["verdict"]
    return {**packed["rows"], "sentence": packed["sentence"]}


def test_each_step_shows_the_input_of_the_network() -> None:
    """Oracle: the inputs of the network. 192 pixels are not divisible by 5 steps, and a coarse map has ties."""
    net, images, heat = nets.plain().float(), torch.rand(1, 3, 12, 16), torch.rand(1, 12, 16)
    inputs: list[Tensor] = []
    net.register_forward_pre_hook(lambda _, given: inputs.extend(given[0].detach().clone()))
    for metric, each in itertools.product(engine.METRICS, (heat, (heat * 3).floor())):
        inputs.clear()
        evaluation = explainers.evaluate(
            net, images, each, target=1, metrics=metric, steps=STEPS, controls=False, precision="float32"
        )
        order = engine.order(evaluation)
        cover = baseline_of(images, "blur")[0]
        first, last = (images[0], cover) if metric == "deletion" else (cover, images[0])
        for k in range(1, STEPS):
            wanted = torch.where(order <= k, last, first)
            assert any(torch.equal(wanted, given) for given in inputs), (metric, k)
        assert order.min() == 1 and order.max() == STEPS, "the last step changes the remaining pixels"


def test_deleted_pixels_show_the_baseline_of_the_network() -> None:
    """Oracle: the baseline without normalization, up to rounding."""
    answer = answered(GRAD_CAM)
    settings = answer.settings
    images = page_engine.load_input(settings, GRAD_CAM)[2]
    preparation = settings.loaded.model.preparation
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (preparation.mean, preparation.std))

    soft = engine.blurred(answer.crop, images)

    values = torch.frombuffer(bytearray(soft.tobytes()), dtype=torch.uint8).view(*images.shape[-2:], 3).permute(2, 0, 1)
    given = (baseline_of(images, "blur")[0] * std + mean) * 255
    assert (values - given).abs().max() < 3 and given.std() > 10


def test_the_result_for_grad_cam(steps: list[Any], verdict: CheckedMap) -> None:
    assert [type(step) for step in steps[-2:]].count(CheckedMap) >= 1 and isinstance(steps[0], CheckProgress)
    assert {step.key for step in steps} == {key_of(GRAD_CAM)}
    more = [view.verdict(step)["more"] for step in steps if isinstance(step, CheckedMap)]
    assert more == [True, False], "the randomization test follows the curves"
    assert "better than" in messages.controls(verdict.evaluation)
    assert (
        verdict.similarity is not None
        and verdict.similarity.other == "malinois"
        and abs(verdict.similarity.correlation) < 0.99
    )
    assert isinstance(verdict.weights, Randomization) and verdict.weights.passes
    packed = view.verdict(verdict)["verdict"]
    assert packed["unit"] == "probability" and packed["name"] == "German shepherd"
    assert packed["rows"]["class"]["mark"] == packed["rows"]["weights"]["mark"] == "good"
    assert all(row["text"].endswith(".") for row in packed["rows"].values())
    curve = packed["curves"]["deletion"]
    assert len(curve["own"]) == STEPS + 1 and set(curve["controls"]) == {"random", "edge", "center"}
    assert curve["own"] == packed["curves"]["insertion"]["own"][::-1] or curve["own"][0] > 0.9
    mean = sum(curve["own"]) / STEPS - (curve["own"][0] + curve["own"][-1]) / 2 / STEPS
    assert mean == pytest.approx(curve["area"], abs=1e-3), "the area under the drawn curve"
    assert len(base64.b64decode(packed["order"]["b64"])) == packed["order"]["h"] * packed["order"]["w"] == 224 * 224


def test_the_controls_of_an_image_and_class_are_measured_once(
    verdict: CheckedMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the same map evaluated with its own controls. A finished check is not repeated at all."""
    whole = page_engine.network_calls.evaluate

    def evaluate(*values: Any, **named: Any) -> Any:
        assert not named["controls"]
        return whole(*values, **named)

    with monkeypatch.context() as patch:
        patch.setattr(page_engine.network_calls, "evaluate", evaluate)
        patch.setattr(engine, "_checked", type(engine._checked)())
        again = judged(GRAD_CAM)[-1]
    assert again.evaluation.controls == verdict.evaluation.controls
    assert str(again.evaluation) == str(verdict.evaluation)
    assert view.verdict(again)["verdict"]["curves"] == view.verdict(verdict)["verdict"]["curves"]

    for name in ("evaluate", "randomize"):
        monkeypatch.setattr(engine.network_calls, name, lambda *_, **__: pytest.fail("it must not run"))
    assert [step for step in judged(GRAD_CAM) if not isinstance(step, Waiting)] == [verdict]
    with pytest.raises(pytest.fail.Exception):
        judged(replace(GRAD_CAM, target="1"))


def test_an_outdated_request_has_no_result() -> None:
    with runs.start(None) as run:
        assert run is not None
        assert list(engine.check(GRAD_CAM, run, "another")) == []
        assert list(engine.check(GRAD_CAM, run, "")) == []


def test_a_stopped_check_has_a_message_and_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_controls", type(engine._controls)())
    monkeypatch.setattr(engine, "_checked", type(engine._checked)())
    found: list[Any] = []

    def work() -> None:
        with runs.start(None) as run:
            assert run is not None
            for step in engine.check(GRAD_CAM, run, key_of(GRAD_CAM)):
                found.append(step)
                if isinstance(step, CheckProgress) and step.fraction:
                    run.stop()

    with pytest.raises(Refused, match=messages.STOPPED):
        work()
    assert found and not any(isinstance(step, CheckedMap) for step in found) and not engine._controls


def test_a_long_map_that_is_not_cached_is_not_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(GRAD_CAM, method="rise")
    monkeypatch.setattr(page_engine.network_calls, "explain", lambda *_, **__: pytest.fail("it must not run"))

    with pytest.raises(Refused, match="no longer in the cache"):
        judged(request)


def test_a_map_that_cannot_be_checked_has_a_reason(verdict: CheckedMap) -> None:
    answer = answered(GRAD_CAM)
    settings = answer.settings
    changed = {
        messages.UNFINISHED: replace(answer, share=0.4),
        messages.NOT_FINITE: replace(answer, map=torch.full((7, 7), torch.nan)),
        messages.CONSTANT: replace(answer, map=torch.zeros(7, 7)),
        messages.NOT_KNOWN: replace(answer, settings=replace(settings, key="")),
        "": answer,
    }
    for name, why in (
        ("random_control", messages.CONTROL),
        ("attention_heads", messages.PLANES),
        ("channel_effects", messages.NO_MAP),
    ):
        changed[why] = replace(answer, settings=replace(settings, method=explainers.METHODS[name]))
    for why, each in changed.items():
        packed = view.identify(each, 7)
        assert packed["sentence"] and packed["mark"]
        assert (packed["id"], packed["key"]) == (7, each.settings.key)
        assert (packed["why"], packed["quick"]) == (why, not why)


def test_slow_methods_and_slow_networks_are_not_checked_automatically(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = answered(GRAD_CAM).settings
    assert engine.is_quick(settings)
    assert not engine.is_quick(replace(settings, method=explainers.METHODS["rise"]))
    monkeypatch.setattr(engine.costs, "forward", lambda loaded: 1.0)
    assert not engine.is_quick(settings)


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
        (True, None, "Not compared", "unknown"),
        (True, 0.995, "Hardly depends on the class: rank correlation 0.99", "bad"),
        (True, 0.97, "Partly depends on the class: rank correlation 0.97", "mixed"),
        (True, -0.5, "Depends on the class: rank correlation −0.50", "good"),
        (True, float("nan"), "Not compared", "unknown"),
    ):
        similarity = None if correlation is None else ClassSimilarity("malinois", correlation, correlation)
        row = rows(verdict, method=replace(verdict.method, reads_class=reads), similarity=similarity)["class"]
        assert text in row["text"] and row["mark"] == mark, (reads, correlation)


def test_the_correlation_with_another_class_is_that_of_the_shown_maps(verdict: CheckedMap) -> None:
    """Oracle: SciPy on the maps that the page shows, so that Explain and Compare have the same number."""
    spearmanr = pytest.importorskip("scipy.stats").spearmanr
    assert verdict.similarity is not None
    maps = [answered(replace(GRAD_CAM, target=name)).map.flatten() for name in ("", verdict.similarity.other)]
    expected = float(spearmanr(*(plane.numpy() for plane in maps))[0])
    row = rows(verdict)["class"]
    assert f"rank correlation {expected:.2f} with" in row["text"]

    blank = replace(verdict.similarity, shown=float("nan"))
    row = rows(verdict, similarity=blank)["class"]
    assert "before negative values are set to zero" in row["text"], "one of the maps is zero everywhere"


def test_the_weights_row(verdict: CheckedMap) -> None:
    """The first sentence says the same."""
    assert isinstance(verdict.weights, Randomization)
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


def test_without_a_test_the_weights_row_uses_the_table(verdict: CheckedMap, monkeypatch: pytest.MonkeyPatch) -> None:
    for last, mark in ((0.9, "bad"), (-0.1, "good"), (None, "unknown")):
        table = {"network": "net", "photographs": 109, "methods": {"grad_cam": {"logit": last, "cascade": 0.1}}}
        monkeypatch.setattr(view.badges, "table", lambda table=table: table)
        row = rows(verdict, weights=None)["weights"]
        assert row["mark"] == mark and row["here"] is False, "the test is still possible"
        assert ("over 109 images with net." in row["text"]) is (last is not None)


@pytest.mark.slow
def test_class_agnostic_methods_are_tested_with_all_layers_randomized() -> None:
    """Eigen-CAM does not use the last layer, so randomizing only that layer has no effect."""
    verdict = judged(replace(GRAD_CAM, method="eigen_cam"))[-1]
    found = rows(verdict)

    assert verdict.weights.order == "cascade" and float(verdict.weights.signed[0, 0]) == 1
    assert verdict.weights.passes is False, "the rule of the library requires both"
    assert found["weights"]["mark"] == ("good" if abs(verdict.weights.after_all_layers) < 0.5 else "bad")
    assert "after randomizing all weights" in found["weights"]["text"] and found["class"]["mark"] == "bad"


def test_a_channel_is_compared_with_controls_but_not_by_class_and_weights() -> None:
    verdict = judged(replace(GRAD_CAM, layer="stages.2", target="channel 12 of stages.4"))[-1]
    found = rows(verdict)

    assert verdict.unit == "channel mean" and verdict.name == "channel 12 of stages.4"
    assert found["class"]["mark"] == found["weights"]["mark"] == "unknown"
    assert found["weights"]["text"] == messages.UNIT


@pytest.mark.parametrize(("model", "unit"), [("detection", "score"), ("segmentation", "mean logit")])
def test_objects_are_checked_on_request(model: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the curve starts at the score of the detection or the mean logit of the region."""
    monkeypatch.setattr(catalog, "SOURCES", (*catalog.SOURCES, dense_nets.Blobs()))
    monkeypatch.setattr(page_engine.model_cache, "_loaded", page_engine.model_cache._loaded.copy())
    dense_nets.scene().save(tmp_path / "scene.png")
    request = Request(str(tmp_path / "scene.png"), model=f"blobs_{model}", use_cache=True)
    answer = answered(request)
    assert view.identify(answer, 1)["quick"] is False and not view.identify(answer, 1)["why"]

    verdict = judged(request)[-1]

    images = page_engine.load_input(answer.settings, request)[2]
    score = float(answer.detected_object.target(answer.settings.loaded.model.network(images))[0])
    assert verdict.unit == unit and verdict.name == "red blob"
    assert float(verdict.evaluation.curves["deletion"][0, 0]) == pytest.approx(score, rel=1e-2)
    assert verdict.similarity is None and verdict.weights is None and not verdict.more
    with runs.start(None) as run:
        assert run is not None
        drawn = list(engine.randomize_weights(request, run, key_of(request)))[-1]
    assert isinstance(drawn, CheckedMap) and view.verdict(drawn)["verdict"]["rows"]["weights"]["text"]


def test_a_check_yields_its_turn_to_a_click_at_once() -> None:
    """Other long jobs first compute for half a second."""
    turns = Turns()
    for min_seconds, held in ((0.0, False), (0.5, True)):
        with turns.enqueue(Run(9), long=True, min_seconds=min_seconds) as long, turns.enqueue(Run(9), long=False):
            assert not list(turns.wait(long))
            long.run.stop()  # do not wait for the turn to come back
            turns.report(long, 0.1)
            assert (turns._holder is long) is held
