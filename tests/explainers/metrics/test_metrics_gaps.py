"""Messages of metrics without a value, with a partial value, or with invalid arguments."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import (
    METHODS,
    METRICS,
    BadOption,
    BadTarget,
    Explanation,
    LogProbability,
    Probability,
    evaluate,
    explain,
    recommend,
)
from explainers.maps.resize import resize
from tests.support.nets import curved, plain, random_images, residual

SLIGHT = {"sensitivity_max": {"radius": 1e-6, "samples": 1}}


def why(found: explainers.Evaluation) -> dict[str, str]:
    return {name: reasons[0] for name, reasons in found.reasons.items()}


# The method is rerun with its arguments


@pytest.mark.parametrize(
    ("method", "keywords"),
    [
        ("saliency", {"through": ("layer2", [0])}),
        ("gradient_shap", {"baselines": random_images(2, seed=5)}),
        ("xrai", {"segments": torch.arange(12)[:, None].expand(12, 16) // 4}),
        ("mc_rise", {"colors": torch.tensor([[0.0] * 3, [1.0] * 3]), "samples": 50}),
        ("refine_cam", {"layers": ["layer1", "layer2"]}),
        ("lrp", {"low": -3.0, "high": 3.0}),
    ],
)
def test_a_map_is_recomputed_with_all_its_keywords(method: str, keywords: dict[str, Any]) -> None:
    """A small change of the image changes the map little, except for the fine grain of some methods."""
    known = METHODS[method].function.__annotations__
    keywords = {name: value for name, value in keywords.items() if name in known or name == "through"}
    explanation = explain(method, residual(), random_images(1), 1, **keywords)

    found = evaluate(
        residual(), random_images(1), explanation, metrics="sensitivity_max", controls=False, options=SLIGHT
    )

    assert float(found.values["sensitivity_max"]) < 1e-3


def test_a_loaded_explanation_is_recomputed_if_the_file_has_its_arguments(tmp_path: Any) -> None:
    model, x = residual(), random_images(1)
    plainly, restricted = (explain("saliency", model, x, 1, **more) for more in ({}, {"through": ("layer2", [0])}))
    for name, each in (("plain", plainly), ("restricted", restricted)):
        each.save(str(tmp_path / f"{name}.npz"))

    again = Explanation.load(str(tmp_path / "plain.npz"))
    found = evaluate(model, x, again, metrics="sensitivity_max", controls=False, options=SLIGHT)
    assert float(found.values["sensitivity_max"]) < 1e-3
    with pytest.raises(BadOption, match="Give a function of the images"):
        evaluate(model, x, Explanation.load(str(tmp_path / "restricted.npz")), metrics="sensitivity_max")


# One score


def test_a_single_logit_is_measured_by_its_sigmoid() -> None:
    """Its softmax is always 1, so all maps would be equal."""
    model, x = plain(classes=1), random_images(3)

    found, logits = evaluate(model, x, "saliency"), evaluate(model, x, "saliency", score="logit")

    assert found.options["score"] == "sigmoid" and found.unit("deletion") == "mean sigmoid probability"
    assert logits.unit("deletion") == "mean score"
    torch.testing.assert_close(found.curves["deletion"], logits.curves["deletion"].sigmoid())
    for target in (Probability(0, score="softmax"), LogProbability(0, score="softmax")):
        with pytest.raises(BadTarget, match="softmax of one score is always 1"):
            explainers.saliency(model, x, target)


# Maps


@pytest.mark.parametrize(("cells", "size"), [((7, 7), (31, 45)), ((1, 1), (224, 224)), ((10, 10), (31, 45))])
def test_equal_cells_stay_equal_at_the_images_size(cells: tuple[int, int], size: tuple[int, int]) -> None:
    """Ties are broken at random, and a constant map is refused a scale: rounding may not order its pixels."""
    flat = torch.full((1, *cells), 0.3)
    assert resize(flat, size).unique().tolist() == [pytest.approx(0.3)]

    region = torch.tensor([[0, 0, 10, 10]])
    x = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0))
    names = ["average_drop", "average_increase", "relevance_rank", "mu_fidelity"]
    found = evaluate(residual().float(), x, flat, controls=False, metrics=names, region=region)
    reasons = why(found)
    assert "constant" in reasons["average_drop"] and "constant" in reasons["average_increase"]
    assert "constant" in reasons["mu_fidelity"]
    assert float(found.values["relevance_rank"]) == pytest.approx(100 / math.prod(size))


@pytest.mark.parametrize("scale", [1e-60, 1e200])
def test_maps_in_float64_keep_their_values(scale: float) -> None:
    heat = torch.rand(2, 7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names = ["deletion", "mu_fidelity", "sparseness", "complexity", "average_drop"]

    for model in (residual().float(), residual()):
        x = random_images(2).to(next(model.parameters()).dtype)
        one, other = (evaluate(model, x, factor * heat, metrics=names, controls=False) for factor in (1.0, scale))
        for name in names:
            torch.testing.assert_close(one.values[name], other.values[name], rtol=1e-6, atol=1e-6)


def test_an_invalid_map_is_refused() -> None:
    model, x = residual(), random_images(1)
    for maps, error, words in (
        ("channel_effects", BadOption, "one value per channel"),
        (explain("channel_effects", model, x), BadOption, "one value per channel"),
        (None, TypeError, "maps is None"),
        (METHODS["channel_effects"], BadOption, "one value per channel"),
        (explainers.channel_effects, BadOption, "one value per channel"),
        (torch.rand(1, 7, 7).to_sparse(), BadOption, "sparse"),
        (lambda images: torch.rand(1, 7, 7) + 1j, BadOption, "complex"),
    ):
        with pytest.raises(error, match=words):
            evaluate(model, x, maps, controls=False)  # type: ignore[arg-type]


def test_settings_of_the_wrong_type_are_refused_with_a_message() -> None:
    model, x = residual(), random_images(1)
    for wrong in ({"budget": "1"}, {"budget": True}, {"progress": 3}, {"metrics": [METRICS["deletion"]]}):
        with pytest.raises(BadOption):
            evaluate(model, x, "saliency", **wrong)
    for wrong in ({"progress": 3}, {"metrics": [["deletion"]]}):
        with pytest.raises(BadOption):
            recommend(model, x, **wrong)
    for wrong in ({"progress": 3}, {"compare": True}, {"budget": "1"}):
        with pytest.raises(BadOption):
            explainers.randomization_test(model, x, "saliency", **wrong)
    with pytest.raises(BadOption, match="NaN"):
        evaluate(model, x, "saliency", metrics="pointing_game", region=torch.full((1, 12, 16), math.nan))


# Stopped calls


@pytest.mark.parametrize("metric", ["sensitivity_max", "noise_stability", "infidelity", "mu_fidelity"])
def test_a_value_from_fewer_samples_is_reported(metric: str) -> None:
    """A maximum over fewer samples is smaller, and would look better."""
    found = evaluate(
        residual(), random_images(1), "saliency", metrics=metric, progress=lambda p: False, controls=False, batch_size=3
    )
    assert found.values[metric].isfinite().all()
    assert not found.is_complete and found.reasons[metric] == [
        "uses fewer samples than requested: the call was stopped"
    ]


def test_rows_that_were_done_have_no_reason() -> None:
    """The caller's maps are measured before the controls."""
    stops = iter([True, False])
    found = evaluate(
        residual(), random_images(1), "saliency", metrics="deletion", batch_size=19, progress=lambda p: next(stops)
    )
    assert found.values["deletion"].isfinite().all() and found.reasons["deletion"] == [""]
    assert not found.is_complete


def test_a_long_method_ends_with_the_call() -> None:
    calls: list[float] = []

    def stop(step: Any) -> bool:
        calls.append(step.fraction)
        return False

    model, x = residual(), random_images(1)
    stopped = evaluate(model, x, "rise", metrics="deletion", progress=stop, controls=False)
    assert len(calls) == 1 and 0 < calls[0] <= 0.5
    assert not stopped.is_complete and stopped.reasons["deletion"] == ["the call was stopped"]
    assert stopped.maps.shape == (1, 12, 16)

    whole: list[float] = []
    done = evaluate(model, x, "rise", metrics="deletion", progress=lambda step: whole.append(step.fraction))
    assert done.is_complete and whole == sorted(whole) and whole[-1] == pytest.approx(1)

    over = evaluate(model, x, "rise", metrics="deletion", budget=1e-9)
    assert not over.is_complete and over.reasons["deletion"] == ["the time budget was exceeded"]


def test_an_unfinished_run_of_a_long_method_is_not_counted() -> None:
    model, x = residual(), random_images(1)
    explanation = explain("rise", model, x, 0)
    stopped = evaluate(model, x, explanation, metrics=["sensitivity_max"], progress=lambda step: False, controls=False)
    assert stopped.values["sensitivity_max"].isnan().all() and not stopped.is_complete
    assert stopped.reasons["sensitivity_max"] == ["the call was stopped"]


# No value


class Infinite(nn.Module):
    """A score of -inf if the image is all zeros, which is the baseline."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.flatten(1).sum(1)
        return torch.stack([total.abs().log(), 0 * total], 1)


def test_a_non_finite_score_is_not_reported_as_a_time_limit() -> None:
    found = evaluate(Infinite(), random_images(1), "saliency", target=0, baseline=0.0, score="logit", controls=False)
    assert found.is_complete
    assert set(why(found).values()) == {"the score of the image, or of a perturbed one, is not finite"}


def test_constant_sums_have_no_correlation() -> None:
    heat = torch.zeros(1, 12, 16)
    heat[:, ::3, ::4] = 1
    found = evaluate(
        residual(), random_images(1), heat, metrics="mu_fidelity", controls=False, options={"mu_fidelity": {"cells": 4}}
    )
    assert "are the same for all replaced parts" in why(found)["mu_fidelity"]


def test_a_shift_that_leaves_a_constant_part_is_excluded() -> None:
    """The map is 0 except in its first column, which a shift to the left uncovers."""

    def column(images: Tensor) -> Tensor:
        heat = torch.zeros(len(images), 12, 16, dtype=images.dtype)
        heat[:, :, 0] = images[:, 0, :, 0]
        return heat

    found = evaluate(curved(), random_images(1), column, metrics="shift_stability", controls=False)
    assert found.is_complete and found.values["shift_stability"].isfinite().all()


# Networks whose rows change each other


def test_a_batch_norm_of_the_batch_gives_each_variant_its_own_score() -> None:
    """Without running statistics a batch norm takes those of the batch: the numbers would follow its size."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6, track_running_stats=False)
    layers = nn.Conv2d(3, 6, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)
    model = nn.Sequential(*layers).double().eval()
    x = random_images(1)
    heat = explainers.grad_cam(model, x, 0, layer="2")

    values = {
        float(evaluate(model, x, heat, batch_size=size, controls=False).values["deletion"]) for size in (1, 3, None)
    }
    rises = [explainers.rise(model, x, 0, samples=40, batch_size=size) for size in (1, 7)]

    assert max(values) - min(values) < 1e-9
    torch.testing.assert_close(*rises, rtol=0, atol=1e-9)
