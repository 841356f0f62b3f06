"""Input-gradient methods and their means over noise: identities, closed forms, noise, captum."""

from __future__ import annotations

import torch

from explainers import (
    gradient_shap,
    integrated_gradients,
    smooth_grad,
    smooth_grad_squared,
    var_grad,
)
from tests.support.nets import Scaled, curved, random_images, rel, residual

CLASSES = [2, 0, 5]
NOISY = [smooth_grad, smooth_grad_squared, var_grad, gradient_shap]


def test_integrated_gradients_from_other_baselines():
    net, x = curved(), random_images()
    baselines = {
        0.5: 0.5,
        torch.full((3, 1, 1), 0.3, dtype=torch.float64): 0.3,
        random_images(seed=3): random_images(seed=3),
        "mean": x.mean((2, 3), keepdim=True),
    }
    for baseline, start in baselines.items():
        expected = (net(x) - net(torch.zeros_like(x) + start))[range(3), CLASSES].detach()
        found = integrated_gradients(net, x, CLASSES, steps=60, baseline=baseline)
        torch.testing.assert_close(found.sum((1, 2, 3)), expected, rtol=1e-9, atol=1e-11)
    for baseline in ("blur", "noise"):
        assert integrated_gradients(net, x, CLASSES, steps=30, baseline=baseline).isfinite().all()


# Means over noise


def test_p97_noise_depends_on_the_seed_and_not_on_the_chunk_or_the_precision():
    net, x = residual(), random_images()
    for method in NOISY:
        expected = method(net, x, [1, 2, 3], samples=8, seed=4)
        for size in (1, 3, 100):
            found = method(net, x[1:], [2, 3], samples=8, seed=4, batch_size=size)
            torch.testing.assert_close(found, expected[1:], rtol=1e-9, atol=1e-14)
        assert rel(method(net, x, [1, 2, 3], samples=8, seed=5), expected) > 0.01
        coarse = method(curved().float(), x.float(), 1, samples=4)
        assert coarse.dtype == torch.float32 and rel(coarse, method(curved(), x, 1, samples=4)) < 1e-5, method


def test_p98_noise_is_relative_to_the_range_of_the_image():
    """The same image in other units (and a model that converts them back) gives the same map in those units."""
    x, given = random_images(2), {"samples": 5, "sigma": 0.2}
    for method, power in ((smooth_grad_squared, 2), (var_grad, 2), (gradient_shap, 0)):
        first = method(Scaled(1.0).eval(), x, 1, **given)
        for scale in (255.0, 0.01):
            found = method(Scaled(scale).eval(), x * scale, 1, **given) * scale**power
            assert rel(found, first) < 1e-8, method


def test_p98_the_variance_is_biased_by_default():
    net, x = curved(), random_images()
    biased, unbiased = (var_grad(net, x, 1, samples=5, unbiased=which) for which in (False, True))
    torch.testing.assert_close(unbiased, biased * 5 / 4, rtol=1e-12, atol=0)
    assert torch.equal(var_grad(net, x, 1, samples=5), biased)
    for which in (False, True):
        assert not var_grad(net, x, 1, samples=1, unbiased=which).any(), "one sample has no variance, not NaN"


def test_a_small_variance_next_to_a_large_mean_keeps_its_precision():
    """E[g²] − E[g]² would leave rounding noise in float32: 1e8 against 1e-2."""

    class Steep(torch.nn.Module):
        def forward(self, x):
            return torch.stack([1e4 * x.sum((1, 2, 3)) + 0.05 * (x**2).sum((1, 2, 3)), x.sum((1, 2, 3))], 1)

    x = random_images(1)
    expected = var_grad(Steep(), x, 0, samples=6, batch_size=2)
    found = var_grad(Steep(), x.float(), 0, samples=6, batch_size=2)
    assert rel(found, expected) < 0.05 and expected.max() < 0.1


def test_stopped_early_it_is_the_map_of_fewer_samples():
    net, x = curved(), random_images(2)
    for method in (smooth_grad_squared, var_grad):
        maps = []
        options = {"batch_size": 2, "progress": lambda partial, maps=maps: maps.append(partial.map) or partial.done < 4}
        stopped = method(net, x, 1, samples=9, **options)
        torch.testing.assert_close(stopped, method(net, x, 1, samples=4), rtol=1e-10, atol=1e-15)
        torch.testing.assert_close(maps[-1], stopped.sum(1))


# Agreement with captum
