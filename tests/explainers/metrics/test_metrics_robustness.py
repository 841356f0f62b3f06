"""Sensitivity-max, local Lipschitz constant, stability under noise and shifts, by loops."""

from __future__ import annotations

import pytest
import torch

from explainers import BadOption, evaluate, explain, grad_cam, input_x_gradient, saliency
from explainers.maps.resize import rank_correlation
from explainers.perturbation.rng import PerImageGenerators
from tests.support.nets import curved, random_images, residual

IMAGES = random_images()
NOISY = ("sensitivity_max", "local_lipschitz", "noise_stability")
ALL = (*NOISY, "shift_stability")


def measure(metric, net, maps, x=IMAGES, *, target=0, seed=0, **options):
    return evaluate(
        net, x, maps, target=target, metrics=metric, controls=False, seed=seed, options={metric: options}
    ).values[metric]


def noises(samples, radius, x=IMAGES, seed=0):
    """The changes of the images [samples, N, C, H, W], as documented: uniform within the radius, a generator each."""
    first = torch.Generator().manual_seed(seed)
    seeds = [int(torch.randint(2**31 - 1, (), generator=first)) for _ in range(samples)]
    span = (x.amax((1, 2, 3)) - x.amin((1, 2, 3)))[:, None, None, None]
    uniform = [PerImageGenerators(1, each).uniform_noise(0, 1, *x.shape[1:])[0].double() for each in seeds]
    return torch.stack([radius * span * (2 * each - 1) for each in uniform])


def size(values):
    return values.flatten(1).norm(dim=1)


# Under noise


def test_m14_numbers_under_noise_by_a_loop():
    net, before = curved(), input_x_gradient(curved(), IMAGES, 0)
    worst, steepest, ranked = torch.zeros(3), torch.zeros(3), []
    for change in noises(5, 0.2):
        after = input_x_gradient(net, IMAGES + change, 0)
        relative = size(after - before) / size(before)
        worst, steepest = torch.maximum(worst, relative), torch.maximum(steepest, relative / size(change))
        ranked.append(rank_correlation(before.sum(1), after.sum(1)))
    found = [measure(each, net, "input_x_gradient", radius=0.2, samples=5) for each in NOISY]
    for value, expected in zip(found, (worst, steepest, torch.stack(ranked).mean(0)), strict=True):
        torch.testing.assert_close(value, expected.double(), rtol=1e-9, atol=0)


def test_the_class_is_that_of_the_clean_image():
    """Noise may change the top class; the map compared is still that of the class explained."""
    net = residual()
    classes = net(IMAGES).argmax(1)
    free = measure("sensitivity_max", net, "saliency", target=None, radius=1.0, samples=8)
    fixed = measure("sensitivity_max", net, "saliency", target=classes, radius=1.0, samples=8)
    assert bool((net((IMAGES + noises(8, 1.0)).flatten(0, 1)).argmax(1) != classes.repeat(8)).any()), "it does"
    torch.testing.assert_close(free, fixed, rtol=1e-9, atol=0)


# Under shifts


def test_shifts_by_a_loop_over_pixels():
    """A second, slow implementation: the image is moved pixel by pixel, with its border repeated."""
    net, step, (h, w) = curved(), 2, IMAGES.shape[-2:]
    before, expected = saliency(net, IMAGES, 0).abs().amax(1), []
    for down, right in ((0, step), (0, -step), (step, 0), (-step, 0)):
        rows = [min(max(row - down, 0), h - 1) for row in range(h)]
        columns = [min(max(column - right, 0), w - 1) for column in range(w)]
        after = saliency(net, IMAGES[:, :, rows][..., columns], 0).abs().amax(1)
        both = [(r, c) for r in range(h) for c in range(w) if 0 <= r + down < h and 0 <= c + right < w]
        first = torch.stack([before[:, r, c] for r, c in both], 1)
        second = torch.stack([after[:, r + down, c + right] for r, c in both], 1)
        expected.append(rank_correlation(first, second))
    found = measure("shift_stability", net, "saliency", pixels=step)
    torch.testing.assert_close(found, torch.stack(expected).mean(0), rtol=1e-9, atol=0)


def test_the_default_shift_is_a_28th_of_the_shorter_side():
    x = random_images(1, 1, 57, 90)
    seen = []

    def remember(images):
        seen.append(images.clone())
        return images[:, 0]

    measure("shift_stability", torch.nn.Flatten(), remember, x)
    assert torch.equal(seen[1][..., 2:], x[..., :-2]) and torch.equal(seen[4][:, :, :-2], x[:, :, 2:])
    with pytest.raises(BadOption, match="is too large for images of 57 x 90"):
        measure("shift_stability", torch.nn.Flatten(), remember, x, pixels=57)


# All


@pytest.mark.parametrize("metric", ["noise_stability", "shift_stability"])
def test_names_explanations_and_functions_are_rerun_equally(metric):
    """With layer, options and class of the explanation; shifts are not random."""
    net, options, classes = residual(), {"layer": "layer1"}, [2, 0, 1]
    e, by_default = (explain("grad_cam", net, IMAGES, classes, **each) for each in (options, {}))
    again = measure(metric, net, lambda x: grad_cam(net, x, classes, **options), target=classes)
    torch.testing.assert_close(measure(metric, net, e, target=None), again, rtol=1e-9, atol=0)
    by_name = measure(metric, net, "grad_cam", target=classes)
    assert not torch.allclose(by_name, again, rtol=1e-4), "the default layer is another"
    torch.testing.assert_close(by_name, measure(metric, net, by_default, target=0), msg="the map's own classes")
    other = measure(metric, net, "grad_cam", target=classes, seed=4)
    assert torch.allclose(other, by_name, rtol=1e-4) == (metric == "shift_stability")
    for method, given in (
        ("saliency", {"through": ("layer2", [0])}),
        ("gradient_shap", {"baselines": random_images(2, seed=5), "samples": 3}),
    ):
        e = explain(method, net, IMAGES, classes, **given)
        mine = measure(metric, net, lambda x, m=method, g=given: explain(m, net, x, classes, **g).map, target=classes)
        torch.testing.assert_close(measure(metric, net, e, target=None), mine, rtol=1e-9, atol=0, msg=method)
    with pytest.raises(BadOption, match=f"{metric} runs the method again, which is not possible for a tensor"):
        measure(metric, net, e.map)


@pytest.mark.parametrize("metric", ALL)
def test_constant_and_broken_maps_have_no_value(metric):
    """The map of the image, or of a changed image."""

    def after(change):
        return lambda x: x[:, 0] if torch.equal(x, IMAGES) else change(x[:, 0].clone())

    def broken(maps):
        maps[1, 2, 3] = torch.inf
        return maps

    zero = evaluate(curved(), IMAGES, lambda x: 0 * x[:, 0], target=0, metrics=metric)
    assert bool(zero.values[metric].isnan().all())
    why = "the map is zero everywhere" if metric in NOISY[:2] else "the map is constant"
    assert zero.reasons[metric] == [why] * 3
    blank = measure(metric, curved(), after(torch.zeros_like))
    if metric != "local_lipschitz":
        assert blank.tolist() == pytest.approx([1.0 if metric == "sensitivity_max" else 0.0] * 3)
    found = evaluate(curved(), IMAGES, after(broken), target=0, metrics=metric)
    assert found.values[metric].isnan().tolist() == [False, True, False]
    assert found.reasons[metric][1] == "the map of a changed image is not finite"
