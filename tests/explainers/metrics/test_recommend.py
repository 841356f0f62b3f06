"""`recommend`: which methods are tried in which order, their ranking, the time limit, and the messages."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import explainers
from explainers import METHODS, Recommendation, evaluate, explain, recommend
from explainers.maps.resize import resize
from explainers.metrics.recommendation import PartialRecommendation, RankedMap, rank_maps
from tests.explainers.metrics.test_evaluation import made
from tests.support.nets import plain, random_images, residual
from tests.support.traces import nothing_left

CAMS = ["grad_cam", "layer_cam", "hires_cam"]


def net_and_images(n: int = 1) -> tuple[nn.Module, Tensor]:
    return residual().float(), random_images(n, 3, 24, 32).float()


def tried(name: str, deletion: float, insertion: float, steps: int = 20, **more: Any) -> RankedMap:
    """Return the row of one image with these values, and with controls that all have the value 0.5."""
    controls = {control: [0.5] for control in ("random", "edge", "center")}
    random = [0.5 + 0.01 * sign for sign in (-1, 1, 1, -1, -1, 1, 1, -1)]
    return RankedMap(name, None, 0.1, steps, made([deletion], controls, random, insertion=[insertion]), **more)


def found(*rows: RankedMap) -> Recommendation:
    metrics = ("deletion", "insertion")
    return Recommendation(rank_maps(rows, metrics), metrics, total=len(rows))


# The ranking


def test_rows_are_ordered_by_their_mean_rank_by_hand():
    """Ranks by deletion (low first) 1, 2.5, 2.5, 4; by insertion (high first) 3, 1, 4, 2."""
    rows = [tried("a", 0.1, 0.6), tried("b", 0.2, 0.9), tried("c", 0.2, 0.5), tried("d", 0.4, 0.7)]

    order = found(*rows).rows

    assert [(row.method, row.rank) for row in order] == [("b", 1.75), ("a", 2.0), ("d", 3.0), ("c", 3.25)]


def test_longer_curves_come_first_and_rows_without_a_value_last():
    rows = [tried("short", 0.0, 1.0, 5), tried("nan", math.nan, 0.9), tried("full", 0.5, 0.5)]

    result = found(*rows)

    assert [row.method for row in result.rows] == ["full", "nan", "short"]
    assert [row.method for row in result.compared] == ["full", "nan"]


def test_agreement_is_spearmans_correlation_of_the_orders_and_winners_are_those_of_one_metric():
    values = [(0.1, 0.6), (0.25, 0.9), (0.2, 0.5), (0.4, 0.7), (0.3, 0.65)]
    rows = [tried(name, *value) for name, value in zip("abcde", values, strict=True)]

    result = found(*rows, tried("same", 0.1, 0.6, same_as="a"))

    rho = stats.spearmanr([-d for d, _ in values], [i for _, i in values]).statistic
    assert result.agreement == {("deletion", "insertion"): pytest.approx(rho)}
    assert {name: row.method for name, row in result.winners.items()} == {"deletion": "a", "insertion": "b"}
    assert "disagree on the order" in str(result) and "Best by deletion: a; by insertion: b." in str(result)
    assert math.isnan(found(*rows[:2]).agreement["deletion", "insertion"])


def test_the_message_says_if_no_map_is_better_than_the_controls():
    good = found(tried("a", 0.3, 0.8), tried("b", 0.2, 0.4))
    bad = found(tried("a", 0.3, 0.5), tried("b", 0.2, 0.4))

    assert "After correction" not in str(good) and good.rows[0].beats("edge")
    assert "After correction for 2 maps, none is better than every control by every metric." in str(bad)
    assert "no map to recommend" in str(found()) and found().best is None and found().winners == {}


def test_comparisons_are_adjusted_for_all_maps_that_were_tried():
    """A difference is significant among six comparisons and not among sixty. Repeated maps do not count."""
    first = tried("a", 0.45, 0.55)
    repeated = [RankedMap(f"b{k}", None, 0.1, 20, first.evaluation, same_as="a") for k in range(10)]
    one = found(first, *repeated).rows[0]
    assert one.comparisons["deletion"]["random"].verdict == "better" and one.beats("random")

    result = found(first, *(tried(f"c{k}", 0.5, 0.5) for k in range(9)))
    best = result.best
    assert best is not None and best.method == "a" and not best.beats("random")
    place = best.comparisons["deletion"]["random"]
    assert place.verdict == "level" and place.p_adjusted == pytest.approx(60 * place.p)
    assert best.evaluation.comparisons["deletion"]["random"].verdict == "better", "by itself"
    assert "After correction for 10 maps, none is better than every control" in str(result)
    assert result.to_rows()[0]["deletion_beside_random"] == "level"


# Which methods are tried


def test_numbers_are_those_of_evaluate_for_the_methods_own_map():
    net, images = net_and_images(2)
    given: dict[str, Any] = {"baseline": "mean", "precision": "float32"}
    with nothing_left(net, images), torch.inference_mode():
        found = recommend(net, images, methods=[*CAMS, "saliency"], layers=["layer1", "layer2"], steps=6, **given)

    assert len(found) == found.total == 7 and found.target == net(images).argmax(1).tolist()
    assert any(row.steps == 6 for row in found.rows)
    for row in found.rows:
        own = explain(row.method, net, images, compare=False, **({"layer": row.layer} if row.layer else {}))
        expected = evaluate(net, images, own, steps=row.steps, **given)
        torch.testing.assert_close(row.evaluation.maps, resize(own.map, (24, 32)), rtol=1e-4, atol=1e-6)
        for name in ("deletion", "insertion"):
            torch.testing.assert_close(row.evaluation.values[name], expected.values[name], rtol=1e-3, atol=1e-5)
            assert row.evaluation.compare(name, "edge").verdict == expected.compare(name, "edge").verdict


def test_cheapest_methods_come_first_and_late_layers_before_early_ones():
    net, images = net_and_images()
    seen: list[str] = []

    def look(partial: explainers.Partial) -> None:
        assert isinstance(partial, PartialRecommendation) and 0 <= partial.fraction <= 1
        seen.extend(row.name for row in partial.recommendation.rows if row.name not in seen)

    names = ["occlusion", "eigen_cam", "fem", "saliency", "layer_cam", "grad_cam"]
    result = recommend(net, images, methods=names, budget=60, steps=5, progress=look)

    layers = list(explainers.sweep("grad_cam", net, images))[::-1]
    assert len(layers) > 1
    assert seen == [
        *(f"{name} at {layer}" for layer in layers for name in ("layer_cam", "grad_cam")),
        "saliency",
        *(f"{name} at {layer}" for layer in layers for name in ("eigen_cam", "fem")),
        "occlusion",
    ]
    assert {row.name for row in result.rows} == set(seen)


def test_networks_without_spatial_layers_get_input_methods():
    linear, images = nn.Sequential(nn.Flatten(), nn.Linear(192, 5)).eval(), random_images(1, 3, 8, 8).float()
    found = recommend(linear, images, methods=["grad_cam", "saliency", "input_x_gradient"], budget=60, steps=5)
    assert {row.method for row in found.rows} == {"saliency", "input_x_gradient"}
    assert "larger than 1x1" in found.refused["grad_cam"]
    frozen = recommend(torch.jit.script(plain().float()), images, budget=1, steps=5)
    assert frozen.best is not None and all(row.layer is None for row in frozen.rows)


# Time limit


def test_the_time_limit_is_kept_and_long_methods_share_the_remaining_time():
    net, images = net_and_images()
    net.register_forward_pre_hook(lambda module, inputs: time.sleep(0.004 * len(inputs[0])))

    began = time.monotonic()
    result = recommend(net, images, methods=["grad_cam", "rise", "kernel_shap"], budget=1)
    took = time.monotonic() - began

    assert took < 6 and result.best is not None
    assert all(row.cut == METHODS[row.method].long for row in result.rows) and any(row.cut for row in result.rows)
    assert len(recommend(net, images, methods=CAMS, budget=1e-6)) <= 1


# The table and refusals


# Values that belong to one map


def test_a_map_reuses_a_value_only_if_it_would_be_the_same() -> None:
    """Of one map up to a factor all have one deletion; a completeness gap is each method's own."""
    linear = nn.Sequential(nn.Flatten(), nn.Linear(576, 5, bias=False)).double().eval()
    methods = ["input_x_gradient", "integrated_gradients", "deep_lift"]
    gaps = recommend(linear, random_images(1), metrics="completeness_gap", methods=methods)
    assert {row.method: row.same_as for row in gaps.rows} == dict.fromkeys(methods, "")
    by_method = {row.method: row.values["completeness_gap"] for row in gaps.rows}
    assert math.isnan(by_method["input_x_gradient"]) and by_method["integrated_gradients"] < 1e-9
    assert "better than every control" not in str(gaps)

    net, images = residual(), random_images(1)
    settings: dict[str, Any] = {"methods": ["hires_cam", "cam"], "layers": ["layer2"], "metrics": "infidelity"}
    exact = {"options": {"infidelity": {"normalize": False}}}
    assert any(row.same_as for row in recommend(net, images, **settings).rows)
    for row in recommend(net, images, **settings, **exact).rows:
        alone = evaluate(net, images, explain(row.method, net, images, layer="layer2"), metrics="infidelity", **exact)
        assert row.values["infidelity"] == pytest.approx(float(alone.values["infidelity"]), rel=1e-6)


def test_means_of_other_images_do_not_compare() -> None:
    """A row without a value for an image is ranked after a row with one."""
    nan, rows = math.nan, []
    for name, values in (("partly", [nan, 0.0, nan]), ("good", [0.2, 0.3, nan]), ("bad", [0.8, 0.9, nan])):
        row = tried(name, 0.5, 0.5)
        both = {"deletion": torch.tensor(values), "insertion": torch.tensor(values)}
        rows.append(replace(row, evaluation=replace(row.evaluation, values=both, controls={})))

    assert [each.method for each in rank_maps(rows, ["deletion"])] == ["good", "bad", "partly"]


def test_refused_methods_and_layers_are_listed_with_their_reason() -> None:
    net, images = net_and_images()
    methods = ["cam", "grad_cam", "saliency"]

    found = recommend(net, images, layers=["layer1", "layer2", "avgpool"], methods=methods, steps=4)

    assert {row.name for row in found.rows} == {"cam at layer2", "grad_cam at layer1", "grad_cam at layer2", "saliency"}
    assert set(found.refused) == {"cam at layer1", "cam at avgpool", "grad_cam at avgpool"}
    assert "linear" in found.refused["cam at layer1"] and "tried all" in str(found)
    best, rows = found.best, found.to_rows()
    assert best is not None and len(rows) == 4 and (rows[0]["method"], rows[0]["layer"]) == (best.method, best.layer)
    assert {"rank", "seconds", "steps", "deletion", "insertion", "insertion_beside_edge"} <= set(rows[0])
    assert best.name in str(found).splitlines()[0] and all(row.name in str(found) for row in found.rows)


def test_a_long_method_is_stopped_inside_and_the_reason_is_reported() -> None:
    calls: list[float] = []

    def stop(partial: PartialRecommendation) -> bool:
        calls.append(partial.fraction)
        return len(calls) < 2

    stopped = recommend(residual(), random_images(1), methods=["rise"], progress=stop)

    assert len(calls) == 2 and len(stopped) == 0
    assert stopped.is_stopped and "was stopped before the first map." in str(stopped)
