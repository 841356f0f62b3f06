"""`evaluate`: maps of every form, the controls beside them, the place among them, the sentence."""

from __future__ import annotations

import math

import pytest
import torch
from nets import pictures, residual
from test_metrics_masking import IMAGES, Linear
from torch import Tensor

import explainers
from explainers import Contrast, Evaluation, Probability, evaluate, explain
from explainers.maps.resize import resize
from explainers.methods.controls import centre_map, edge_map, random_map
from explainers.metrics.evaluation import mean_and_error, t_test
from explainers.metrics.run import evaluator

BOTH = ("deletion", "insertion")


def same(a: Evaluation, b: Evaluation) -> None:
    for name in a.values:
        torch.testing.assert_close(a.values[name], b.values[name], rtol=1e-12, atol=1e-12)


def test_every_form_of_maps_gives_the_same_numbers():
    model, images = residual(), pictures()
    target = [1, 2, 3]
    explanation = explain("input_x_gradient", model, images, target)
    raw = explainers.input_x_gradient(model, images, target)
    first = evaluate(model, images, explanation, steps=4)
    assert first.target == target and first.method == "input_x_gradient"
    same(first, evaluate(model, images, raw, target=target, steps=4))
    same(first, evaluate(model, images, raw.sum(1), target=target, steps=4))
    same(first, evaluate(model, images, "input_x_gradient", target=target, steps=4))
    same(
        first, evaluate(model, images, lambda x: explainers.input_x_gradient(model, x, target), target=target, steps=4)
    )
    cam = explain("grad_cam", model, images, target)
    same(
        evaluate(model, images, cam, steps=4),
        evaluate(model, images, resize(cam.map, (12, 16)), target=target, steps=4),
    )


def test_a_function_runs_in_the_callers_gradient_mode():
    model, images = residual(), pictures()

    def gradient(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model(x)[:, 1].sum(), x)[0]

    expected = explainers.saliency(model, images, 1)
    same(evaluate(model, images, gradient, target=1), evaluate(model, images, expected, target=1))


def test_magnitude_ranks_by_size():
    model, images = residual(), pictures()
    maps = torch.randn(3, 12, 16, generator=torch.Generator().manual_seed(0))
    same(evaluate(model, images, maps, magnitude=True), evaluate(model, images, maps.abs()))


def test_what_curves_show():
    """Probability for classes, whatever else for other targets; both ends are the image's and its baseline's score."""
    model, images = residual(), pictures()
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


def test_an_explanations_target_that_is_text_is_asked_for_again():
    model, images = residual(), pictures()
    explanation = explain("saliency", model, images, Contrast(1, 2))
    with pytest.raises(explainers.BadOption, match="Give target= again"):
        evaluate(model, images, explanation)
    assert evaluate(model, images, explanation, target=Contrast(1, 2)).target == "Contrast(class_=1, against=2)"


def test_controls_are_the_methods_of_that_name_and_random_ones_come_in_pairs():
    """12 x 16 pixels in 4 steps: each curve of a negative is the other's, backwards, to the bit."""
    model, images = residual(), pictures()
    found = evaluate(model, images, "saliency", target=1, steps=4, seed=5)
    for name, heat in (("edge", edge_map(images)), ("centre", centre_map(images))):
        alone = evaluate(model, images, heat, target=1, steps=4, seed=5, controls=False)
        for metric in BOTH:
            torch.testing.assert_close(found.controls[metric][name], alone.values[metric])
            torch.testing.assert_close(found.control_curves[metric][name], alone.curves[metric])
    drawn = [random_map(images, seed=seed) for seed in (5, 6)]
    several = [
        evaluate(model, images, h, target=1, steps=4, controls=False) for each in drawn for h in (each, 1 - each)
    ]
    for metric in BOTH:
        values = torch.stack([each.values[metric] for each in several])
        # Ties within a cell are in another random order here than in the mirrored ranks.
        torch.testing.assert_close(found.controls[metric]["random"], values.mean(0), rtol=0.02, atol=0)
        torch.testing.assert_close(found.spread[metric], values.std(0), rtol=0.3, atol=1e-4)
        curves = torch.stack([each.curves[metric] for each in several]).mean(0)
        torch.testing.assert_close(found.control_curves[metric]["random"], curves, rtol=0.05, atol=0)
        assert bool((curves[:, 0] - curves[:, -1]).abs().max() > 0.3 * curves.max()), "backwards would be seen"


def test_controls_are_computed_once_for_several_maps_of_the_images():
    model, images, rows = residual(), pictures(), []
    model.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    with evaluator(model, images, target=1, steps=4) as judge:
        first = judge("saliency")
        ran = sum(rows)
        second = judge("grad_cam")
        assert sum(rows) - ran < ran / 3
    same(second, evaluate(model, images, "grad_cam", target=1, steps=4))
    assert torch.equal(first.controls["deletion"]["edge"], second.controls["deletion"]["edge"])


def test_forward_passes_are_few():
    """Steps - 1 a curve and shared ends: of one map 2 x 19, the baseline, and the image twice, once for its class."""
    model, images, rows = residual(), pictures(1), []
    model.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    evaluate(model, images, torch.rand(1, 12, 16), controls=False)
    assert sum(rows) == 38 + 3
    rows.clear()
    evaluate(model, images, torch.rand(1, 12, 16))
    assert sum(rows) == 3 + 38 * 3 + 19 * 4, "random maps come in pairs that share their curves"


def test_an_exact_map_is_better_and_its_negative_worse():
    model = Linear().eval()
    exact = (model.weight * IMAGES)[:, 0].detach()
    best = evaluate(model, IMAGES, exact, target=0, score="logit", baseline=None)
    for metric in BOTH:
        assert {place.verdict for place in best.places[metric].values()} == {"better"}
        assert {place.verdict for place in best[0].places[metric].values()} == {"better"}
    assert str(best[0]).splitlines()[0].endswith(": better than random, edges and the centre blob")
    worst = evaluate(model, IMAGES, -exact, target=0, score="logit", baseline=None)
    assert {place.verdict for metric in BOTH for place in worst.places[metric].values()} == {"worse"}


@pytest.mark.parametrize("kind", ["constant", "shuffled", "random"])
def test_maps_that_know_nothing_are_level_with_random_ones(kind):
    """On 30 images of a linear model, whose exact maps beat them all."""
    model, generator = Linear().eval(), torch.Generator().manual_seed(0)
    images = torch.randn(30, 1, 12, 12, generator=generator, dtype=torch.float64)
    exact = (model.weight * images)[:, 0].detach()
    shuffled = exact.flatten(1)[:, torch.randperm(144, generator=generator)].view_as(exact)
    noise = torch.rand(30, 12, 12, generator=generator)
    maps = {"constant": torch.ones_like(exact), "shuffled": shuffled, "random": noise}[kind]
    found = evaluate(model, images, maps, target=0, score="logit", baseline=None, metrics=(*BOTH, "road"), steps=12)
    assert {found.place(metric, "random").verdict for metric in found.values} == {"level"}
    best = evaluate(model, images, exact, target=0, score="logit", baseline=None, metrics=(*BOTH, "road"), steps=12)
    for metric, values in best.values.items():
        better = values < found.values[metric] if metric == "deletion" else values > found.values[metric]
        assert bool(better.all())


@pytest.mark.parametrize(("t", "freedom"), [(12.706, 1), (4.303, 2), (2.776, 4), (2.571, 5), (2.262, 9), (1.984, 99)])
def test_the_t_test_has_the_critical_values_of_the_tables(t, freedom):
    """Two-sided 5% points of Student's distribution."""
    count = freedom + 1
    values = torch.linspace(-1, 1, count, dtype=torch.float64)
    values = values / values.std() + t / math.sqrt(count)
    assert t_test(values) == pytest.approx(0.05, abs=5e-5) and t_test(-values) == pytest.approx(t_test(values))


def test_the_t_test_at_its_limits():
    assert math.isnan(t_test(torch.tensor([1.0]))) and math.isnan(t_test(torch.tensor([])))
    assert t_test(torch.zeros(4)) == 1.0 and t_test(torch.ones(4)) == 0.0
    assert mean_and_error(torch.tensor([1.0, 2.0, 3.0, 4.0])) == pytest.approx((2.5, math.sqrt(5 / 3) / 2))


def made(values: list[float], controls: dict[str, list[float]], spread: list[float]) -> Evaluation:
    """An evaluation by deletion, of which lower is better."""
    return Evaluation(
        values={"deletion": torch.tensor(values)},
        controls={"deletion": {name: torch.tensor(each) for name, each in controls.items()}},
        spread={"deletion": torch.tensor(spread)},
        curves={},
        control_curves={},
        reasons={"deletion": [""] * len(values)},
        maps=torch.zeros(len(values), 2, 2),
        method=None,
        layer=None,
        target=None,
    )


def test_one_image_is_judged_in_spreads_of_random_maps():
    found = made([0.40], {"random": [0.61], "edge": [0.59], "centre": [0.15]}, [0.1])
    assert str(found) == "Deletion 0.4: better than random, level with edges, worse than the centre blob"
    place = found.places["deletion"]["centre"]
    assert (place.difference, place.in_spreads) == pytest.approx((-0.25, -2.5)) and math.isnan(place.p)
    row = found.to_rows()[0]
    assert (row["value"], row["edge"], row["beside_random"]) == pytest.approx(
        (0.40, 0.59, "better"), nan_ok=True
    ) or row


def test_several_images_are_judged_by_the_paired_test():
    values, edges = [0.1, 0.2, 0.3, 0.4], [0.3, 0.41, 0.5, 0.61]
    found = made(values, {"random": [0.2, 0.1, 0.4, 0.3], "edge": edges}, [10.0] * 4)
    place = found.places["deletion"]["edge"]
    expected = mean_and_error(torch.tensor([0.2, 0.21, 0.2, 0.21]))
    assert (place.difference, place.error) == pytest.approx(expected, rel=1e-4) and place.p < 1e-4
    assert str(found) == "Deletion 0.25 ± 0.065 over 4 images: better than edges, level with random"
    assert [each.places["deletion"]["edge"].verdict for each in found] == ["level"] * 4


def test_images_without_a_number_are_left_out():
    found = made([0.1, math.nan, 0.3], {"edge": [0.2, 0.5, 0.4]}, [0.1] * 3)
    assert found.places["deletion"]["edge"].difference == pytest.approx(0.1)
    assert "over 2 images" in str(found) and len(list(found)) == 3
    none = made([math.nan], {"edge": [0.2]}, [0.1])
    assert none.places["deletion"]["edge"].verdict == "unknown"
    with pytest.raises(IndexError):
        found[3]


def test_a_call_that_ends_among_the_controls_is_not_complete():
    """Rows of the caller's maps come first, so their values alone do not tell."""
    net, images = residual(), pictures(1)
    asked = {"metrics": "deletion", "steps": 4, "batch_size": 3}
    seen: list[bool] = []

    def first(partial: explainers.metrics.run.PartialEvaluation) -> bool:
        seen.append(partial.evaluation.is_complete)
        return False

    ended = evaluate(net, images, explainers.grad_cam(net, images), progress=first, **asked)
    assert ended.values["deletion"].isfinite().all() and ended.controls["deletion"]["centre"].isnan().all()
    assert not ended.is_complete and seen == [False]
    assert evaluate(net, images, explainers.grad_cam(net, images), **asked).is_complete
