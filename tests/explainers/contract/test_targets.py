"""Targets: their values by hand, their reprs, and those of dense networks without a given target."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import explainers
from explainers import BadTarget, Logit, MaskScores, Probability, Similarity, Sum, explain, saliency
from tests.support.nets import DictNet, curved, random_images, settle

SCORES = torch.tensor([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]], dtype=torch.float64)
P = SCORES.exp() / SCORES.exp().sum(1, keepdim=True)
BY_HAND = {
    Logit(2): SCORES[:, 2],
    Logit([0, 1]): torch.stack([SCORES[0, 0], SCORES[1, 1]]),
    Probability(1): P[:, 1],
    Probability([2, 0]): torch.stack([P[0, 2], P[1, 0]]),
    explainers.LogProbability(1): P[:, 1].log(),
    Probability([1, 2], "sigmoid"): torch.stack([SCORES[0, 1], SCORES[1, 2]]).sigmoid(),
    explainers.Contrast(2, 0): SCORES[:, 2] - SCORES[:, 0],
    Sum(Logit(0), Logit(1)): SCORES[:, 0] + SCORES[:, 1],
    Sum(Logit(0), explainers.Contrast(2, 1)): SCORES[:, 0] + SCORES[:, 2] - SCORES[:, 1],
}


def test_values_by_hand_of_frozen_and_readable_targets():
    for target, expected in BY_HAND.items():
        torch.testing.assert_close(target(SCORES), expected)
        with pytest.raises(dataclasses.FrozenInstanceError):
            target.classes = 7
        assert target == eval(repr(target), vars(explainers)), "the repr is the call that makes it"
    short = explainers.Through(torch.ones(40, 40).argmax(1), nn.Sequential(nn.ReLU()), [1])
    assert repr(short) == "Through(target=Tensor of shape (40,), layer=Sequential(...), channels=(1,))"


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


# Without a target: the largest class of a segmentation network and the best detection of a detector, by hand


IMAGES = torch.rand(3, 3, 12, 16, generator=torch.Generator().manual_seed(0))


class Named(NamedTuple):
    logits: Tensor


class Segmenter(nn.Module):
    """Class maps whose class depends on the brightness of each row; image after image another one is the largest."""

    def __init__(self, classes: int = 4, wrap: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.wrap = nn.Conv2d(3, classes, 3, padding=1), wrap or (lambda maps: maps)

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.conv(x))


def scenes() -> Tensor:
    """Three images of which other parts are bright."""
    images = IMAGES * 0.1
    for n, channel in enumerate((0, 1, 2)):
        images[n, channel, : 4 + 3 * n] += 5
    return images


def balanced(net: Segmenter) -> Segmenter:
    """Let each class have some of the pixels."""
    with torch.no_grad():
        net.conv.bias -= net.conv(scenes()).movedim(1, 0).flatten(1).median(1).values
    return net.eval()


def largest_classes(net: Segmenter, images: Tensor) -> tuple[Tensor, list[int]]:
    """The class of each pixel, and the largest one of each image."""
    classes = net.conv(images).argmax(1)
    return classes, [int(own.flatten().bincount().argmax()) for own in classes]


@pytest.mark.parametrize(
    ("method", "wrap", "options"),
    [
        ("saliency", None, {}),
        ("grad_cam", lambda maps: OrderedDict(out=maps, aux=maps[:, :2]), {"layer": "conv"}),
        ("occlusion", lambda maps: {"logits": maps}, {"window": 4}),
        ("lrp", Named, {}),
    ],
)
def test_the_largest_class_of_each_image_is_explained_and_named(method: str, wrap: Any, options: Any) -> None:
    net, images = Segmenter(wrap=wrap).eval(), scenes()
    classes, largest = largest_classes(net, images)
    assert len(set(largest)) > 1, "the images differ"
    found = explain(method, net, images, **options)
    for n, label in enumerate(largest):
        by_hand = explain(method, net, images[n : n + 1], MaskScores(classes[n] == label, label), **options)
        torch.testing.assert_close(found.raw[n : n + 1], by_hand.raw, rtol=1e-4, atol=1e-6)
        assert found.statistics[n]["target_score"] == pytest.approx(by_hand.statistics[0]["target_score"], rel=1e-4)
        (finding,) = [each for each in found.findings[n] if each.code == "largest_class"]
        share = float((classes[n] == label).float().mean())
        assert finding.facts["label"] == label and finding.facts["share"] == pytest.approx(share)
        assert f"class {label}, the largest class of the image ({share:.1%} of the pixels)" in finding.sentence


def test_the_background_is_explained_only_on_request() -> None:
    pytest.importorskip("torchvision")
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    net = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).eval()
    torch.manual_seed(0)
    images = torch.rand(1, 3, 64, 64)
    scores = net(images)["out"].detach()
    bias = net.classifier.high_classifier.bias
    with torch.no_grad():
        bias += torch.tensor([-(scores[:, 0] - scores[:, 1:].amax(1)).quantile(0.2), 0.0, 0.0])
    classes = net(images)["out"].argmax(1)
    assert int((classes == 0).sum()) > int((classes == 1).sum()) + int((classes == 2).sum()) > 0
    found = explain("saliency", net, images)
    (finding,) = [each for each in found.findings[0] if each.code == "largest_class"]
    assert finding.facts["label"] != 0 and "except for the background" in finding.sentence
    with torch.no_grad():
        bias += torch.tensor([1e4, 0.0, 0.0])
    with pytest.raises(BadTarget, match=r"every pixel of the image to the background \(class 0\)"):
        saliency(net, images)
    assert saliency(net, images, MaskScores(torch.ones(64, 64), 0)).shape == images.shape


def test_the_background_is_known_by_the_names_of_a_configuration() -> None:
    net, images = balanced(Segmenter(2)), scenes()
    first = explain("saliency", net, images).findings
    net.config = type("Config", (), {"id2label": {0: "Background", 1: "road"}})()
    labels = [finding.facts["label"] for row in explain("saliency", net, images).findings for finding in row[:1]]
    assert labels == [1, 1, 1] and any(row[0].facts["label"] == 0 for row in first)


@pytest.mark.parametrize("probabilities", [False, True])
def test_a_single_map_is_the_class_against_nothing(probabilities: bool) -> None:
    net, images = balanced(Segmenter(1, torch.sigmoid if probabilities else None)), scenes()
    inside = net.conv(images)[:, 0] > 0
    assert all(0.02 < float(each.float().mean()) < 0.98 for each in inside)
    torch.testing.assert_close(saliency(net, images), saliency(net, images, MaskScores(inside, 0)))
    with torch.no_grad():
        net.conv.bias.fill_(-100.0)
    with pytest.raises(BadTarget, match="no pixel of image 0"):
        saliency(net, images)


def test_other_functions_choose_the_same_target() -> None:
    net, images = Segmenter().eval(), scenes()
    classes, largest = largest_classes(net, images)
    target = MaskScores(classes == torch.tensor(largest)[:, None, None], largest)
    explanation = explain("saliency", net, images)
    wanted = explainers.evaluate(net, images, explanation.map, target=target, steps=3, controls=False)
    for maps in (explanation, "saliency", explanation.map):
        found = explainers.evaluate(net, images, maps, steps=3, controls=False)
        torch.testing.assert_close(found.values, wanted.values)
        assert [each.code for each in found.findings][:3] == ["largest_class"] * 3
    mean = explainers.smooth("saliency", sigma=0.1, samples=2)
    torch.testing.assert_close(mean(net, images).mean, mean(net, images, target).mean)
    assert str(explainers.randomization_test(net, images, "saliency", seeds=1, seed=3).target).startswith("MaskScores(")


class Detector(nn.Module):
    """Two detections of each image and one without area, in an order that depends on it; none in a dark image."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.2, 0.9, 0.5]))

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        boxes, labels = torch.tensor([[0.0, 0, 8, 8], [2.0, 2, 10, 10], [4.0, 0, 4, 8]]), torch.tensor([5, 7, 9])
        found = []
        for image in x:
            order = [1, 0, 2] if image[0, 0, 0] > 0.5 else [0, 1, 2]
            scores = (self.weight * image[:, 2:8, 2:8].mean()).sigmoid() + torch.tensor([0.0, 0, 1])
            parts = {"boxes": boxes, "labels": labels, "scores": scores}
            found.append({name: part[order if image.any() else []] for name, part in parts.items()})
        return found


def test_the_best_detection_of_each_image_is_explained_and_named() -> None:
    net = Detector().eval()
    found = explain("saliency", net, IMAGES)
    for n, output in enumerate(net(IMAGES)):
        (named,) = [each for each in found.findings[n] if each.code == "best_detection"]
        best = int(output["scores"][:2].argmax())
        score = float(output["scores"][best])
        assert named.facts["score"] == pytest.approx(score) == found.statistics[n]["target_score"]
        assert f"label {int(output['labels'][best])} with score {score:.2f}" in named.sentence
    by_hand = saliency(net, IMAGES[:1], explainers.BoxScores(torch.tensor([[2.0, 2, 10, 10]]), (7,)))
    torch.testing.assert_close(explain("saliency", net, IMAGES[:1]).raw, by_hand)


def test_an_image_without_detection_is_refused_by_its_number() -> None:
    with pytest.raises(BadTarget, match=r"Image 1 of the batch: .* found nothing in the image"):
        saliency(Detector().eval(), IMAGES * torch.tensor([1.0, 0.0, 1.0])[:, None, None, None])
    with pytest.raises(BadTarget, match="found nothing in the image"):
        explainers.d_rise(Detector().eval(), torch.zeros_like(IMAGES[:1]), samples=2)
    target = explainers.BoxScores(torch.tensor([[2.0, 2, 10, 10]]), (7,), 0.0)  # without a minimum overlap
    given, chosen = (explainers.d_rise(Detector().eval(), IMAGES[:1], each, samples=8) for each in (target, None))
    torch.testing.assert_close(given, chosen)
