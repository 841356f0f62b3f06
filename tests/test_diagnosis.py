"""Statistics and findings: each computed by hand on maps of a few cells."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from explainers.explanation.diagnosis import diagnose, statistics
from explainers.findings import Finding

INF, NAN = float("inf"), float("nan")


def codes(map: Tensor, raw: Tensor | None = None, **known: object) -> list[str]:
    found = diagnose(map, map if raw is None else raw, **{"method": "grad_cam", "layer": "layer4", **known})
    assert all(isinstance(each, Finding) and each.sentence.endswith(".") for one in found for each in one)
    return [each.code for each in found[0]]


def only(map: Tensor, raw: Tensor | None = None, **known: object) -> Finding:
    (finding,) = diagnose(map, map if raw is None else raw, **{"method": "grad_cam", "layer": "layer4", **known})[0]
    return finding


GOOD = torch.tensor([[[0.0, 1.0], [2.0, 0.5]]])


def test_statistics_by_hand():
    """Oracle: by hand. Four cells of which one is negative; |map| has shares 1/2 and 1/2, so ln 2 / ln 4."""
    raw = torch.tensor([[[-1.0, 2.0], [2.0, 0.0]]])

    (found,) = statistics(raw.relu(), raw)

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
    raw = torch.tensor([[[0.0, 4.0]], [[8.0, 8.0]]])

    known = {"target_scores": torch.tensor([1.5, -2.0]), "gradient_norms": torch.tensor([0.0, 3.0])}
    first, second = statistics(raw, raw, **known)

    assert (first["max"], first["entropy"], first["peak"]) == (4, 0, (0, 1))
    assert (second["sum"], second["entropy"], second["peak"]) == (16, 1, (0, 0))
    assert (first["target_score"], first["gradient_norm"]) == (1.5, 0)
    assert (second["target_score"], second["gradient_norm"]) == (-2, 3)


def test_statistics_of_pixel_attributions_cover_every_channel():
    """`raw` may be [N, C, H, W]: completeness concerns its total sum; the peak is that of the map shown."""
    raw = torch.zeros(1, 2, 2, 3)
    raw[0, 0, 1, 2], raw[0, 1, 1, 2], raw[0, 1, 0, 0] = 5.0, -3.0, 1.0

    (found,) = statistics(raw.sum(1), raw)

    assert (found["min"], found["max"], found["sum"], found["peak"]) == (-3, 5, 3, (1, 2))
    assert found["negative_share"] == pytest.approx(1 / 12)


def test_peak_of_a_blank_map_is_that_of_the_signed_map():
    """After the ReLU every cell is 0; the peak is the maximum of the signed map."""
    raw = torch.tensor([[[-3.0, -2.0], [-0.5, -4.0]]])

    assert statistics(raw.relu(), raw)[0]["peak"] == (1, 0)


def test_statistics_ignore_non_finite_values():
    raw = torch.tensor([[[NAN, 1.0], [INF, -2.0]], [[NAN, NAN], [NAN, NAN]]])

    part, nothing = statistics(raw, raw)

    assert (part["min"], part["max"], part["non_finite"], part["peak"]) == (-2, 1, 2, (0, 1))
    assert part["negative_share"] == 0.5 and math.isnan(part["entropy"])
    assert math.isnan(nothing["min"]) and math.isnan(nothing["sum"]) and nothing["non_finite"] == 4


@pytest.mark.parametrize("scale", [1e-200, 1.0, 4e307])
def test_entropy_does_not_depend_on_the_scale(scale):
    """Identity: entropy depends on the normalised map, also near the limits of float64."""
    map = torch.tensor([[[1.0, 3.0], [0.0, 4.0]]], dtype=torch.float64)
    shares = [1 / 8, 3 / 8, 4 / 8]
    expected = -sum(p * math.log(p) for p in shares) / math.log(4)

    assert statistics(map * scale, map)[0]["entropy"] == pytest.approx(expected, rel=1e-12)


def test_statistics_are_plain_numbers():
    """They are written to JSON and npz files."""
    for value in statistics(GOOD, GOOD, target_scores=torch.ones(1), gradient_norms=torch.ones(1))[0].values():
        assert type(value) in (int, float) or [type(each) for each in value] == [int, int]


def test_a_good_map_has_no_findings():
    known = {"target_scores": torch.tensor([2.0]), "gradient_norms": torch.ones(1), "scores": torch.tensor([[2.0, 1]])}

    assert codes(GOOD, **known, earlier_layer="layer3", relu=True) == []
    assert codes(GOOD - 1, relu=False) == []


def test_p20_flat_map_is_reported_with_its_value():
    """Row P20: a constant map of 0.25 is reported with its value, not as blank."""
    finding = only(torch.full((1, 3, 3), 0.25), earlier_layer="layer3")

    assert finding.code == "flat" and "0.25" in finding.sentence and finding.remedy == {"layer": "layer3"}


def test_flat_means_up_to_rounding():
    """Float32 rounding noise on a large constant is flat; a relative spread of a thousandth is not."""
    base = torch.full((1, 2, 2), 1000.0)
    base[0, 0, 0] += 1e-3
    assert codes(base) == ["flat"]
    base[0, 0, 0] += 1
    assert codes(base) == []


def test_zero_map_is_flat_without_an_earlier_layer_as_remedy():
    finding = only(torch.zeros(1, 2, 2))

    assert finding.code == "flat" and "zero everywhere" in finding.sentence and finding.remedy == {}


def test_p21_nothing_positive_offers_the_signed_map():
    """Row P21: all weighted sums are negative and the ReLU zeroes them; the remedy is relu=False."""
    raw = torch.tensor([[[-1.0, -0.5], [0.0, -3.0]]])

    finding = only(raw.relu(), raw, relu=True)

    assert finding.code == "nothing_positive" and finding.remedy == {"relu": False}
    assert "-3" in finding.sentence and "ReLU" in finding.sentence


@pytest.mark.parametrize("relu", [False, None])
def test_nothing_positive_without_a_relu_has_no_remedy(relu):
    raw = torch.tensor([[[-1.0, -0.5]]])

    assert only(raw, relu=relu).remedy == {}


def test_p21_constant_negative_map_is_also_flat():
    """Row P21's example: -0.25 everywhere."""
    raw = torch.full((1, 2, 2), -0.25)

    assert codes(raw.relu(), raw, relu=True) == ["nothing_positive", "flat"]


def test_p22_one_cell_is_reported_with_its_value():
    """Row P22: a 1x1 map holds one value, 0.1896 in that example."""
    finding = only(torch.tensor([[[0.1896]]]), earlier_layer="layer3")

    assert finding.code == "nothing_spatial" and "0.19" in finding.sentence and finding.remedy == {"layer": "layer3"}
    assert codes(torch.tensor([[[-0.5]]]).relu(), torch.tensor([[[-0.5]]]), relu=True) == ["nothing_spatial"]


def test_p23_saturated_softmax_offers_the_logit():
    """Row P23: p = 1.0 has no gradient; the remedy is the logit of the same class, by its index."""
    known = {"target_scores": torch.tensor([1.0]), "scores": torch.tensor([[0.0, 0, 900]]), "probability_target": True}

    finding = only(torch.zeros(1, 2, 2), **known, gradient_norms=torch.tensor([1e-30]))

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
        (0.0, [[0.0, 0, 900]], True),
        (0.0, None, True),
    ],
)
def test_saturation_threshold_of_the_gradient(score, logits, expected):
    """By hand: dp/dz = p (1 - p), d log p/dz = 1 - p; saturated below a thousandth of the logit's gradient."""
    scores = None if logits is None else torch.tensor(logits)
    found = codes(GOOD, target_scores=torch.tensor([score]), scores=scores, probability_target=True)

    assert found == (["saturated"] if expected else [])
    assert codes(GOOD, target_scores=torch.tensor([score]), scores=scores) == [], "a logit cannot saturate"


def test_saturated_without_scores_offers_the_top_class():
    finding = only(GOOD, target_scores=torch.tensor([1.0]), probability_target=True)

    assert finding.remedy == {"target": None}


@pytest.mark.parametrize(
    ("raw", "known", "word"),
    [
        ([[[NAN, 1.0]]], {}, "1 of 2 values of the grad_cam map"),
        ([[[0.0, 0.0]]], {"scores": torch.tensor([[NAN, 1.0, INF]])}, "scores are NaN or infinite (2 of 3)"),
        ([[[NAN, 1.0]]], {"scores": torch.tensor([[NAN, 1.0]])}, "scores"),
        (
            [[[NAN, 1.0]]],
            {"scores": torch.tensor([[2.0, 1.0]]), "gradient_norms": torch.tensor([NAN])},
            "gradient is NaN",
        ),
    ],
)
def test_p24_non_finite_names_the_first_tensor_at_fault(raw, known, word):
    """Row P24: other libraries draw a plausible map. The cause is the only finding, since no other is meaningful."""
    finding = only(torch.tensor(raw).nan_to_num(), torch.tensor(raw), **known)

    assert finding.code == "non_finite" and word in finding.sentence


def test_p82_zero_gradient_offers_the_layer_before():
    """Row P82: after a ViT's last block only the class token is read. The blank map is not a second finding."""
    zero = torch.zeros(1, 4, 4)
    finding = only(zero, layer="blocks.1", gradient_norms=torch.zeros(1), earlier_layer="blocks.0")

    assert finding.code == "no_gradient" and finding.remedy == {"layer": "blocks.0"}
    assert "'blocks.1'" in finding.sentence and "'blocks.0'" in finding.sentence


def test_findings_are_per_image():
    raw = torch.stack([GOOD[0], torch.full((2, 2), 3.0), -1 - GOOD[0]])

    found = diagnose(raw.relu(), raw, method="grad_cam", layer="layer4", relu=True)

    assert [[each.code for each in one] for one in found] == [[], ["flat"], ["nothing_positive"]]


def test_maps_without_a_grid_are_accepted():
    """channel_effects gives [N, K]: no spatial finding, no failure."""
    effects = torch.tensor([[0.5, -0.5, 0.0]])

    assert codes(effects) == []
    assert statistics(effects, effects)[0]["peak"] == (0, 0)


def test_map_and_raw_must_have_the_same_batch():
    with pytest.raises(ValueError, match="same call"):
        statistics(GOOD, torch.cat([GOOD, GOOD]))
    with pytest.raises(ValueError, match="same call"):
        diagnose(GOOD, torch.cat([GOOD, GOOD]), method="grad_cam", layer=None)
