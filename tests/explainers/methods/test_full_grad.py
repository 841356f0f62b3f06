"""FullGrad: input and bias terms sum to the score."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from explainers import explain, full_grad, full_gradients
from tests.support.nets import Activated, Reused, curved, plain, random_images, residual, settle

CLASSES = [2, 0, 4]


def deep():
    """A hidden linear layer with batch norm, whose biases have no position; a transposed convolution."""
    first = [nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(6, 4, 2, stride=2)]
    second = [nn.BatchNorm2d(4, affine=False), nn.LeakyReLU(0.1), nn.MaxPool2d(2), nn.Flatten()]
    head = [nn.Linear(4 * 6 * 8, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 7)]
    return settle(nn.Sequential(*first, *second, *head).double())


NETS = {
    "modules": plain,
    "in place": lambda: plain(inplace=True),
    "residual, reused in-place ReLU": residual,
    "functional ReLU": lambda: settle(Activated(F.relu).double()),
    "functional in-place ReLU": lambda: settle(Activated(lambda x: F.relu(x, inplace=True)).double()),
    "one convolution twice": lambda: settle(Reused().double()),
    "hidden layers": deep,
}


def test_p43_input_and_bias_terms_sum_to_the_score():
    images = random_images()
    for name, build in NETS.items():
        net = build()
        expected = net(images)[range(3), CLASSES].detach()
        found = full_gradients(net, images, CLASSES)
        torch.testing.assert_close(found.total(), expected, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(found.scores, expected)
        assert all(part.abs().max() > 0 for part in (found.input, found.elsewhere, *found.biases.values())), name


@pytest.mark.parametrize("height", [12, 13])
def test_p43_the_signed_map_sums_to_the_score_minus_non_spatial_terms(height):
    """Resizing preserves sums, also by factors that are not whole numbers."""
    nets = [residual()] + [NETS["hidden layers"]()] * (height == 12)
    for net in nets:
        images = random_images(height=height)
        signed = full_grad(net, images, CLASSES, magnitude=False)
        found = full_gradients(net, images, CLASSES)
        torch.testing.assert_close(signed.sum((1, 2)), found.scores - found.elsewhere, rtol=1e-10, atol=1e-11)
        assert (signed < 0).any() and (signed > 0).any()


def test_the_unattributed_remainder_is_a_finding():
    net, images = curved(), random_images()
    found = full_gradients(net, images, CLASSES)
    e = explain("full_grad", net, images, CLASSES)
    for n, row in enumerate(e.findings):
        (told,) = [each for each in row if each.code == "incomplete"]
        assert f"{float(found.scores[n] - found.total()[n]):.3g} of the score" in told.sentence
    clean = explain("full_grad", residual(), images, CLASSES)
    assert not any(each.code == "incomplete" for row in clean.findings for each in row)


class EitherNorm(nn.LayerNorm):
    """A layer norm over the channels, which are the first or the last axis after the images."""

    def __init__(self, channels, first):
        super().__init__(channels)
        self.first = first

    def forward(self, x):
        return super().forward(x.movedim(1, -1)).movedim(-1, 1) if self.first else super().forward(x)


class Norms(nn.Module):
    """Both kinds of layer norms on a grid of 8 rows with 8 channels, so that shapes do not tell the axes apart."""

    def __init__(self):
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 2, 2), EitherNorm(8, True)
        self.last, self.head, self.pooled = EitherNorm(8, False), nn.Linear(8, 7), EitherNorm(8, False)
        self.joint = nn.LayerNorm((8, 8))

    def forward(self, x):
        x = self.joint(self.first(self.stem(x)))
        return self.head(self.pooled(self.last(x.movedim(1, -1)).mean((1, 2))))


def test_biases_of_layer_norms_run_along_the_channels():
    """Oracle: input and bias terms of the score by the gradients of the parameters."""
    net, image = settle(Norms().double()), random_images(1, 3, 16, 16).requires_grad_()
    parts = [image, *(each for name, each in net.named_parameters() if name.endswith("bias"))]
    slopes = torch.autograd.grad(net(image)[0, 1], parts)
    expected = sum((part * slope).sum().item() for part, slope in zip(parts, slopes, strict=True))
    found = full_gradients(net, image.detach(), 1)
    torch.testing.assert_close(float(found.total()), expected, rtol=1e-6, atol=1e-8)
