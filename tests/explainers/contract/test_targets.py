"""Targets: their values by hand, and their reprs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import explainers
from explainers import (
    BadTarget,
    Contrast,
    Logit,
    LogProbability,
    Probability,
    Similarity,
    Sum,
    explain,
    grad_cam,
    saliency,
)
from tests.support.nets import DictNet, curved, random_images, settle

SCORES = torch.tensor([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]], dtype=torch.float64)


def test_values_by_hand():
    p = SCORES.exp() / SCORES.exp().sum(1, keepdim=True)
    for target, expected in {
        Logit(2): SCORES[:, 2],
        Logit([0, 1]): torch.stack([SCORES[0, 0], SCORES[1, 1]]),
        Probability(1): p[:, 1],
        Probability([2, 0]): torch.stack([p[0, 2], p[1, 0]]),
        LogProbability(1): p[:, 1].log(),
        Contrast(2, 0): SCORES[:, 2] - SCORES[:, 0],
        Sum(Logit(0), Logit(1)): SCORES[:, 0] + SCORES[:, 1],
        Sum(Logit(0), Contrast(2, 1)): SCORES[:, 0] + SCORES[:, 2] - SCORES[:, 1],
    }.items():
        torch.testing.assert_close(target(SCORES), expected.double())


def test_similarity_is_the_cosine():
    embedding = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    expected = (SCORES @ embedding) / SCORES.norm(dim=1) / embedding.norm()
    torch.testing.assert_close(Similarity(embedding)(SCORES), expected)


def test_mask_scores_of_a_segmentation():
    output = {"out": torch.arange(24.0).view(1, 2, 3, 4)}
    mask = torch.zeros(3, 4)
    mask[0, 0] = mask[2, 3] = 1
    found = float(explainers.MaskScores(mask, 1)(output)[0])
    assert found in (12 + 23, (12 + 23) / 2)


def test_box_scores_of_a_detector():
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    found = [
        {
            "boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]]),
            "labels": torch.tensor([3, 3]),
            "scores": torch.tensor([0.9, 0.8]),
        },
        {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0]]), "labels": torch.tensor([4]), "scores": torch.tensor([0.7])},
    ]
    scores = explainers.BoxScores(boxes, (3,))(found)
    assert scores.shape == (2,) and scores[0] > 0 and scores[1] == 0


@pytest.mark.parametrize(
    "target", [Logit(2), Logit([0, 1]), Probability(1), LogProbability(0), Contrast(2, 0), Sum(Logit(0), Logit(1))]
)
def test_frozen_equal_and_readable(target):
    assert dataclasses.is_dataclass(target)
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.classes = 7
    assert type(target).__name__ in repr(target) and "object at" not in repr(target)
    assert target == eval(repr(target), vars(explainers)), "the repr is the call that makes it"


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
    net, x = curved(), random_images()
    options = {"window": 4, "stride": 4, "batch_size": 5}
    for per_batch, singles in [
        (Probability([1, 2, 3]), [Probability(1), Probability(2), Probability(3)]),
        (Sum(Logit([1, 2, 3]), Logit(0)), [Sum(Logit(k), Logit(0)) for k in (1, 2, 3)]),
        (
            Similarity(torch.eye(7, dtype=torch.float64)[:3]),
            [Similarity(torch.eye(7, dtype=torch.float64)[k]) for k in range(3)],
        ),
    ]:
        batch = explainers.occlusion(net, x, per_batch, **options)
        single = torch.cat([explainers.occlusion(net, x[i : i + 1], singles[i], **options) for i in range(3)])
        torch.testing.assert_close(batch, single)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Logit(-1),
        lambda: Logit(True),
        lambda: Logit(1.5),
        lambda: Logit("cat"),
        lambda: Logit(torch.tensor([0.5])),
    ],
    ids=["negative", "bool", "float", "text", "float tensor"],
)
def test_wrong_classes_are_refused(make):
    with pytest.raises((BadTarget, TypeError)):
        make()


def test_contrast_out_of_range_names_the_count():
    with pytest.raises(BadTarget, match="7 scores"):
        saliency(curved(), random_images(), Contrast(1, 70))


def test_dictionary_output_reaches_the_callable_unchanged_and_once():
    net, x, seen = settle(DictNet().double()), random_images(), []

    def target(output):
        seen.append(sorted(output))
        return output["out"][:, 2].mean((1, 2))

    result = grad_cam(net, x, target, layer="net.conv2", relu=False)
    assert seen == [["aux", "out"]]
    assert result.shape == (3, 6, 8) and result.any()


def test_explain_names_its_target():
    net, x = curved(), random_images()
    assert explain("saliency", net, x, [1, 2, 3]).target == [1, 2, 3]
    assert explain("saliency", net, x).target == net(x).argmax(1).tolist()
    assert "Contrast" in str(explain("saliency", net, x, Contrast(1, 2)).target)
