"""ViT-CX: clusters of masks, identities, and pixels that carry the score."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import vit_cx
from explainers.methods.perturbation.vit_cx import complete_linkage
from tests.support.nets import ClassToken, random_images, settle


def test_clusters_are_those_of_scikit_learn():
    """The authors use its AgglomerativeClustering with precomputed distances."""
    cluster = pytest.importorskip("sklearn.cluster")
    rows = torch.rand(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = rows / rows.norm(dim=1, keepdim=True)
    distances = 1 - rows @ rows.T
    for limit in (0.05, 0.2, 0.5, 2.0):
        options = {"metric": "precomputed", "linkage": "complete", "n_clusters": None, "distance_threshold": limit}
        theirs = torch.tensor(cluster.AgglomerativeClustering(**options).fit(distances.numpy()).labels_)
        found = complete_linkage(distances, limit)
        assert torch.equal(found[:, None] == found, theirs[:, None] == theirs), limit


class Left(nn.Module):
    """Two channels of the layer: the left and the right half; the score is the left half of the image."""

    def __init__(self):
        super().__init__()
        self.halves = nn.Identity()

    def forward(self, x):
        sides = torch.ones_like(x[:, :2])
        sides[:, 0, :, : x.shape[3] // 2] = 2
        sides[:, 1, :, x.shape[3] // 2 :] = 2
        seen = self.halves(x.mean(1, keepdim=True) * 0 + sides)
        score = x[..., : x.shape[3] // 2].sum((1, 2, 3)) + 0 * seen.sum((1, 2, 3))
        return torch.stack([score, -score], 1)


def test_the_half_that_carries_the_score_is_positive():
    """Two masks, of impacts 0 and -y: their means over the mask and the other half are y / 4 and -y / 4."""
    net, x = Left(), random_images(2).abs()
    found = vit_cx(net, x, 0, layer="halves", sigma=0.0)
    quarter = net(x)[:, 0].view(-1, 1, 1) / 4
    torch.testing.assert_close(found[:, :, :8], quarter.expand(2, 12, 8))
    torch.testing.assert_close(found[:, :, 8:], -quarter.expand(2, 12, 8))


def test_constant_channels_give_a_blank_map():
    net, x = Left(), random_images(1)
    net.halves = nn.Threshold(10.0, 1.0)
    assert not vit_cx(net, x, 0, layer="halves").any()


def test_the_default_layer_of_a_transformer_is_the_input_of_its_last_attention():
    net, x = settle(ClassToken().double()), random_images(2, 3, 32, 128)
    found = vit_cx(net, x, [1, 2])
    assert found.shape == (2, 32, 128) and found.any()
