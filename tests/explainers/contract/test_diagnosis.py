"""Statistics and findings: each computed by hand on maps of a few cells."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from explainers.explanation.diagnosis import diagnose
from explainers.explanation.evidence import Evidence, statistics
from explainers.findings import Finding

INF, NAN = float("inf"), float("nan")


def findings(map: Tensor, raw: Tensor | None = None, layer: str | None = "layer4", **known: Any) -> list[Finding]:
    signed = map if raw is None else raw
    return diagnose(Evidence(map, signed, signed, "grad_cam", layer, **known))


def codes(map: Tensor, raw: Tensor | None = None, **known: Any) -> list[str]:
    found = findings(map, raw, **known)
    assert all(isinstance(each, Finding) and each.sentence.endswith(".") for each in found)
    return [each.code for each in found]


def only(map: Tensor, raw: Tensor | None = None, **known: Any) -> Finding:
    (finding,) = findings(map, raw, **known)
    return finding


def statistics_of(map: Tensor, raw: Tensor, **known: Any) -> dict[str, Any]:
    return statistics(Evidence(map, map, raw, "grad_cam", "layer4", **known))


GOOD = torch.tensor([[0.0, 1.0], [2.0, 0.5]])


def test_statistics_by_hand():
    """Oracle: by hand. Four cells of which one is negative; |map| has shares 1/2 and 1/2, so ln 2 / ln 4."""
    raw = torch.tensor([[-1.0, 2.0], [2.0, 0.0]])

    found = statistics_of(raw.relu(), raw)

    assert found == {
        "min": -1,
        "max": 2,
        "sum": 3,
        "negative_share": 0.25,
        "peak": (0, 1),
        "non_finite": 0,
        "entropy": pytest.approx(0.5, abs=1e-12),
    }


def test_statistics_are_per_image_with_score_and_gradient_norm():
    """Each image has its own statistics, score and gradient norm."""
    one, even = torch.tensor([[0.0, 4.0]]), torch.tensor([[8.0, 8.0]])

    first = statistics_of(one, one, target_score=1.5, gradient_norm=0.0)
    second = statistics_of(even, even, target_score=-2.0, gradient_norm=3.0)

    assert (first["max"], first["entropy"], first["peak"]) == (4, 0, (0, 1))
    assert (second["sum"], second["entropy"], second["peak"]) == (16, 1, (0, 0))
    assert (first["target_score"], first["gradient_norm"]) == (1.5, 0)
    assert (second["target_score"], second["gradient_norm"]) == (-2, 3)


def test_statistics_of_pixel_attributions_cover_every_channel():
    """`raw` may be [C, H, W]: completeness concerns its total sum; the peak is that of the displayed map."""
    raw = torch.zeros(2, 2, 3)
    raw[0, 1, 2], raw[1, 1, 2], raw[1, 0, 0] = 5.0, -3.0, 1.0

    found = statistics_of(raw.sum(0), raw)

    assert (found["min"], found["max"], found["sum"], found["peak"]) == (-3, 5, 3, (1, 2))
    assert found["negative_share"] == pytest.approx(1 / 12)


def test_peak_of_a_blank_map_is_that_of_the_signed_map():
    """After the ReLU every cell is 0; the peak is the maximum of the signed map."""
    raw = torch.tensor([[-3.0, -2.0], [-0.5, -4.0]])

    assert statistics_of(raw.relu(), raw)["peak"] == (1, 0)


def test_statistics_ignore_non_finite_values():
    some, none = torch.tensor([[NAN, 1.0], [INF, -2.0]]), torch.full((2, 2), NAN)

    part, nothing = statistics_of(some, some), statistics_of(none, none)

    assert (part["min"], part["max"], part["non_finite"], part["peak"]) == (-2, 1, 2, (0, 1))
    assert part["negative_share"] == 0.5 and math.isnan(part["entropy"])
    assert math.isnan(nothing["min"]) and math.isnan(nothing["sum"]) and nothing["non_finite"] == 4


@pytest.mark.parametrize("scale", [1e-200, 1.0, 4e307])
def test_entropy_does_not_depend_on_the_scale(scale):
    """Identity: entropy depends on the normalized map, also near the limits of float64."""
    map = torch.tensor([[1.0, 3.0], [0.0, 4.0]], dtype=torch.float64)
    shares = [1 / 8, 3 / 8, 4 / 8]
    expected = -sum(p * math.log(p) for p in shares) / math.log(4)

    assert statistics_of(map * scale, map)["entropy"] == pytest.approx(expected, rel=1e-12)


def test_statistics_are_plain_numbers():
    """They are written to JSON and npz files."""
    for value in statistics_of(GOOD, GOOD, target_score=1.0, gradient_norm=1.0).values():
        assert type(value) in (int, float) or [type(each) for each in value] == [int, int]


def test_a_good_map_has_no_findings():
    known = {"target_score": 2.0, "gradient_norm": 1.0, "scores": torch.tensor([2.0, 1])}

    assert codes(GOOD, **known, earlier_layer="layer3", relu=True) == []
    assert codes(GOOD - 1, relu=False) == []


def test_p20_flat_map_is_reported_with_its_value():
    """Row P20: a constant map of 0.25 is reported with its value, not as blank."""
    finding = only(torch.full((3, 3), 0.25), earlier_layer="layer3")

    assert finding.code == "flat" and "0.25" in finding.sentence and finding.remedy == {"layer": "layer3"}


def test_flat_means_up_to_rounding():
    """Float32 rounding noise on a large constant is flat; a relative spread of a thousandth is not."""
    base = torch.full((2, 2), 1000.0)
    base[0, 0] += 1e-3
    assert codes(base) == ["flat"]
    base[0, 0] += 1
    assert codes(base) == []


def test_zero_map_is_flat_without_an_earlier_layer_as_remedy():
    finding = only(torch.zeros(2, 2))

    assert finding.code == "flat" and "zero everywhere" in finding.sentence and finding.remedy == {}


def test_p21_nothing_positive_offers_the_signed_map():
    """Row P21: all weighted sums are negative and the ReLU zeroes them; the remedy is relu=False."""
    raw = torch.tensor([[-1.0, -0.5], [0.0, -3.0]])

    finding = only(raw.relu(), raw, relu=True)

    assert finding.code == "nothing_positive" and finding.remedy == {"relu": False}
    assert "-3" in finding.sentence and "ReLU" in finding.sentence


@pytest.mark.parametrize("relu", [False, None])
def test_nothing_positive_without_a_relu_has_no_remedy(relu):
    raw = torch.tensor([[-1.0, -0.5]])

    assert only(raw, relu=relu).remedy == {}


def test_p21_constant_negative_map_is_also_flat():
    """Row P21's example: -0.25 everywhere."""
    raw = torch.full((2, 2), -0.25)

    assert codes(raw.relu(), raw, relu=True) == ["nothing_positive", "flat"]


def test_p22_one_cell_is_reported_with_its_value():
    """Row P22: a 1x1 map holds one value, 0.1896 in that example."""
    finding = only(torch.tensor([[0.1896]]), earlier_layer="layer3")

    assert finding.code == "nothing_spatial" and "0.19" in finding.sentence and finding.remedy == {"layer": "layer3"}
    assert codes(torch.tensor([[-0.5]]).relu(), torch.tensor([[-0.5]]), relu=True) == ["nothing_spatial"]


def test_p23_saturated_softmax_offers_the_logit():
    """Row P23: p = 1.0 has no gradient; the remedy is the logit of the same class, by its index."""
    known = {"target_score": 1.0, "scores": torch.tensor([0.0, 0, 900]), "probability_target": True}

    finding = only(torch.zeros(2, 2), **known, gradient_norm=1e-30)

    assert finding.code == "saturated" and finding.remedy == {"target": 2} and "logit" in finding.sentence


@pytest.mark.parametrize(
    ("score", "logits", "expected"),
    [
        (0.9995, None, True),
        (0.99, None, False),
        (0.5, None, False),
        (1e-5, None, True),
        (0.01, None, False),
        (-1e-5, None, True),
        (-0.5, None, False),
        (-20.0, None, False),
        (0.0, [0.0, 0, 900], True),
        (0.0, None, True),
    ],
)
def test_saturation_threshold_of_the_gradient(score, logits, expected):
    """By hand: dp/dz = p (1 - p), d log p/dz = 1 - p; saturated below a thousandth of the logit's gradient."""
    scores = None if logits is None else torch.tensor(logits)
    found = codes(GOOD, target_score=score, scores=scores, probability_target=True)

    assert found == (["saturated"] if expected else [])
    assert codes(GOOD, target_score=score, scores=scores) == [], "a logit cannot saturate"


def test_saturated_without_scores_offers_the_top_class():
    finding = only(GOOD, target_score=1.0, probability_target=True)

    assert finding.remedy == {"target": None}


@pytest.mark.parametrize(
    ("raw", "known", "word"),
    [
        ([[NAN, 1.0]], {}, "1 of 2 values of the grad_cam map"),
        ([[0.0, 0.0]], {"scores": torch.tensor([NAN, 1.0, INF])}, "scores are NaN or infinite (2 of 3)"),
        ([[NAN, 1.0]], {"scores": torch.tensor([NAN, 1.0])}, "scores"),
        ([[NAN, 1.0]], {"scores": torch.tensor([2.0, 1.0]), "gradient_norm": NAN}, "gradient is NaN"),
    ],
)
def test_p24_non_finite_names_the_first_tensor_at_fault(raw, known, word):
    """Row P24: other libraries draw a plausible map. The cause is the only finding, since no other is meaningful."""
    finding = only(torch.tensor(raw).nan_to_num(), torch.tensor(raw), **known)

    assert finding.code == "non_finite" and word in finding.sentence


def test_p82_zero_gradient_offers_the_layer_before():
    """Row P82: after a ViT's last block only the class token is used. The blank map is not a second finding."""
    zero = torch.zeros(4, 4)
    finding = only(zero, layer="blocks.1", gradient_norm=0.0, earlier_layer="blocks.0")

    assert finding.code == "no_gradient" and finding.remedy == {"layer": "blocks.0"}
    assert "'blocks.1'" in finding.sentence and "'blocks.0'" in finding.sentence


def test_findings_are_per_image():
    raw = torch.stack([GOOD, torch.full((2, 2), 3.0), -1 - GOOD])

    assert [codes(one.relu(), one, relu=True) for one in raw] == [[], ["flat"], ["nothing_positive"]]


def test_maps_without_a_grid_are_accepted():
    """channel_effects gives [K]: no spatial finding, no failure."""
    effects = torch.tensor([0.5, -0.5, 0.0])

    assert codes(effects) == []
    assert statistics_of(effects, effects)["peak"] == (0, 0)


@pytest.mark.parametrize(
    ("shape", "sides", "reported"),
    [((12, 8), (32, 48), True), ((8, 12), (32, 48), False), ((9, 9), (32, 48), False), ((12, 8), (32, 32), False)],
)
def test_a_map_with_the_proportions_of_the_transposed_image_is_a_finding(shape, sides, reported):
    found = [each for each in findings(torch.rand(shape), sides=sides) if each.code == "transposed"]

    assert len(found) == reported
    assert not reported or found[0].facts == {"rows": 12, "columns": 8, "height": 32, "width": 48}
