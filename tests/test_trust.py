"""The trust strip without a browser: the verdict, what is sent and said, and where there is none."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers.metrics.randomisation_result import Randomisation
from explainers.perturbation.baselines import baseline_of
from models import zoo
from tests import dense_nets
from ui import examples
from ui.engine import engine as page_engine
from ui.engine import runs
from ui.engine.messages import Answer, Refused
from ui.engine.model_cache import load
from ui.engine.request import Request
from ui.engine.runs import Run
from ui.engine.turns import Turns
from ui.maps import kept
from ui.trust import engine, packing, words
from ui.trust.messages import STEPS, Alike, Judging, Verdict

MODEL = "efficientnet_lite0"
DOG = str(next(iter(examples.all_examples().values())).path)
GRAD_CAM = Request(DOG, model=MODEL, method="grad_cam", kept=True)


@pytest.fixture(scope="module", autouse=True)
def ready() -> Iterator[None]:
    """The network is loaded at once, instead of in a thread; no controls are known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_engine.model_cache, "wait", lambda run, model: iter(()))
        patch.setattr(engine, "_controls", type(engine._controls)())
        load(MODEL)
        yield


def key_of(request: Request) -> str:
    return kept.key(page_engine.resolve(request), request)


def judged(request: Request) -> list[Any]:
    with runs.begin(None) as run:
        assert run is not None
        return list(engine.judge(request, run, key_of(request)))


def answered(request: Request) -> Answer:
    with runs.begin(None) as run:
        assert run is not None
        return next(step for step in page_engine.explain(request, run, stages=False) if isinstance(step, Answer))


@pytest.fixture(scope="module")
def steps(ready: None) -> list[Any]:
    """All that is said about Grad-CAM of the first example."""
    return judged(GRAD_CAM)


@pytest.fixture(scope="module")
def verdict(steps: list[Any]) -> Verdict:
    return steps[-1]


class Watching(nn.Module):
    """A small network that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.extend(x.detach().clone())
        found: Tensor = self.body(x)
        return found


@pytest.mark.parametrize("metric", engine.METRICS)
@pytest.mark.parametrize("coarse", [False, True])
def test_each_step_shows_the_pixels_that_the_network_was_given(metric: str, coarse: bool) -> None:
    """Oracle: the network's own inputs. 192 pixels in 20 steps are no whole number; a coarse map has ties."""
    net, images = Watching().eval(), torch.rand(1, 3, 12, 16)
    heat = torch.rand(1, 12, 16)
    heat = (heat * 3).floor() if coarse else heat
    evaluation = explainers.evaluate(
        net, images, heat, target=1, metrics=metric, steps=STEPS, controls=False, precision="float32"
    )

    order = engine.order(evaluation)

    cover = baseline_of(images, "blur")[0]
    first, last = (images[0], cover) if metric == "deletion" else (cover, images[0])
    found = 0
    for k in range(1, STEPS):
        wanted = torch.where(order <= k, last, first)
        found += any(torch.equal(wanted, given) for given in net.seen)
    assert found == STEPS - 1
    assert order.min() == 1 and order.max() == STEPS, "pixels of the last step are those that only the end changes"


def test_deleted_pixels_show_what_the_network_was_given() -> None:
    """Oracle: the network's baseline without its normalisation, to a 255th and the crop's rounding."""
    answer = answered(GRAD_CAM)
    settings = answer.settings
    images = page_engine.prepared(settings, GRAD_CAM)[1]
    preparation = settings.loaded.model.preparation
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (preparation.mean, preparation.std))

    soft = engine.blurred(answer.seen, images)

    values = torch.frombuffer(bytearray(soft.tobytes()), dtype=torch.uint8).view(*images.shape[-2:], 3).permute(2, 0, 1)
    given = (baseline_of(images, "blur")[0] * std + mean) * 255
    assert (values - given).abs().max() < 3 and given.std() > 10


def test_the_verdict_on_grad_cam(steps: list[Any], verdict: Verdict) -> None:
    assert [type(step) for step in steps[-2:]].count(Verdict) >= 1 and isinstance(steps[0], Judging)
    assert {step.key for step in steps} == {key_of(GRAD_CAM)}
    more = [packing.verdict(step)["more"] for step in steps if isinstance(step, Verdict)]
    assert more == [True, False], "the weights come after the curves"
    assert "better than" in words.controls(verdict.evaluation)
    assert verdict.alike is not None and verdict.alike.other == "malinois" and abs(verdict.alike.correlation) < 0.99
    assert isinstance(verdict.weights, Randomisation) and verdict.weights.passes
    packed = packing.verdict(verdict)["verdict"]
    assert packed["unit"] == "probability" and packed["name"] == "German shepherd"
    assert packed["rows"]["class"]["mark"] == packed["rows"]["weights"]["mark"] == "good"
    assert all(row["text"].endswith(".") for row in packed["rows"].values())
    curve = packed["curves"]["deletion"]
    assert len(curve["own"]) == STEPS + 1 and set(curve["controls"]) == {"random", "edge", "centre"}
    assert curve["own"] == packed["curves"]["insertion"]["own"][::-1] or curve["own"][0] > 0.9
    mean = sum(curve["own"]) / STEPS - (curve["own"][0] + curve["own"][-1]) / 2 / STEPS
    assert mean == pytest.approx(curve["area"], abs=1e-3), "the area is that of the curve that is drawn"
    assert len(base64.b64decode(packed["order"]["b64"])) == packed["order"]["h"] * packed["order"]["w"] == 224 * 224


def test_the_controls_of_a_picture_and_class_are_measured_once(
    verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the same map evaluated with controls of its own."""
    asked: list[bool] = []
    whole = page_engine.network_calls.evaluate

    def counting(*values: Any, **named: Any) -> Any:
        asked.append(named["controls"])
        return whole(*values, **named)

    monkeypatch.setattr(page_engine.network_calls, "evaluate", counting)
    again = judged(GRAD_CAM)[-1]

    assert asked == [False]
    assert again.evaluation.controls == verdict.evaluation.controls
    assert str(again.evaluation) == str(verdict.evaluation)
    assert packing.verdict(again)["verdict"]["curves"] == packing.verdict(verdict)["verdict"]["curves"]


def test_a_question_that_is_not_shown_any_more_has_no_verdict() -> None:
    with runs.begin(None) as run:
        assert run is not None
        assert list(engine.judge(GRAD_CAM, run, "another")) == []
        assert list(engine.judge(GRAD_CAM, run, "")) == []


def test_a_stopped_comparison_says_so_and_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_controls", type(engine._controls)())
    found: list[Any] = []

    def work() -> None:
        with runs.begin(None) as run:
            assert run is not None
            for step in engine.judge(GRAD_CAM, run, key_of(GRAD_CAM)):
                found.append(step)
                if isinstance(step, Judging) and step.fraction:
                    run.stop()

    with pytest.raises(Refused, match=words.STOPPED):
        work()
    assert found and not any(isinstance(step, Verdict) for step in found) and not engine._controls


def test_a_long_map_that_is_not_kept_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = replace(GRAD_CAM, method="rise")
    monkeypatch.setattr(page_engine.network_calls, "explain", lambda *_, **__: pytest.fail("it must not run"))

    with pytest.raises(Refused, match="has not kept"):
        judged(request)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"share": 0.4}, words.UNFINISHED),
        ({"map": torch.full((7, 7), torch.nan)}, words.NOT_FINITE),
        ({"map": torch.zeros(7, 7)}, words.CONSTANT),
        ({"method": "random_control"}, words.CONTROL),
        ({"method": "attention_heads"}, words.PLANES),
        ({"method": "channel_effects"}, words.NO_MAP),
        ({"key": ""}, words.NOT_KNOWN),
        ({}, ""),
    ],
)
def test_where_there_is_no_verdict_the_strip_says_why(
    changes: dict[str, Any], why: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = answered(GRAD_CAM)
    settings = answer.settings
    if "method" in changes:
        settings = replace(settings, method=explainers.METHODS[changes["method"]])
    settings = replace(settings, key=changes.get("key", settings.key))
    answer = replace(answer, settings=settings, **{k: v for k, v in changes.items() if k in ("share", "map")})

    packed = packing.wanted(answer, 7)

    assert packed == {"id": 7, "key": settings.key, "map": settings.method.title, "why": why, "quick": not why}


def test_slow_methods_and_slow_networks_wait_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = answered(GRAD_CAM).settings
    assert engine.is_quick(settings)
    assert not engine.is_quick(replace(settings, method=explainers.METHODS["rise"]))
    monkeypatch.setattr(engine.costs, "forward", lambda loaded: 1.0)
    assert not engine.is_quick(settings)


@pytest.mark.parametrize(
    ("reads", "correlation", "said", "mark"),
    [
        (False, None, "never asks", "bad"),
        (True, None, "Not compared", "unknown"),
        (True, 0.995, "Hardly depends on the class: rank correlation 0.99", "bad"),
        (True, -0.5, "Depends on the class: rank correlation −0.50", "good"),
        (True, float("nan"), "not compared", "unknown"),
    ],
)
def test_the_class_in_words(reads: bool, correlation: float | None, said: str, mark: str, verdict: Verdict) -> None:
    method = replace(verdict.method, reads_class=reads)
    alike = None if correlation is None else Alike("malinois", correlation)

    row = packing.verdict(replace(verdict, method=method, alike=alike))["verdict"]["rows"]["class"]

    assert said in row["text"] and row["mark"] == mark


@pytest.mark.parametrize(
    ("correlation", "said", "mark"),
    [
        (0.99, "Hardly depends on the weights: rank correlation 0.99", "bad"),
        (0.2, "Depends on the weights: rank correlation 0.20", "good"),
        (float("nan"), "not compared", "unknown"),
    ],
)
def test_the_weights_in_words(correlation: float, said: str, mark: str, verdict: Verdict) -> None:
    assert isinstance(verdict.weights, Randomisation)
    test = replace(verdict.weights, signed=torch.tensor([[correlation]]), by_size=False)

    row = packing.verdict(verdict.with_weights(test))["verdict"]["rows"]["weights"]

    assert said in row["text"] and row["mark"] == mark and "classifier" in row["text"]
    assert packing.verdict(verdict.with_weights("No."))["verdict"]["rows"]["weights"] == {
        "text": "No.",
        "mark": "unknown",
        "here": True,
    }


@pytest.mark.parametrize(("last", "mark"), [(0.9, "bad"), (-0.1, "good"), (None, "unknown")])
def test_weights_that_were_not_drawn_here_are_those_of_the_table(
    last: float | None, mark: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"network": "net", "photographs": 109, "methods": {"grad_cam": {"logit": last, "cascade": 0.1}}}
    monkeypatch.setattr(packing.badges, "table", lambda: table)

    row = packing.verdict(replace(verdict, weights=None))["verdict"]["rows"]["weights"]

    assert row["mark"] == mark and row["here"] is False, "they may still be drawn"
    assert ("over 109 photographs with net." in row["text"]) is (last is not None)


def test_a_method_without_a_class_is_tried_with_all_weights_new() -> None:
    """The last layer's alone prove nothing: Eigen-CAM never reads them."""
    verdict = judged(replace(GRAD_CAM, method="eigen_cam"))[-1]
    rows = packing.verdict(verdict)["verdict"]["rows"]

    assert verdict.weights.order == "cascade" and float(verdict.weights.signed[0, 0]) == 1
    assert verdict.weights.passes is False, "by the library's own rule, which asks for both"
    assert rows["weights"]["mark"] == ("good" if abs(verdict.weights.after_all_layers) < 0.5 else "bad")
    assert "once all weights were drawn anew" in rows["weights"]["text"]
    assert rows["class"]["mark"] == "bad"


def test_a_channel_is_compared_but_for_class_and_weights() -> None:
    rows = packing.verdict(judged(replace(GRAD_CAM, layer="stages.2", target="channel 12 of stages.4"))[-1])["verdict"]

    assert rows["unit"] == "channel mean" and rows["name"] == "channel 12 of stages.4"
    assert rows["rows"]["class"]["mark"] == rows["rows"]["weights"]["mark"] == "unknown"
    assert rows["rows"]["weights"]["text"] == words.UNIT


@pytest.mark.parametrize(("model", "unit"), [("detection", "score"), ("segmentation", "mean logit")])
def test_what_is_found_is_compared_when_asked(
    model: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the curve starts at the score of the detection, or at the mean logit of the region's pixels."""
    monkeypatch.setattr(zoo, "SOURCES", (*zoo.SOURCES, dense_nets.Blobs()))
    monkeypatch.setattr(page_engine.model_cache, "_loaded", page_engine.model_cache._loaded.copy())
    dense_nets.scene().save(tmp_path / "scene.png")
    request = Request(str(tmp_path / "scene.png"), model=f"blobs_{model}", kept=True)
    answer = answered(request)
    assert packing.wanted(answer, 1)["quick"] is False and not packing.wanted(answer, 1)["why"]

    verdict = judged(request)[-1]

    images = page_engine.prepared(answer.settings, request)[1]
    score = float(answer.thing.target(answer.settings.loaded.model.network(images))[0])
    assert verdict.unit == unit and verdict.name == "red blob"
    assert float(verdict.evaluation.curves["deletion"][0, 0]) == pytest.approx(score, rel=1e-2)
    assert verdict.alike is None and verdict.weights is None and not verdict.more
    with runs.begin(None) as run:
        assert run is not None
        drawn = list(engine.draw_weights(request, run, key_of(request)))[-1]
    assert packing.weights(drawn)["weights"]["text"]


def test_a_comparison_steps_aside_for_a_click_at_once() -> None:
    """Another long job first computes for half a second."""
    turns = Turns()
    for aside, held in ((0.0, False), (0.5, True)):
        with turns.place(Run(9), long=True, aside=aside) as long, turns.place(Run(9), long=False):
            assert not list(turns.wait(long))
            long.run.stop()  # so that nobody waits here for the turn to come back
            turns.report(long, 0.1)
            assert (turns._holder is long) is held
