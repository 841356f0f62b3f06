"""SmoothGrad, SmoothGrad-Squared and VarGrad: identities, chunk sizes, dtypes, captum."""

from __future__ import annotations

import pytest
import torch

from explainers import BadOption, explain, gradient_shap, saliency, smooth_grad, smooth_grad_squared, var_grad
from tests.support.nets import Scaled, Weighted, curved, random_images, rel, residual, settle

CLASSES = [2, 0, 5]
NEW = [smooth_grad_squared, var_grad, gradient_shap]


def test_smooth_grad_squared_is_the_squared_mean_plus_the_variance():
    net, x = curved(), random_images()
    given = {"samples": 7, "sigma": 0.3, "seed": 2}
    expected = smooth_grad(net, x, CLASSES, **given) ** 2 + var_grad(net, x, CLASSES, **given)
    torch.testing.assert_close(smooth_grad_squared(net, x, CLASSES, **given), expected, rtol=1e-10, atol=1e-14)


def test_without_noise_the_square_is_the_squared_gradient_and_the_variance_is_zero():
    net, x = curved(), random_images()
    torch.testing.assert_close(smooth_grad_squared(net, x, CLASSES, sigma=0.0), saliency(net, x, CLASSES) ** 2)
    assert var_grad(net, x, CLASSES, sigma=0.0).abs().max() < 1e-25


def test_var_grad_of_a_linear_model_is_zero():
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    assert var_grad(net, x, CLASSES, sigma=0.5).max() < 1e-28


@pytest.mark.parametrize("method", NEW, ids=lambda m: m.__name__)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_p97_same_seed_same_result_for_every_chunk_size(method, size):
    net, x = residual(), random_images()
    expected = method(net, x, 1, samples=8, seed=4)
    torch.testing.assert_close(method(net, x, 1, samples=8, seed=4, batch_size=size), expected, rtol=1e-9, atol=1e-14)
    assert rel(method(net, x, 1, samples=8, seed=5), expected) > 0.01


@pytest.mark.parametrize("method", NEW, ids=lambda m: m.__name__)
def test_p97_an_image_gets_the_same_noise_in_every_batch(method):
    net, x = residual(), random_images()
    together = method(net, x, [1, 2, 3], samples=5)
    torch.testing.assert_close(method(net, x[2:], [3], samples=5), together[2:], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("method", [smooth_grad, *NEW], ids=lambda m: m.__name__)
def test_p97_float32_and_float64_see_the_same_noise(method):
    net, x = curved(), random_images()
    at_least_float32 = method(net, x, 1, samples=4)
    coarse = method(net.float(), x.float(), 1, samples=4)
    assert coarse.dtype == torch.float32 and rel(coarse, at_least_float32) < 1e-5


@pytest.mark.parametrize(("method", "power"), [(smooth_grad_squared, 2), (var_grad, 2), (gradient_shap, 0)])
def test_p98_noise_is_relative_to_the_range_of_the_image(method, power):
    """The same image in other units (and a model that converts them back) gives the same map in those units."""

    x = random_images(2)
    given = {"samples": 5, "sigma": 0.2}
    first = method(Scaled(1.0).eval(), x, 1, **given)
    for scale in (255.0, 0.01):
        found = method(Scaled(scale).eval(), x * scale, 1, **given) * scale**power
        assert rel(found, first) < 1e-8


def test_p98_the_variance_is_biased_by_default():
    net, x = curved(), random_images()
    biased, unbiased = (var_grad(net, x, 1, samples=5, unbiased=which) for which in (False, True))
    torch.testing.assert_close(unbiased, biased * 5 / 4, rtol=1e-12, atol=0)
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


@pytest.mark.parametrize("method", [smooth_grad_squared, var_grad], ids=lambda m: m.__name__)
def test_stopped_early_it_is_the_map_of_fewer_samples(method):
    net, x = curved(), random_images(2)
    maps = []

    def watch(partial):
        maps.append(partial.map)
        return partial.done < 4

    stopped = method(net, x, 1, samples=9, batch_size=2, progress=watch)
    torch.testing.assert_close(stopped, method(net, x, 1, samples=4), rtol=1e-10, atol=1e-15)
    assert len(maps) == 2
    torch.testing.assert_close(maps[-1], stopped.sum(1))


def test_the_map_of_an_unsigned_attribution_is_its_sum_over_channels():
    net, x = curved(), random_images()
    e = explain("var_grad", net, x, CLASSES, samples=3)
    torch.testing.assert_close(e.map, e.raw.sum(1))
    assert e.map.min() >= 0


@pytest.mark.parametrize(("kind", "method"), [("smoothgrad_sq", smooth_grad_squared), ("vargrad", var_grad)])
def test_agreement_with_captum_in_the_mean(kind, method):
    """Different random draws: with many samples both converge to the same expectation."""
    captum = pytest.importorskip("captum.attr")
    net, x = curved(), random_images(1)
    torch.manual_seed(0)
    theirs = captum.NoiseTunnel(captum.Saliency(net)).attribute(
        x, target=2, nt_samples=300, stdevs=0.1 * float(x.max() - x.min()), nt_type=kind, abs=False
    )
    assert rel(method(net, x, 2, samples=300, sigma=0.1), theirs.detach()) < 0.15


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"sigma": -0.1}, {"unbiased": 1}, {"precision": "fp8"}])
def test_impossible_options_are_refused(wrong):
    with pytest.raises(BadOption, match=next(iter(wrong))):
        var_grad(curved(), random_images(), 1, **wrong)
