"""Targets: their values by hand, and their reprs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import explainers
from explainers import BadTarget, Contrast, Logit, LogProbability, MaskScores, Probability, Similarity, Sum, saliency
from tests.support.nets import DictNet, curved, random_images, settle

SCORES = torch.tensor([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]], dtype=torch.float64)
P = SCORES.exp() / SCORES.exp().sum(1, keepdim=True)
BY_HAND = {
    Logit(2): SCORES[:, 2],
    Logit([0, 1]): torch.stack([SCORES[0, 0], SCORES[1, 1]]),
    Probability(1): P[:, 1],
    Probability([2, 0]): torch.stack([P[0, 2], P[1, 0]]),
    LogProbability(1): P[:, 1].log(),
    Contrast(2, 0): SCORES[:, 2] - SCORES[:, 0],
    Sum(Logit(0), Logit(1)): SCORES[:, 0] + SCORES[:, 1],
    Sum(Logit(0), Contrast(2, 1)): SCORES[:, 0] + SCORES[:, 2] - SCORES[:, 1],
}


def test_values_by_hand_of_frozen_and_readable_targets():
    for target, expected in BY_HAND.items():
        torch.testing.assert_close(target(SCORES), expected)
        with pytest.raises(dataclasses.FrozenInstanceError):
            target.classes = 7
        assert target == eval(repr(target), vars(explainers)), "the repr is the call that makes it"


def test_mask_scores_are_a_mean_for_any_weights_with_one_mask_per_image():
    net, x = settle(DictNet().double()), random_images()
    out = net(x)["out"]
    faint = MaskScores(torch.full((12, 16), 1e-3), 2)(net(x))
    torch.testing.assert_close(faint, out[:, 2].mean((1, 2)), check_dtype=False, rtol=1e-5, atol=1e-6)
    masks = torch.zeros(3, 12, 16, dtype=torch.bool)
    for i in range(3):
        masks[i, i : i + 4, 2 : 5 + i] = True
    torch.testing.assert_close(
        MaskScores(masks, 1)({"logits": out}), torch.stack([o[1][m].mean() for o, m in zip(out, masks, strict=True)])
    )
    together = explainers.occlusion(net, x, MaskScores(masks, 1), window=6, stride=6, batch_size=4)
    alone = [explainers.occlusion(net, x[i : i + 1], MaskScores(masks[i], 1), window=6, stride=6) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_box_scores_only_use_detections_of_the_box_and_class():
    target = explainers.BoxScores([[0, 0, 10, 10]], [3])
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]])
    two = {"boxes": boxes, "labels": torch.tensor([3, 3]), "scores": torch.tensor([0.9, 0.95])}
    other = {**two, "labels": torch.tensor([4, 4])}
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "scores": torch.zeros(0)}
    assert target([two, other, nothing]).tolist() == pytest.approx([0.9, 0, 0])
    for output in (
        {"loss": torch.ones(1)},
        torch.ones(2, 5),
        [],
        [{"boxes": torch.ones(2, 4)}],
        [{**two, "labels": [3]}],
    ):
        with pytest.raises(BadTarget, match="BoxScores needs detections"):
            target(output)


def test_similarity_is_found_inside_an_output():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = curved()

        def forward(self, x):
            return {"maps": x, "pooled": self.net(x)}

    x = random_images()
    inside = saliency(Pooled().eval(), x, Similarity(np.ones(7)))
    torch.testing.assert_close(inside, saliency(curved(), x, Similarity(torch.ones(7))))


def test_saliency_of_each_target_is_its_gradient():
    net, x = curved(), random_images()
    for target, scalar in [
        (Probability(3), lambda y: y.softmax(1)[:, 3].sum()),
        (LogProbability([1, 2, 3]), lambda y: y.log_softmax(1)[[0, 1, 2], [1, 2, 3]].sum()),
        (Contrast(1, 4), lambda y: (y[:, 1] - y[:, 4]).sum()),
        (Sum(Logit(1), Logit(2)), lambda y: (y[:, 1] + y[:, 2]).sum()),
        (Similarity(torch.ones(7, dtype=torch.float64)), lambda y: (y.sum(1) / y.norm(dim=1) / 7**0.5).sum()),
        (lambda y: y[:, 0] ** 2, lambda y: (y[:, 0] ** 2).sum()),
    ]:
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(scalar(net(leaf)), leaf)
        torch.testing.assert_close(saliency(net, x, target), expected)


def test_perturbed_images_are_scored_with_the_target_of_their_image():
    """Variants of an image are scored with that image's own class or embedding."""
    net, x, embeddings = curved(), random_images(), torch.eye(7, dtype=torch.float64)[:3]
    options = {"window": 4, "stride": 4, "batch_size": 5}
    for per_batch, single in [
        (Probability([1, 2, 3]), lambda k: Probability(k + 1)),
        (Sum(Logit([1, 2, 3]), Logit(0)), lambda k: Sum(Logit(k + 1), Logit(0))),
        (Similarity(embeddings), lambda k: Similarity(embeddings[k])),
        (lambda output: output[:, 1].detach(), lambda k: 1),
    ]:
        alone = [explainers.occlusion(net, x[k : k + 1], single(k), **options) for k in range(3)]
        torch.testing.assert_close(explainers.occlusion(net, x, per_batch, **options), torch.cat(alone))
