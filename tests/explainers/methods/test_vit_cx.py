"""ViT-CX: clusters of masks, identities, and pixels that carry the score."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from explainers import vit_cx
from explainers.methods.perturbation.vit_cx import complete_linkage
from tests.support.nets import ClassToken, curved, random_images, settle


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


def test_constant_channels_give_a_blank_map():
    net = curved()
    net.act2 = nn.Threshold(10.0, 1.0)
    assert not vit_cx(net, random_images(1), 2, layer="act2").any()


def test_the_default_layer_of_a_transformer_is_the_input_of_its_last_attention():
    net, x = settle(ClassToken().double()), random_images(2, 3, 32, 128)
    found = vit_cx(net, x, [1, 2])
    assert found.shape == (2, 32, 128) and found.any()
