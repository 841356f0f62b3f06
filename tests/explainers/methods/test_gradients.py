"""Input-gradient methods: differences, identities, closed forms, published numbers, captum."""

from __future__ import annotations

import pytest
import torch

from explainers import explain, input_x_gradient, integrated_gradients, saliency, smooth_grad
from tests.support.nets import Cubic, Weighted, curved, plain, random_images, rel, residual, settle
from tests.support.oracles import differences

CLASSES = [2, 0, 5]


def test_saliency_is_the_signed_difference_quotient():
    net, x = curved(), random_images(height=6, width=8)
    found = saliency(net, x, CLASSES)
    torch.testing.assert_close(found, differences(net, x, CLASSES), rtol=1e-6, atol=1e-9)
    assert found.min() < 0 < found.max()


def test_saliency_of_a_linear_model_is_its_weights():
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    assert torch.equal(saliency(net, x, CLASSES), net.fc.weight.detach()[CLASSES].view_as(x))


def test_input_x_gradient_of_a_bias_free_relu_network_sums_to_the_logit():
    """Euler: a network of ReLUs without biases is homogeneous of degree one."""
    net, x = plain(), random_images()
    for layer in (net.conv1, net.conv2, net.head):
        layer.bias.data.zero_()
    expected = net(x)[range(3), CLASSES].detach()
    torch.testing.assert_close(input_x_gradient(net, x, CLASSES).sum((1, 2, 3)), expected, rtol=1e-10, atol=1e-13)


def test_input_x_gradient_is_the_product():
    net, x = residual(), random_images()
    assert torch.equal(input_x_gradient(net, x, CLASSES), x * saliency(net, x, CLASSES))


def test_integrated_gradients_are_complete_on_a_smooth_network():
    net, x = curved(), random_images()
    expected = (net(x) - net(torch.zeros_like(x)))[range(3), CLASSES].detach()
    found = integrated_gradients(net, x, CLASSES, steps=60)
    torch.testing.assert_close(found.sum((1, 2, 3)), expected, rtol=1e-9, atol=1e-11)
    coarse = integrated_gradients(net, x, CLASSES, steps=2)
    assert (coarse.sum((1, 2, 3)) - expected).abs().max() > 1e-4, "two points must not be enough here"


@pytest.mark.parametrize("steps", [2, 3, 7])
def test_integrated_gradients_with_two_points_are_exact_for_cubics(steps):
    """Gauss-Legendre with n points is exact up to degree 2 n - 1 of the gradient's path."""
    net, x = settle(Cubic((3, 12, 16), 6).double()), random_images()
    found = integrated_gradients(net, x, CLASSES, steps=steps)
    torch.testing.assert_close(found, net.integrated(x, CLASSES), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("baseline", [0.5, "tensor", "picture"])
def test_integrated_gradients_from_other_baselines(baseline):
    net, x = curved(), random_images()
    start = {"tensor": torch.full((3, 1, 1), 0.3, dtype=torch.float64), "picture": random_images(seed=3)}.get(
        baseline, baseline
    )
    full = torch.zeros_like(x) + start
    expected = (net(x) - net(full))[range(3), CLASSES].detach()
    found = integrated_gradients(net, x, CLASSES, steps=60, baseline=start)
    torch.testing.assert_close(found.sum((1, 2, 3)), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("baseline", ["blur", "mean", "noise"])
def test_integrated_gradients_from_named_baselines(baseline):
    net, x = curved(), random_images()
    found = integrated_gradients(net, x, CLASSES, steps=30, baseline=baseline)
    assert found.shape == x.shape and found.isfinite().all()
    if baseline == "mean":
        start = x.mean((2, 3), keepdim=True).expand_as(x)
        expected = (net(x) - net(start))[range(3), CLASSES].detach()
        torch.testing.assert_close(found.sum((1, 2, 3)), expected, rtol=1e-6, atol=1e-8)


def test_smooth_grad_without_noise_is_saliency():
    net, x = curved(), random_images()
    torch.testing.assert_close(smooth_grad(net, x, CLASSES, sigma=0.0, samples=3), saliency(net, x, CLASSES))


def test_smooth_grad_of_a_linear_model_is_its_weights():
    net, x = settle(Weighted((3, 12, 16), 6).double()), random_images()
    expected = net.fc.weight.detach()[CLASSES].view_as(x)
    torch.testing.assert_close(smooth_grad(net, x, CLASSES, samples=5), expected, rtol=1e-12, atol=1e-14)


def test_smooth_grad_noise_is_relative_to_the_image_range():
    """Score sum x^2, gradient 2 x + 2 noise: over many samples the deviation is that of the noise."""

    class Square(torch.nn.Module):
        def forward(self, x):
            return torch.stack([(x**2).sum((1, 2, 3)), x.sum((1, 2, 3))], 1)

    x = random_images(2)
    x[1] *= 10
    found = smooth_grad(Square(), x, 0, samples=4, sigma=0.2)
    noise = (found - 2 * x) / 2
    for n in range(2):
        expected = 0.2 * float(x[n].max() - x[n].min()) / 2  # the mean of 4 draws has half their deviation
        assert float(noise[n].std()) == pytest.approx(expected, rel=0.1)


def test_top_class_is_that_of_the_clean_image():
    """target=None uses the clean image's top class for every noisy sample and every point of the path."""
    net, x = curved(), random_images(6)
    net.head.bias.data.zero_()
    classes = net(x).argmax(1).tolist()
    assert len(set(classes)) > 1
    for method, options in ((smooth_grad, {"samples": 6, "sigma": 1.0}), (integrated_gradients, {"steps": 6})):
        torch.testing.assert_close(method(net, x, **options), method(net, x, classes, **options))


def test_explain_reduces_color_channels():
    net, x = curved(), random_images()
    pixels = saliency(net, x, CLASSES)
    for how, expected in {
        "sum": pixels.sum(1),
        "norm": pixels.norm(dim=1),
    }.items():
        e = explain("saliency", net, x, CLASSES, reduce=how)
        torch.testing.assert_close(e.map, expected)
        assert torch.equal(e.raw, pixels)
    e = explain("saliency", net, x, CLASSES, reduce="abs_max")
    torch.testing.assert_close(e.map.abs(), pixels.abs().amax(1))
    with pytest.raises(ValueError, match="sum"):
        explain("saliency", net, x, CLASSES, reduce="average")


# Agreement with captum


def test_saliency_and_input_x_gradient_agree_with_captum():
    captum = pytest.importorskip("captum.attr")
    net, x = residual(), random_images()
    assert torch.equal(saliency(net, x, CLASSES), captum.Saliency(net).attribute(x, CLASSES, abs=False).detach())
    theirs = captum.InputXGradient(net).attribute(x.clone(), CLASSES).detach()
    torch.testing.assert_close(input_x_gradient(net, x, CLASSES), theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("steps", [5, 20])
def test_integrated_gradients_agree_with_captum(steps):
    captum = pytest.importorskip("captum.attr")
    net, x = residual(), random_images()
    theirs = (
        captum.IntegratedGradients(net).attribute(x, target=CLASSES, n_steps=steps, method="gausslegendre").detach()
    )
    assert rel(integrated_gradients(net, x, CLASSES, steps=steps), theirs) < 1e-6


def test_smooth_grad_agrees_with_captum_in_expectation():
    """The draws differ: with many samples both approach the same expectation on a smooth network."""
    captum = pytest.importorskip("captum.attr")
    net, x = curved(), random_images(1)
    torch.manual_seed(0)
    deviation = 0.1 * float(x.max() - x.min())
    theirs = captum.NoiseTunnel(captum.Saliency(net)).attribute(
        x, target=2, nt_samples=500, nt_samples_batch_size=100, stdevs=deviation, nt_type="smoothgrad", abs=False
    )
    ours = smooth_grad(net, x, 2, samples=500, sigma=0.1)
    assert rel(ours, theirs.detach()) < 0.05
    assert rel(saliency(net, x, 2), theirs.detach()) > rel(ours, theirs.detach()), "the noise must matter"
