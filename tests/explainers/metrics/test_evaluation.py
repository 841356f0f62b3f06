"""`evaluate`: all kinds of maps, the controls, comparisons with them, several maps at once, and the messages."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

import explainers
from explainers import BadOption, Contrast, Evaluation, Explanation, Probability, evaluate, explain
from explainers.maps.resize import resize
from explainers.metrics.comparison import mean_and_error
from explainers.perturbation.control_maps import center_map, edge_map, random_map
from tests.support.nets import LinearScore, random_images, residual

BOTH = ("deletion", "insertion")


def same(a: Evaluation, b: Evaluation) -> None:
    for name in a.values:
        torch.testing.assert_close(a.values[name], b.values[name], rtol=1e-12, atol=1e-12)


def test_every_form_of_maps_gives_the_same_numbers():
    """A function runs in the caller's gradient mode; `magnitude` ranks by size."""
    model, images = residual(), random_images()
    settings = {"target": [1, 2, 3], "steps": 4}

    def gradient(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        scores = model(x).gather(1, torch.tensor([[1], [2], [3]]))
        return x * torch.autograd.grad(scores.sum(), x)[0]

    raw = explainers.input_x_gradient(model, images, settings["target"])
    explanation = explain("input_x_gradient", model, images, settings["target"])
    first = evaluate(model, images, explanation, steps=4)
    assert first.target == [1, 2, 3] and first.method == "input_x_gradient"
    for maps in (raw, raw.sum(1), "input_x_gradient", gradient):
        same(first, evaluate(model, images, maps, **settings))
    cam = explain("grad_cam", model, images, settings["target"])
    enlarged = resize(cam.map, (12, 16))
    same(evaluate(model, images, cam, steps=4), evaluate(model, images, enlarged, **settings))
    signed = raw.sum(1)
    same(evaluate(model, images, signed, magnitude=True), evaluate(model, images, signed.abs()))


def test_what_curves_contain():
    """Probability for classes, the score for other targets; both ends are the scores of the image and its baseline."""
    model, images = residual(), random_images()
    maps = torch.rand(3, 12, 16)
    targets = {
        "probability": (1, {}, lambda y: y.softmax(1)[:, 1]),
        "logit": (1, {"score": "logit"}, lambda y: y[:, 1]),
        "top": (None, {}, lambda y: y.softmax(1).gather(1, model(images).argmax(1)[:, None])[:, 0]),
        "given": (Probability(1), {"score": "logit"}, lambda y: y.softmax(1)[:, 1]),
        "contrast": (Contrast(1, 2), {}, lambda y: y[:, 1] - y[:, 2]),
        "function": (lambda y: y.mean(1), {}, lambda y: y.mean(1)),
    }
    for target, options, score in targets.values():
        found = evaluate(model, images, maps, target=target, baseline="mean", controls=False, **options)
        ends = torch.stack([found.curves["deletion"][:, 0], found.curves["deletion"][:, -1]])
        mean = images.mean((2, 3), keepdim=True).expand_as(images)
        expected = torch.stack([score(model(images)), score(model(mean))]).detach()
        torch.testing.assert_close(ends, expected)
        torch.testing.assert_close(found.curves["insertion"][:, [-1, 0]].T, expected)


def test_an_explanation_with_a_text_target_needs_the_target_again():
    model, images = residual(), random_images()
    explanation = explain("saliency", model, images, Contrast(1, 2))
    with pytest.raises(explainers.BadOption, match="Give target= again"):
        evaluate(model, images, explanation)
    assert evaluate(model, images, explanation, target=Contrast(1, 2)).target == "Contrast(class_=1, against=2)"


def test_controls_are_the_methods_of_that_name_and_random_ones_come_in_pairs():
    """Ties within a cell of a random map are in another order here than in the mirrored ranks."""
    model, images = residual(), random_images()
    settings = {"target": 1, "steps": 4, "seed": 5}
    found = evaluate(model, images, "saliency", **settings)
    random = [
        map for seed in (5, 6, 7, 8) for map in (random_map(images, seed=seed), 1 - random_map(images, seed=seed))
    ]
    for name, maps in {"edge": [edge_map(images)], "center": [center_map(images)], "random": random}.items():
        alone = [evaluate(model, images, map, controls=False, **settings) for map in maps]
        for metric in BOTH:
            values, curves = (
                torch.stack(each) for each in zip(*((e.values[metric], e.curves[metric]) for e in alone), strict=True)
            )
            near = {"rtol": 0.05, "atol": 0} if name == "random" else {"rtol": 1e-6, "atol": 1e-6}
            torch.testing.assert_close(found.controls[metric][name], values.mean(0), **near)
            torch.testing.assert_close(found.control_curves[metric][name], curves.mean(0), **near)
            if name == "random":
                torch.testing.assert_close(found.random_values[metric], values.T, **near)
                torch.testing.assert_close(found.spread[metric], found.random_values[metric].std(1))


def verdicts(found: Evaluation) -> set[str]:
    return {place.verdict for by_control in found.comparisons.values() for place in by_control.values()}


def test_an_exact_map_is_better_and_its_negative_worse():
    model = LinearScore(1, 12, 12).eval()
    images = torch.randn(8, 1, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact, settings = (model.weight * images)[:, 0].detach(), {"target": 0, "score": "logit", "baseline": "zeros"}
    best, worst = (evaluate(model, images, maps, **settings) for maps in (exact, -exact))
    assert verdicts(best) == verdicts(best[0]) == {"better"} and verdicts(worst) == verdicts(worst[3]) == {"worse"}
    places = [place for by_control in best.comparisons.values() for place in by_control.values()]
    assert {(place.p, place.p_adjusted) for place in places} == {(2**-7, 6 * 2**-7)}
    alone = evaluate(model, images[5:6], exact[5:6], **settings).comparisons["insertion"]["edge"]
    assert alone.p == pytest.approx(best[5].comparisons["insertion"]["edge"].p)
    assert str(best[0]).splitlines()[0] == "Better than random maps, edge maps and a centered blob."
    assert str(best[0]).splitlines()[1].endswith(": better than random maps, edge maps and a centered blob")
    assert verdicts(evaluate(model, images[:7], exact[:7], **settings)) == {"few"}


def made(
    values: list[float], controls: dict[str, list[float]], random: list[float] | None = None, **others: list[float]
) -> Evaluation:
    """An evaluation by deletion, for which lower is better; `random` are the values of the random maps.

    Other metrics have the same controls.
    """
    measured = {"deletion": values, **others}
    found = torch.tensor(random or [0.5, 0.7, 0.55, 0.65, 0.45, 0.75]).expand(len(values), -1)
    return Evaluation(
        values={metric: torch.tensor(each) for metric, each in measured.items()},
        controls={metric: {name: torch.tensor(each) for name, each in controls.items()} for metric in measured},
        spread=dict.fromkeys(measured, found.std(1)),
        curves={},
        control_curves={},
        reasons={metric: [""] * len(values) for metric in measured},
        maps=torch.zeros(len(values), 2, 2),
        method=None,
        layer=None,
        target=None,
        random_values=dict.fromkeys(measured, found),
    )


def test_one_image_is_compared_with_the_values_of_random_maps():
    """Three pairs with equal means have three degrees of freedom, and s = sqrt((0.1^2 + 0.05^2 + 0.15^2) / 3)."""
    found = made([0.1], {"random": [0.6], "edge": [0.3], "center": [-1.0]})
    sentence = "better than random maps, not than edge maps, worse than a centered blob"
    assert str(found) == f"B{sentence[1:]}.\nDeletion 0.1: {sentence}"
    s = math.sqrt(0.035 / 3)
    places = found.comparisons["deletion"]
    expected = {"random": 0.5 / s, "edge": 0.2 / s / math.sqrt(2), "center": 1.1 / s / math.sqrt(2)}
    for name, t in expected.items():
        assert places[name].p == pytest.approx(2 * stats.t.sf(t, 3), rel=1e-5) and math.isnan(places[name].error)
    assert places["center"].p_adjusted == pytest.approx(3 * places["center"].p)
    assert places["random"].p_adjusted == pytest.approx(2 * places["random"].p)
    assert (places["center"].difference, places["center"].in_spreads) == pytest.approx((-1.1, -1.1 / 0.1183), rel=1e-3)
    row = found.to_rows()[0]
    assert (row["value"], row["edge"], row["beside_random"]) == (pytest.approx(0.1), pytest.approx(0.3), "better")


def test_several_images_are_compared_by_the_sign_flip_test():
    values = [0.1 * k for k in range(1, 9)]
    edges = [value + 0.2 + 0.01 * (k % 2) for k, value in enumerate(values)]
    swapped = [value + (0.1 if k % 2 else -0.1) for k, value in enumerate(values)]
    found = made(values, {"random": swapped, "edge": edges})
    place = found.comparisons["deletion"]["edge"]
    expected = mean_and_error(torch.tensor([0.2, 0.21] * 4))
    assert (place.difference, place.error) == pytest.approx(expected, rel=1e-4)
    assert (place.p, place.p_adjusted, place.images) == (2**-7, 2**-6, 8)
    line = "Deletion 0.45 ± 0.087 over 8 images: better than edge maps, not than random maps"
    assert str(found).splitlines()[1] == line
    assert [each.comparisons["deletion"]["edge"].verdict for each in found] == ["level"] * 8


def test_images_without_a_value_are_excluded():
    found = made([0.1, math.nan, 0.3], {"edge": [0.2, 0.5, 0.4]})
    assert found.comparisons["deletion"]["edge"].difference == pytest.approx(0.1)
    assert "over 2 images" in str(found) and len(list(found)) == 3
    one = made([0.1, math.nan], {"edge": [0.6, 0.6]}).comparisons["deletion"]["edge"]
    assert one.images == 1 and one.p == pytest.approx(made([0.1], {"edge": [0.6]}).comparisons["deletion"]["edge"].p)
    none = made([math.nan], {"edge": [0.2]})
    assert none.comparisons["deletion"]["edge"].verdict == "unknown"
    with pytest.raises(IndexError):
        found[3]


MODEL, IMAGES = residual().float(), random_images(3, 3, 24, 32).float()


def chance(seed: int, n: int = 3) -> Tensor:
    return torch.rand(n, 6, 8, generator=torch.Generator().manual_seed(seed))


def test_maps_are_ranked_by_the_metrics_that_have_a_better_direction():
    maps = {name: chance(k) for k, name in enumerate("abcd")}
    found = evaluate(MODEL, IMAGES, maps, steps=4, target=1, metrics=("sparseness", *BOTH))
    assert set(found.winners) == set(BOTH) and set(found.agreement) == {BOTH} and found.best is found[0]
    assert all(f"\n{name}: " in str(found) for name in maps) and "sparseness" in str(found)
    with pytest.raises(BadOption, match="Unknown map 'aa'. Did you mean 'a'"):
        found["aa"]


def test_progress_covers_all_maps_and_stops_the_call():
    fractions: list[float] = []
    maps = {"a": chance(0), "b": chance(1)}
    evaluate(MODEL, IMAGES, maps, steps=4, progress=lambda step: fractions.append(step.fraction))
    assert fractions == sorted(fractions) and fractions[-1] == 1 and 0.5 in fractions

    found = evaluate(MODEL, IMAGES, maps, steps=4, progress=lambda step: step.fraction < 0.5)

    over = evaluate(MODEL, IMAGES, maps, steps=4, budget=1e-6)
    assert str(over).startswith("No map has a value. Deletion: the time budget was exceeded.")
    assert found["a"].evaluation.is_complete and not found["b"].evaluation.is_complete
    assert found.best is found["a"] and bool(found["b"].evaluation.values["deletion"].isnan().all())


def test_explanations_of_different_targets_need_a_target():
    maps: dict[str, Explanation] = {str(k): explain("grad_cam", MODEL, IMAGES, k) for k in (1, 2)}
    with pytest.raises(BadOption, match=r"maps\['1'\] explains \[1, 1, 1\] and maps\['2'\] \[2, 2, 2\]. Give target="):
        evaluate(MODEL, IMAGES, maps)
    assert evaluate(MODEL, IMAGES, maps, target=2, steps=2).target == [2, 2, 2]
    assert evaluate(MODEL, IMAGES, {"1": maps["1"], "mine": chance(0)}, steps=2).target == [1, 1, 1]
    assert isinstance(evaluate(MODEL, IMAGES, maps["1"], steps=2), explainers.Evaluation)
