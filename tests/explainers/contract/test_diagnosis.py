"""Statistics and findings: by hand on maps of a few cells, and provoked through `explain`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import explainers
from explainers import explain
from explainers.explanation.diagnosis import Evidence, diagnose, statistics
from explainers.findings import Finding
from tests.support.nets import plain, random_images, residual, top

INF, NAN = float("inf"), float("nan")


def findings(map: Tensor, raw: Tensor | None = None, layer: str | None = "layer4", **known: Any) -> list[Finding]:
    signed = map if raw is None else raw
    return diagnose(Evidence(map, signed, signed, "grad_cam", layer, **known))


def codes(map: Tensor, **known: Any) -> list[str]:
    return [each.code for each in findings(map, **known)]


def statistics_of(map: Tensor, raw: Tensor, **known: Any) -> dict[str, Any]:
    return statistics(Evidence(map, map, raw, "grad_cam", "layer4", **known))


GOOD = torch.tensor([[0.0, 1.0], [2.0, 0.5]])


def test_statistics_by_hand():
    """Oracle: by hand. Four cells of which one is negative; |map| has shares 1/2 and 1/2, so ln 2 / ln 4.

    `raw` may be [C, H, W]: its sum is over all channels, and the peak is that of the displayed map. After a ReLU every
    cell may be 0; the peak is then the maximum of the signed map.
    """
    raw = torch.tensor([[-1.0, 2.0], [2.0, 0.0]])
    expected = {"min": -1, "max": 2, "sum": 3, "negative_share": 0.25, "peak": (0, 1), "non_finite": 0}
    assert statistics_of(raw.relu(), raw) == expected | {"entropy": pytest.approx(0.5, abs=1e-12)}
    raw = torch.zeros(2, 2, 3)
    raw[0, 1, 2], raw[1, 1, 2], raw[1, 0, 0] = 5.0, -3.0, 1.0
    found = statistics_of(raw.sum(0), raw, target_score=1.5, gradient_norm=0.0)
    assert (found["min"], found["max"], found["sum"], found["peak"]) == (-3, 5, 3, (1, 2))
    assert found["negative_share"] == pytest.approx(1 / 12)
    assert (found["target_score"], found["gradient_norm"]) == (1.5, 0)
    blank = torch.tensor([[-3.0, -2.0], [-0.5, -4.0]])
    assert statistics_of(blank.relu(), blank)["peak"] == (1, 0)


def test_statistics_ignore_non_finite_values():
    some, none = torch.tensor([[NAN, 1.0], [INF, -2.0]]), torch.full((2, 2), NAN)
    part, nothing = statistics_of(some, some), statistics_of(none, none)
    assert (part["min"], part["max"], part["non_finite"], part["peak"]) == (-2, 1, 2, (0, 1))
    assert part["negative_share"] == 0.5 and math.isnan(part["entropy"])
    assert math.isnan(nothing["min"]) and math.isnan(nothing["sum"]) and nothing["non_finite"] == 4


def test_entropy_does_not_depend_on_the_scale():
    """Identity: entropy depends on the normalized map, also near the limits of float64."""
    map = torch.tensor([[1.0, 3.0], [0.0, 4.0]], dtype=torch.float64)
    expected = -sum(p * math.log(p) for p in (1 / 8, 3 / 8, 4 / 8)) / math.log(4)
    for scale in (1e-200, 1.0, 4e307):
        assert statistics_of(map * scale, map)["entropy"] == pytest.approx(expected, rel=1e-12), scale


NEGATIVE, CELL, BROKEN = torch.full((2, 2), -0.25), torch.tensor([[0.1896]]), torch.tensor([[NAN, 1.0]])
SATURATED = {"target_score": 1.0, "probability_target": True}
BEFORE = {"find_earlier_layer": lambda: "layer3"}
CASES: list[tuple[Tensor, dict[str, Any], list[str], str, dict[str, Any]]] = [
    # raw map, what else is known, codes, a part of the sentence, the remedy of the first finding
    (GOOD, {"target_score": 2.0, "gradient_norm": 1.0, "scores": torch.tensor([2.0, 1]), "relu": True}, [], "", {}),
    (GOOD - 1, {"relu": False}, [], "", {}),
    (torch.full((3, 3), 0.25), BEFORE, ["flat"], "0.25", {"layer": "layer3"}),
    (torch.tensor([[-2.0, -1.0]]), {"relu": True}, ["nothing_positive"], "ReLU", {"relu": False}),
    (NEGATIVE, {"relu": True}, ["nothing_positive", "flat"], "", {"relu": False}),
    (CELL, BEFORE, ["nothing_spatial"], "0.19", {"layer": "layer3"}),
    (-CELL, {"relu": True}, ["nothing_spatial"], "", {}),
    # A probability of 1 has no gradient; the remedy is the logit of the same class
    (torch.zeros(2, 2), {**SATURATED, "scores": torch.tensor([0.0, 0, 900]), "gradient_norm": 1e-30}, ["saturated"],
     "logit", {"target": 2}),
    (GOOD, SATURATED, ["saturated"], "logit", {"target": None}),
    # After a ViT's last block only the class token is used; the blank map is not a second finding
    (torch.zeros(4, 4), {**BEFORE, "gradient_norm": 0.0}, ["no_gradient"], "'layer3'", {"layer": "layer3"}),
    (torch.tensor([0.5, -0.5, 0.0]), {}, [], "", {}),  # effects of channels have no grid
    # Other libraries draw a plausible map; the cause is the only finding, since no other is meaningful
    (BROKEN, {}, ["non_finite"], "1 of 2 values of the grad_cam map", {}),
    (torch.zeros(1, 2), {"scores": torch.tensor([NAN, 1.0, INF])}, ["non_finite"], "infinite (2 of 3)", {}),
    (BROKEN, {"scores": torch.tensor([NAN, 1.0])}, ["non_finite"], "scores", {}),
    (BROKEN, {"scores": torch.tensor([2.0, 1.0]), "gradient_norm": NAN}, ["non_finite"], "gradient is NaN", {}),
]  # fmt: skip


def test_findings_and_their_remedies():
    for case in CASES:
        raw, known, expected, words, remedy = case
        found = findings(raw.relu() if known.get("relu") else raw.nan_to_num(), raw, **known)
        assert [each.code for each in found] == expected, case
        if found:
            assert words in found[0].sentence and found[0].sentence.endswith("."), case
            assert found[0].remedy == remedy or expected == ["non_finite"], case


def test_flat_means_up_to_rounding():
    """Float32 rounding noise on a large constant is flat; a relative spread of a thousandth is not."""
    base = torch.full((2, 2), 1000.0)
    base[0, 0] += 1e-3
    assert codes(base) == ["flat"]
    base[0, 0] += 1
    assert codes(base) == []


SATURATION = {0.9995: True, 0.99: False, 0.5: False, 1e-5: True, 0.01: False, -1e-5: True, -0.5: False, -20.0: False}


def test_saturation_threshold_of_the_gradient():
    """By hand: dp/dz = p (1 - p), d log p/dz = 1 - p; saturated below a thousandth of the logit's gradient."""
    for score, expected in (SATURATION | {0.0: True}).items():
        assert codes(GOOD, target_score=score, probability_target=True) == ["saturated"] * expected, score
        assert codes(GOOD, target_score=score) == [], "a logit cannot saturate"
    assert codes(GOOD, target_score=0.0, scores=torch.tensor([0.0, 0, 900]), probability_target=True) == ["saturated"]


def test_a_map_with_the_proportions_of_the_transposed_image_is_a_finding():
    (found,) = [each for each in findings(torch.rand(12, 8), sides=(32, 48)) if each.code == "transposed"]
    assert found.facts == {"rows": 12, "columns": 8, "height": 32, "width": 48}
    for shape, sides in (((8, 12), (32, 48)), ((9, 9), (32, 48)), ((12, 8), (32, 32))):
        assert "transposed" not in codes(torch.rand(shape), sides=sides), (shape, sides)


# Findings that need the model: each is provoked through explain, and absent otherwise


def found(explanation: explainers.Explanation, code: str, index: int = 0) -> Finding | None:
    return next((each for each in explanation.findings[index] if each.code == code), None)


def test_an_improbable_target_is_a_finding():
    """With logits a hundred times as large the last class has probability 0; the remedy is the top class."""
    net, x = plain(), random_images(1)
    net.head.weight.data *= 100
    scores = net(x)[0]
    last, first = int(scores.argmin()), int(scores.argmax())

    finding = found(explain("saliency", net, x, last), "unlikely_target")

    assert finding is not None and finding.remedy == {"target": first}
    assert "ranks 7 of 7" in finding.sentence and str(first) in finding.sentence
    assert found(explain("saliency", net, x, first), "unlikely_target") is None


def test_an_unusual_image_size_is_a_finding():
    """The images' shorter side is 12; half to twice the trained side is usual."""
    for trained, reported in ((32, True), (5, True), (16, False), (None, False)):
        finding = found(explain("saliency", plain(), random_images(1), trained_size=trained), "unusual_size")
        assert (finding is not None) == reported, trained
        assert not reported or ("12" in finding.sentence and str(trained) in finding.sentence)
    for settings in ({"image_size": 32}, {"default_cfg": {"input_size": (3, 32, 32)}}):
        net = plain()
        vars(net).update(settings)
        assert found(explain("saliency", net, random_images(1)), "unusual_size"), settings


def test_the_first_non_finite_layer_is_named_and_a_good_map_has_no_findings():
    for layer in ("layer1.conv2", "layer2.bn1", "fc"):
        net, x = residual(), random_images(1)
        assert explain("hires_cam", net, x, top(net, x)).findings == [[]]
        net.get_submodule(layer).weight.data[0] = torch.inf
        finding = found(explain("saliency", net, x), "non_finite")
        assert finding is not None and repr(layer) in finding.sentence
